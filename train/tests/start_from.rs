//! New runs that start with the weights of another run (`model.from`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use meshgrad_autograd::Module;
use meshgrad_ckpt::Committed;
use meshgrad_models::folder;
use meshgrad_runtime::Device;
use meshgrad_train::checkpoint::{self, ReadOptions};
use meshgrad_train::config::Config;
use meshgrad_train::events::Event;
use meshgrad_train::qwen3;
use meshgrad_train::session::Session;

const MODEL: &str = r#"
    [model]
    model_type = "qwen3_moe"
    hidden_size = 32
    num_hidden_layers = 2
    num_attention_heads = 4
    num_experts = 4
    num_experts_per_tok = 1
    moe_intermediate_size = 32
    initializer_range = 0.2
"#;

const RUN: &str = r#"
    [data]
    paths = ["TEXT"]
    tokenizer = "byte"

    [train]
    steps = 4
    batch_size = 4
    micro_batch_size = 2
    seq_len = 32

    [checkpoint]
    every = 2
    keep = 0

    [sample]
    every = 0
"#;

fn config(text: &str, overrides: &[&str]) -> Config {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/start_from.rs");
    let text = text.replace("TEXT", file.to_str().unwrap());
    let overrides: Vec<_> = overrides.iter().map(|text| text.parse().unwrap()).collect();
    Config::parse::<qwen3::Tables>(&text, "the test", &overrides).unwrap()
}

/// Trains a model in `run`, with low-rank updates if `adapted`.
fn train(run: &Path, overrides: &[&str], adapted: bool) {
    let config = config(&[MODEL, RUN].concat(), overrides);
    let device = Device::cpu();
    let session = Session::new(&config, &device).run_dir(run);
    let trained = session.train(|data, from| {
        let mut model = qwen3::model(&config, data.tokenizer.vocab_size(), from)?;
        if adapted {
            model.materialize(&device, 5)?;
            model.freeze();
            for projection in model.projections_mut().step_by(3) {
                projection.add_lora(3, 5.0);
            }
        }
        Ok(model)
    });
    trained.unwrap();
}

type Values = BTreeMap<String, Vec<f32>>;

fn values(model: &dyn Module) -> Values {
    let all = [folder::params(&model), folder::buffers(&model)].map(Result::unwrap);
    let all = all.concat().into_iter();
    all.map(|(name, tensor)| (name, tensor.to_vec().unwrap()))
        .collect()
}

/// The values that a run starts with, from `from`.
fn started(from: &Path, more: &[&str]) -> Values {
    let from = format!("model.from={:?}", from.to_str().unwrap());
    let config = config(RUN, &[&[from.as_str()], more].concat());
    let (device, place) = (Device::cpu(), tempfile::tempdir().unwrap());
    let seen = Arc::new(Mutex::new(Values::new()));
    let to = seen.clone();
    let session = Session::new(&config, &device)
        .run_dir(place.path().join("run"))
        .stop_after(1)
        .subscribe("values", move |event| {
            if let Event::ConfigurationFinished { model, .. } = event {
                *to.lock().unwrap() = values(model);
            }
            Ok(())
        });
    qwen3::train(session).unwrap();
    seen.lock().unwrap().clone()
}

/// The values of a checkpoint: its averages, with low-rank updates merged.
fn stored(checkpoint: &Path) -> Values {
    let (device, options) = (Device::cpu(), ReadOptions::default());
    let mut model = qwen3::load(checkpoint, &device, options).unwrap();
    if checkpoint::has_averages(checkpoint) {
        let sealed = Committed::open(checkpoint).unwrap();
        checkpoint::load_averages(&sealed, &model, options).unwrap();
    }
    for projection in model.projections_mut() {
        projection.merge_lora().unwrap();
    }
    values(&model)
}

fn flip_last_bit(file: PathBuf) {
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(file, bytes).unwrap();
}

/// A run starts with the averages of a checkpoint, with its low-rank updates merged into the
/// weights, and with its router biases, whether or not the run trains biases itself.
#[test]
fn a_run_starts_with_all_that_a_checkpoint_has() {
    let fast = ["optimizer.learning_rate=0.05"];
    let biases = [&fast[..], &["balancing.bias_update_rate=0.01"]].concat();
    let averages = [&biases[..], &["optimizer.ema_decay=0.5"]].concat();
    for (overrides, adapted) in [
        (&fast[..], false),
        (&biases, false),
        (&averages, false),
        (&fast, true),
        (&averages, true),
    ] {
        let place = tempfile::tempdir().unwrap();
        let run = place.path().join("run");
        train(&run, overrides, adapted);
        let [older, newest] = [2, 4].map(|step| run.join(format!("step-00000{step}")));
        let expected = stored(&newest);
        assert_ne!(expected, stored(&older), "{overrides:?}");
        let has_biases = overrides.len() > 1;
        assert_eq!(
            expected.keys().any(|name| name.contains("bias")),
            has_biases
        );

        assert_eq!(started(&newest, &[]), expected, "{overrides:?} {adapted}");
        assert_eq!(
            started(&older, &[]),
            stored(&older),
            "{overrides:?} {adapted}"
        );
        // A run stands for its newest checkpoint.
        assert_eq!(started(&run, &[]), expected, "{overrides:?} {adapted}");
    }
}

/// Contents are compared with digests as they are read: a damaged checkpoint of a run is passed
/// over; if `model.from` names it, it is an error.
#[test]
fn damage_is_seen_before_a_run_starts() {
    let place = tempfile::tempdir().unwrap();
    let run = place.path().join("run");
    train(&run, &["optimizer.ema_decay=0.5"], false);
    let older = stored(&run.join("step-000002"));
    flip_last_bit(run.join("step-000004/trainer/ema/model.safetensors"));
    assert_eq!(started(&run, &[]), older);
    let unverified = started(&run, &["checkpoint.verify=false"]);
    assert_ne!(unverified, older);

    let from = format!("model.from={:?}", run.join("step-000004").to_str().unwrap());
    let (config, device) = (config(RUN, &[&from]), Device::cpu());
    let session = Session::new(&config, &device).run_dir(place.path().join("new"));
    let error = qwen3::train(session).unwrap_err().to_string();
    assert!(
        error.contains("trainer/ema/model.safetensors is damaged"),
        "{error}"
    );
    assert!(!place.path().join("new").exists());

    // Without the manifest, the averages would be left out.
    std::fs::remove_file(run.join("step-000004/manifest.json")).unwrap();
    let session = Session::new(&config, &device).run_dir(place.path().join("new"));
    let error = qwen3::train(session).unwrap_err().to_string();
    assert!(error.contains("it has no manifest.json"), "{error}");
}
