//! New runs that start with the weights of another run (`model.from`).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use meshgrad_autograd::Module;
use meshgrad_ckpt::{Committed, Staging};
use meshgrad_models::lora::LoraConfig;
use meshgrad_models::{Decoder, folder};
use meshgrad_runtime::Device;
use meshgrad_train::checkpoint::{self, ReadOptions};
use meshgrad_train::config::Config;
use meshgrad_train::decoder;
use meshgrad_train::events::Event;
use meshgrad_train::session::Session;

use crate::small_moe::{config, config_from};

/// Trains a model in `run`, with low-rank updates if `adapted`.
fn train(run: &Path, overrides: &[&str], adapted: bool) {
    let config = config(overrides);
    let device = Device::cpu();
    let session = Session::new(&config, &device).run_dir(run);
    let trained = session.train(|data, from| {
        let mut model = decoder::model(&config, data.tokenizer.vocab_size(), from)?;
        if adapted {
            model.materialize(&device, 5)?;
            adapt(&mut model)?;
        }
        Ok(model)
    });
    trained.unwrap();
}

type Values = BTreeMap<String, Vec<f32>>;

fn values(model: &dyn Module) -> Values {
    let all = [folder::params(&model), folder::buffers(&model)].map(Result::unwrap);
    let all = all.concat().into_iter();
    all.map(|named| (named.name, named.tensor.to_vec().unwrap())).collect()
}

/// The values that a run starts with, from `from`.
fn started(from: &Path, more: &[&str]) -> Values {
    let config = config_from(from, more);
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
    decoder::train(session).unwrap();
    seen.lock().unwrap().clone()
}

/// The values of a checkpoint: its averages, with low-rank updates merged.
fn stored(checkpoint: &Path) -> Values {
    let (device, options) = (Device::cpu(), ReadOptions::default());
    let mut model = decoder::load(checkpoint, &device, options).unwrap();
    if checkpoint::has_averages(checkpoint) {
        let sealed = Committed::open(checkpoint).unwrap();
        checkpoint::load_averages(&sealed, &model, options).unwrap();
    }
    model.merge_adapter().unwrap();
    values(&model)
}

fn flip_last_bit(file: PathBuf) {
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(file, bytes).unwrap();
}

/// A run starts with the averages of a checkpoint, with its low-rank updates merged into the
/// weights, and with its router biases, whether or not the run trains biases itself.
#[test]
fn a_run_starts_with_all_that_a_checkpoint_has() {
    let fast = ["optimizer.learning_rate=0.05"];
    let biases = [&fast[..], &["balancing.bias_update_rate=0.01"]].concat();
    let averages = [&biases[..], &["optimizer.ema_decay=0.5"]].concat();
    for (overrides, adapted) in
        [(&fast[..], false), (&biases, false), (&averages, false), (&fast, true), (&averages, true)]
    {
        let place = tempfile::tempdir().unwrap();
        let run = place.path().join("run");
        train(&run, overrides, adapted);
        let [older, newest] = [2, 4].map(|step| run.join(format!("step-00000{step}")));
        let expected = stored(&newest);
        assert_ne!(expected, stored(&older), "{overrides:?}");
        let has_biases = overrides.len() > 1;
        assert_eq!(expected.keys().any(|name| name.contains("bias")), has_biases);

        assert_eq!(started(&newest, &[]), expected, "{overrides:?} {adapted}");
        assert_eq!(started(&older, &[]), stored(&older), "{overrides:?} {adapted}");
        // A run stands for its newest checkpoint.
        assert_eq!(started(&run, &[]), expected, "{overrides:?} {adapted}");
    }
}

/// Configuration, tokenizer and weights are those of one checkpoint. Without verification, damaged
/// texts are not skipped.
#[test]
fn a_run_starts_from_one_checkpoint() {
    let place = tempfile::tempdir().unwrap();
    let run = place.path().join("run");
    train(&run, &[], false);
    let [older, newest] = [2, 4].map(|step| run.join(format!("step-00000{step}")));
    let theta = |config: &Config| config.tables["model"]["rope_theta"].as_float();
    let tokenizer = |config: &Config| String::from(config.data.tokenizer.clone());
    let of = |checkpoint: &Path| checkpoint.join("tokenizer.json").display().to_string();
    let configured = config_from(&run, &[]);
    assert_eq!(theta(&configured), Some(10000.0));
    assert_eq!(tokenizer(&configured), of(&newest));
    assert_eq!(tokenizer(&config_from(&newest, &[])), of(&newest));

    // Another value of the same length.
    let file = newest.join("config.json");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("\"rope_theta\": 10000.0"), "{text}");
    fs::write(&file, text.replace("\"rope_theta\": 1", "\"rope_theta\": 2")).unwrap();
    let configured = config_from(&run, &[]);
    assert_eq!((theta(&configured), tokenizer(&configured)), (Some(10000.0), of(&older)));
    assert_eq!(started(&run, &[]), stored(&older));

    let unverified = "checkpoint.verify=false";
    let configured = config_from(&run, &[unverified]);
    assert_eq!((theta(&configured), tokenizer(&configured)), (Some(20000.0), of(&newest)));
    fs::write(&file, &text).unwrap();
    assert_eq!(started(&run, &[unverified]), stored(&newest));

    // A checkpoint without a tokenizer, as other programs may write it.
    let mut staging = Staging::new(&run, "step-000009").unwrap();
    staging.write("config.json", text.as_bytes()).unwrap();
    staging.commit().unwrap();
    assert_eq!(tokenizer(&config_from(&run, &[])), of(&run));
}

