//! The predicted memory of a run equals the measured memory.

use meshgrad_runtime::Device;
use meshgrad_train::config::Config;
use meshgrad_train::memory::predict;
use meshgrad_train::qwen3::{self, Tables};
use meshgrad_train::session::Session;

const CONFIG: &str = r#"
    train = { steps = 3, batch_size = 4, micro_batch_size = 2, seq_len = 32 }
    data = { paths = ["TEXT"], tokenizer = "byte", val_fraction = 0.2 }
    sample = { every = 0, tokens = 1, prompt = "a" }
    log = { val_every = 1, val_batches = 2 }
    model = { hidden_size = 32, num_hidden_layers = 2, moe_intermediate_size = 32 }
"#;

/// A meta device predicts the peak memory of a run.
#[test]
fn the_peak_of_a_run_is_predicted() {
    let place = tempfile::tempdir().unwrap();
    let text: String = (0..400).map(|line| format!("line {line}\n")).collect();
    std::fs::write(place.path().join("text"), text).unwrap();
    let file = CONFIG.replace("TEXT", place.path().join("text").to_str().unwrap());
    let cases = [
        "train.micro_batch_size=2",
        "train.micro_batch_size=4",
        "train.activation_checkpointing=true",
        "train.dtype=bf16",
        "optimizer.name=lion",
        "optimizer.name=muon",
        "optimizer.ema_decay=0.9",
        "balancing.bias_update_rate=0.01",
    ];
    for (number, set) in cases.iter().enumerate() {
        let config = Config::parse::<Tables>(&file, "the test", &[set.parse().unwrap()]).unwrap();
        let device = Device::cpu();
        let run = place.path().join(format!("run-{number}"));
        qwen3::train(Session::new(&config, &device).run_dir(&run)).unwrap();
        let measured = device.memory_stats().peak as u64;

        let model = qwen3::model(&config, 257, None).unwrap();
        let (_, needed) = predict(model, &config, device.properties());
        let needed = needed.unwrap();
        assert_eq!(needed.device, measured, "{set}");
        let saved = run.join("step-000003");
        let size = |name: &str| saved.join(name).metadata().map_or(0, |it| it.len());
        assert!(needed.saving > size("model.safetensors"), "{set}");
    }
}
