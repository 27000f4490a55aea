//! Training runs with router biases that balance the load of the experts.

use std::path::{Path, PathBuf};

use meshgrad_autograd::Module;
use meshgrad_ckpt::{Committed, TensorFile};
use meshgrad_runtime::Device;
use meshgrad_train::checkpoint::{self, ReadOptions};
use meshgrad_train::config::Config;
use meshgrad_train::decoder;
use meshgrad_train::metrics::{self, Record};
use meshgrad_train::session::Session;

const BIASES: &str = "trainer/buffers/model.safetensors";

fn config(overrides: &[&str]) -> Config {
    let own = ["model.router_aux_loss_coef=0.0", "train.steps=6", "checkpoint.every=0"];
    crate::small_moe::config(&[&own[..], overrides].concat())
}

/// Trains or resumes in `run`, and returns the last checkpoint.
fn train(run: &Path, config: &Config, stop_after: Option<u64>) -> PathBuf {
    let device = Device::cpu();
    let session = Session::new(config, &device).run_dir(run);
    decoder::train(session.stop_after(stop_after)).unwrap().checkpoint
}

fn records(run: &Path) -> Vec<Record> {
    metrics::read(&run.join("metrics.jsonl")).unwrap()
}

/// Every file of a checkpoint, by path and content.
fn content(checkpoint: &Path) -> Vec<(String, Vec<u8>)> {
    let published = Committed::open(checkpoint).unwrap();
    let files = published.files().map(|(path, _)| path.to_owned());
    let read = |path: String| (path.clone(), std::fs::read(checkpoint.join(path)).unwrap());
    files.map(read).collect()
}

/// A stopped and resumed run gives the same bits, biases included, even if activation checkpointing
/// is switched on for a part of it.
#[test]
fn resuming_with_biases_is_exact() {
    let place = tempfile::tempdir().unwrap();
    let (whole, parts) = (place.path().join("whole"), place.path().join("parts"));
    let rates = ["balancing.bias_update_rate=0.01", "balancing.z_loss_coef=0.001"];
    let plain = config(&rates);
    let recomputing = config(&[&rates[..], &["train.activation_checkpointing=true"]].concat());

    let expected = content(&train(&whole, &plain, None));
    train(&parts, &plain, Some(2));
    train(&parts, &recomputing, Some(3));
    let actual = content(&train(&parts, &plain, None));

    assert_eq!(expected.len(), actual.len());
    for ((path, expected), (other, actual)) in expected.iter().zip(&actual) {
        assert_eq!(path, other);
        assert!(expected == actual, "{path} differs");
    }
    let loads = |run| -> Vec<_> { records(run).iter().map(|line| line.expert_load).collect() };
    assert_eq!(loads(&whole), loads(&parts));
    assert!(loads(&whole).iter().all(|load| load.unwrap() >= 1.0));
    assert!(expected.iter().any(|(path, _)| path == BIASES));
}

/// A configuration without the tables of Qwen3 is an error before the run folder is made.
#[test]
fn a_configuration_needs_the_tables() {
    let place = tempfile::tempdir().unwrap();
    let (config, device) = (Config::default(), Device::cpu());
    let session = Session::new(&config, &device).run_dir(place.path().join("run"));
    let error = decoder::train(session).unwrap_err().to_string();
    let expected = "missing field `model`; read the configuration with \
                    `Config::read::<meshgrad_train::decoder::tables::Tables>`";
    assert!(error.contains(expected), "{error}");
    assert!(!place.path().join("run").exists());
}

/// With a rate of zero, existing biases do not change and no biases are created.
#[test]
fn a_rate_of_zero_freezes_biases() {
    let place = tempfile::tempdir().unwrap();
    let (balanced, plain) = (place.path().join("balanced"), place.path().join("plain"));
    let on = config(&["balancing.bias_update_rate=0.01"]);
    let off = config(&[]);

    let early = std::fs::read(train(&balanced, &on, Some(2)).join(BIASES)).unwrap();
    let late = std::fs::read(train(&balanced, &off, None).join(BIASES)).unwrap();
    assert!(early == late);
    assert_loads(&balanced.join("step-000006"), &off);

    assert!(!train(&plain, &off, None).join(BIASES).exists());
}

/// Checks that the checkpoint loads with its biases, both as the model of `config` and without a
/// configuration.
fn assert_loads(checkpoint: &Path, config: &Config) {
    let device = Device::cpu();
    let saved = Committed::open(checkpoint).unwrap();
    let model = decoder::model(config, 257, Some(&saved)).unwrap();
    checkpoint::load_model(&saved, &model, &device).unwrap();
    let alone = decoder::load(checkpoint, &device, ReadOptions::default()).unwrap();

    let biases = TensorFile::open(checkpoint.join(BIASES)).unwrap();
    for model in [model, alone] {
        let buffers = model.buffers();
        assert_eq!(buffers.len(), 2);
        for buffer in buffers {
            let values = buffer.value().unwrap().to_vec::<f32>().unwrap();
            let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
            assert_eq!(bytes, biases.read(buffer.name()).unwrap());
        }
    }
}

#[test]
fn router_biases_balance_the_load() {
    let place = tempfile::tempdir().unwrap();
    let load = |name: &str, rate: &str| {
        let run = place.path().join(name);
        train(&run, &config(&["train.steps=60", rate]), None);
        let last = records(&run).split_off(50);
        last.iter().map(|line| line.expert_load.unwrap()).sum::<f64>() / last.len() as f64
    };
    let (skewed, even) = (
        load("skewed", "balancing.bias_update_rate=0.0"),
        load("even", "balancing.bias_update_rate=0.02"),
    );
    assert!(skewed > 1.5 && even < 1.0 + 0.6 * (skewed - 1.0), "{skewed} and {even}");
}

/// The z-loss contributes to the gradient but not to the reported loss.
#[test]
fn the_z_loss_reaches_the_gradient() {
    let place = tempfile::tempdir().unwrap();
    let first = |name: &str, z: &str| {
        let run = place.path().join(name);
        train(&run, &config(&[z]), Some(1));
        records(&run).remove(0)
    };
    let plain = first("plain", "balancing.z_loss_coef=0.0");
    let with_z_loss = first("z-loss", "balancing.z_loss_coef=0.1");
    assert_eq!(plain.loss, with_z_loss.loss);
    assert_ne!(plain.grad_norm, with_z_loss.grad_norm);
}