/// If the weights of the newest checkpoint are damaged, older weights are taken only with the
/// configuration that was read.
#[test]
fn weights_never_meet_the_configuration_of_another_model() {
    let place = tempfile::tempdir().unwrap();
    let [run, other] = ["run", "other"].map(|name| place.path().join(name));
    train(&run, &[], false);
    train(&other, &["model.rope_theta=5000.0"], false);
    let [older, newest] = [2, 4].map(|step| run.join(format!("step-00000{step}")));
    fs::remove_dir_all(&older).unwrap();
    fs::rename(other.join("step-000002"), &older).unwrap();
    assert_eq!(started(&run, &[]), stored(&newest));

    flip_last_bit(newest.join("model.safetensors"));
    let (config, device) = (config_from(&run, &[]), Device::cpu());
    let session = Session::new(&config, &device).run_dir(place.path().join("new"));
    let error = decoder::train(session).unwrap_err().to_string();
    let expected = format!(
        "{} is damaged (`meshgrad ckpt verify` shows where), and {older} has another config.json; \
         to start from that one, name it: --from {older}",
        newest.display(),
        older = older.display()
    );
    assert_eq!(error, expected);
    assert!(!place.path().join("new").exists());

    // The way out that the error names.
    assert_eq!(started(&older, &[]), stored(&older));
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

    let (config, device) = (config_from(&run.join("step-000004"), &[]), Device::cpu());
    let session = Session::new(&config, &device).run_dir(place.path().join("new"));
    let error = decoder::train(session).unwrap_err().to_string();
    for expected in [
        "trainer/ema/model.safetensors is damaged",
        "restore one from a copy, or name another model; with --no-verify (train: --set",
    ] {
        assert!(error.contains(expected), "{error}");
    }
    assert!(!place.path().join("new").exists());

    // Without the manifest, the averages would be left out.
    fs::remove_file(run.join("step-000004/manifest.json")).unwrap();
    let session = Session::new(&config, &device).run_dir(place.path().join("new"));
    let error = decoder::train(session).unwrap_err().to_string();
    assert!(error.contains("it has no manifest.json"), "{error}");
}

fn adapt(model: &mut Decoder) -> meshgrad_train::Result<()> {
    let targets = vec!["layers.0.*.q_proj".to_owned(), "o_proj".to_owned()];
    let config = LoraConfig { rank: 3, alpha: 5.0, rslora: false, targets, base: None };
    model.add_adapter(&config)
}

/// `train_with` trains adapters on the weights of `model.from`, merged with the adapters that these
/// have. `Session::train`, which would train them on random weights, refuses.
#[test]
fn adapters_train_on_the_weights_that_a_run_starts_with() {
    let place = tempfile::tempdir().unwrap();
    let first = place.path().join("first");
    train(&first, &["optimizer.learning_rate=0.05"], true);
    let (config, device) = (config_from(&first, &["optimizer.learning_rate=0.05"]), Device::cpu());
    let run = place.path().join("run");
    decoder::train_with(Session::new(&config, &device).run_dir(&run), adapt).unwrap();
    let saved = decoder::load(&run.join("step-000004"), &device, ReadOptions::default()).unwrap();
    let (adapters, base): (Values, Values) =
        values(&saved).into_iter().partition(|(name, _)| name.contains("lora_"));
    assert_eq!(base, stored(&first.join("step-000004")));
    let of_b = |(name, _): &(&String, &Vec<f32>)| name.contains("lora_B");
    let mut of_b = adapters.iter().filter(of_b);
    assert!(of_b.all(|(_, values)| values.iter().any(|value| *value != 0.0)));

    let build = |config: &Config| {
        let session = Session::new(config, &device).run_dir(place.path().join("own"));
        session.train(|data, from| {
            let mut model = decoder::model(config, data.tokenizer.vocab_size(), from)?;
            adapt(&mut model)?;
            Ok(model)
        })
    };
    let error = build(&config).unwrap_err().to_string();
    let expected = format!("model.from = {}, but Session::train reads no weights", first.display());
    assert!(error.starts_with(&expected) && error.contains("decoder::train_with"), "{error}");
    assert!(!place.path().join("own").exists());
    build(&Config { weights_from: None, ..config.clone() }).unwrap();
}

/// A checkpoint of another model than the program builds is refused with the way out; if it has
/// adapters that the program does not add, the error says so.
#[test]
fn a_run_resumes_with_its_program() {
    let place = tempfile::tempdir().unwrap();
    let [adapted, plain] = ["adapted", "plain"].map(|name| place.path().join(name));
    train(&adapted, &[], true);
    train(&plain, &[], false);
    let (config, device) = (config(&[]), Device::cpu());
    let session = |run: &Path| Session::new(&config, &device).run_dir(run);

    let error = decoder::train(session(&adapted)).unwrap_err().to_string();
    for part in [
        "was saved with an adapter of rank 3 and scale 1.6666666666666667, but the model of this program has no",
        "resume it with the program and the [adapter] that started the run",
        "--from ",
    ] {
        assert!(error.contains(part), "{error}");
    }
    decoder::train_with(session(&adapted), adapt).unwrap();

    let error = decoder::train_with(session(&plain), adapt).unwrap_err().to_string();
    assert!(
        error.contains("was saved with no adapter, but the model of this program has an"),
        "{error}"
    );
    decoder::train(session(&plain)).unwrap();
}
