//! The predicted memory of a run equals the measured memory, on one rank and on several.

use meshgrad_comm::{Local, Rank};
use meshgrad_runtime::Device;
use meshgrad_train::Error;
use meshgrad_train::config::Config;
use meshgrad_train::decoder::{self, Tables};
use meshgrad_train::memory::{NotEnoughMemory, check_threads, predict, predict_rank};
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
        decoder::train(Session::new(&config, &device).run_dir(&run)).unwrap();
        let measured = device.memory_stats().peak as u64;

        let model = decoder::model(&config, 257, None).unwrap();
        let needed = predict(&model, &config, device.properties()).unwrap();
        assert_eq!(needed.device, measured, "{set}");
        let saved = run.join("step-000003");
        let size = |name: &str| saved.join(name).metadata().map_or(0, |it| it.len());
        assert!(needed.saving > size("model.safetensors"), "{set}");
    }
}

/// So is the peak of every rank of a mesh.
#[test]
fn the_peak_of_every_rank_is_predicted() {
    let place = tempfile::tempdir().unwrap();
    let text: String = (0..400).map(|line| format!("line {line}\n")).collect();
    std::fs::write(place.path().join("text"), text).unwrap();
    let file = CONFIG.replace("TEXT", place.path().join("text").to_str().unwrap());
    let cases: [(usize, &[&str]); 9] = [
        (2, &["parallel.pp=2", "train.micro_batch_size=1"]),
        (2, &["parallel.pp=2", "train.micro_batch_size=1", "pipeline.schedule='zbv'"]),
        (4, &["parallel.pp=2", "pipeline.schedule='gpipe'", "train.activation_checkpointing=true"]),
        (2, &[]),
        (3, &["train.micro_batch_size=4", "train.dtype=bf16"]),
        (2, &["parallel.dp_replicate=2"]),
        (2, &["parallel.home=zero1", "optimizer.ema_decay=0.9"]),
        (2, &["parallel.tp=2", "model.num_key_value_heads=2", "parallel.sequence_parallel=true"]),
        (
            4,
            &[
                "parallel.tp=2",
                "model.num_key_value_heads=2",
                "train.activation_checkpointing=true",
            ],
        ),
    ];
    for (number, (ranks, sets)) in cases.into_iter().enumerate() {
        let overrides: Vec<_> = sets.iter().map(|set| set.parse().unwrap()).collect();
        let config = Config::parse::<Tables>(&file, "the test", &overrides).unwrap();
        let run = place.path().join(format!("run-{number}"));
        let measured = Local::new(ranks).threads(1).launch(|rank| {
            decoder::train(Session::new(&config, rank.device()).on(rank).run_dir(&run))?;
            Ok::<_, Error>(rank.device().memory_stats().peak as u64)
        });
        for (rank, measured) in measured.unwrap().into_iter().enumerate() {
            let model = decoder::model(&config, 257, None).unwrap();
            let like = Device::cpu().properties().clone();
            let needed = predict_rank(&model, &config, &like, rank, ranks).unwrap();
            // Ranks also send each other a few messages.
            let difference = measured.abs_diff(needed.device);
            assert!(difference <= 1024, "{sets:?} rank {rank}: {} {measured}", needed.device);
        }
    }
}

/// A model whose shards fit each, but not together, is refused before a thread starts.
#[test]
fn ranks_that_do_not_fit_together_are_refused() {
    let sets = [
        "data.tokenizer=byte",
        "model.model_type=qwen3",
        "model.hidden_size=8192",
        "model.intermediate_size=28672",
        "model.num_hidden_layers=80",
        "model.num_attention_heads=64",
        "model.num_key_value_heads=8",
        "parallel.tp=8",
    ];
    let sets: Vec<_> = sets.iter().map(|set| set.parse().unwrap()).collect();
    let config = Config::parse::<Tables>("", "the test", &sets).unwrap();
    let devices: Vec<Device> = (0..8).map(|_| Device::cpu()).collect();
    let error = decoder::check_threads(&config, &devices).unwrap_err();
    let NotEnoughMemory { device, needed, .. } = error.details().unwrap();
    assert_eq!(device, "cpu for 8 ranks");
    // Processes check it before rank 0 looks for the text, which does not exist.
    let place = tempfile::tempdir().unwrap();
    let run = place.path().join("run");
    let errors = Local::new(8).threads(1).launch(|rank| {
        let session = Session::new(&config, rank.device()).on(rank).run_dir(&run);
        Ok::<_, Error>(decoder::train(session).unwrap_err().to_string())
    });
    for message in errors.unwrap() {
        assert!(message.starts_with("training needs"), "{message}");
    }
    assert!(!run.exists());
    // 70 billion parameters, each 16 bytes and again 12 in the copy that is saved.
    assert!(*needed > 68_000_000_000 * 28, "{needed}");
    let small = Config::parse::<Tables>("data.tokenizer = 'byte'", "the test", &[]).unwrap();
    decoder::check_threads(&small, &devices[..2]).unwrap();
    let model = decoder::model(&small, 257, None).unwrap();
    check_threads(&model, &small, &devices).unwrap();
}
