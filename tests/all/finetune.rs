//! Fine-tuning and evaluation of a Hugging Face folder, compared with transformers and torch's
//! AdamW on the same batches (`tests/parity/make_finetune.py`).

use std::fs;
use std::path::{Path, PathBuf};

use approx::{assert_relative_eq, assert_relative_ne, relative_eq};
use meshgrad::ckpt::{Dtype, FileWriter, TensorFile};
use meshgrad::runtime::Device;
use meshgrad::train::batches::TokenBatches;
use meshgrad::train::config::Config;
use meshgrad::train::data::Data;
use meshgrad::train::decoder::Tables;
use meshgrad::train::run_folder::RunFolder;
use serde_json::Value;

use crate::on_disk::flip;
use crate::test_dir::TestDir;

/// As in `make_finetune.py`.
const CONFIG: &str = r#"
data = { paths = ["text.txt"], val_fraction = 0.0 }
train = { steps = 20, batch_size = 2, micro_batch_size = 2, seq_len = 24 }
optimizer = { learning_rate = 2e-3, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1 }
schedule = { kind = "constant", warmup_steps = 0 }
sample = { every = 0, tokens = 4 }
checkpoint = { every = 10 }
"#;

/// The largest relative difference of a loss or norm.
const ROUNDING: f64 = 2e-5;

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/parity/finetune")
}

fn expected() -> Value {
    let text = fs::read_to_string(fixture().join("expected.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// A folder with the model, the text and a configuration.
fn dir() -> TestDir {
    let dir = TestDir::with(&[("tune.toml", CONFIG)]);
    fs::create_dir(dir.path("model")).unwrap();
    for entry in fs::read_dir(fixture().join("model")).unwrap() {
        let path = entry.unwrap().path();
        let name = Path::new("model").join(path.file_name().unwrap());
        fs::copy(&path, dir.path(name)).unwrap();
    }
    fs::copy(fixture().join("text.txt"), dir.path("text.txt")).unwrap();
    dir
}

fn metrics(run: &Path) -> Vec<Value> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines.collect()
}

/// The batches of the run, [S, B, T].
fn batches(dir: &TestDir) -> [Vec<i64>; 2] {
    let text = format!("data.paths=[{:?}]", dir.path("text.txt"));
    let sets = [text, "data.tokenizer=byte".to_owned()].map(|set| set.parse().unwrap());
    let config = Config::parse::<Tables>(CONFIG, "the test", &sets).unwrap();
    let folder = RunFolder::open(&dir.path("data")).unwrap();
    let data = Data::prepare(&config.data, &folder).unwrap();
    let (device, train) = (Device::cpu(), &config.train);
    let order = data.order(train.seq_len, train.batch_size, train.seed).unwrap();
    let batches = TokenBatches::new(data.tokens.training(), &device);
    let mut all = [Vec::new(), Vec::new()];
    for step in 1..=train.steps {
        for batch in batches.of_step(&order, step, train.batch_size, train.micro_batch_size) {
            let batch = batch.unwrap();
            all[0].extend(batch.ids.to_vec::<i64>().unwrap());
            all[1].extend(batch.labels.to_vec::<i64>().unwrap());
        }
    }
    all
}

/// The batches that transformers trained on equal the batches of the run. `MESHGRAD_BLESS=1` writes
/// them.
#[test]
fn both_train_on_the_same_batches() {
    let dir = dir();
    let bytes = batches(&dir)
        .map(|ids| -> Vec<u8> { ids.into_iter().flat_map(i64::to_le_bytes).collect() });
    let file = fixture().join("batches.safetensors");
    let names = ["input_ids", "labels"];
    if std::env::var_os("MESHGRAD_BLESS").is_some() {
        let mut writer = FileWriter::new();
        for name in names {
            writer.add(name, Dtype::I64, &[20, 2, 24]).unwrap();
        }
        let written = writer
            .save(&file, |tensor, sink| sink.append(&bytes[usize::from(tensor.name == "labels")]));
        written.unwrap();
    }
    let file = TensorFile::open(&file).unwrap();
    for (name, bytes) in names.iter().zip(&bytes) {
        assert!(&file.read(name).unwrap() == bytes, "{name}");
    }
}

/// Losses and gradient norms of 20 steps equal those of transformers with torch's AdamW.
#[test]
fn fine_tuning_matches_transformers() {
    let dir = dir();
    let train = ["train", "tune.toml", "--from", "model", "--run-dir", "run"];
    dir.succeeds(&train);
    let (records, expected) = (metrics(&dir.path("run")), expected());
    let steps = expected["steps"].as_array().unwrap();
    assert_eq!((records.len(), steps.len()), (20, 20));
    for (record, step) in records.iter().zip(steps) {
        for key in ["loss", "grad_norm"] {
            let (ours, theirs) = (record[key].as_f64().unwrap(), step[key].as_f64().unwrap());
            assert!(
                relative_eq!(ours, theirs, max_relative = ROUNDING),
                "{key} {theirs}: {record}"
            );
        }
    }
    let loss = |at: usize| steps[at]["loss"].as_f64().unwrap();
    assert!(loss(19) < 0.9 * loss(0));

    // Other constants give other losses.
    let set = ["--set", "optimizer.weight_decay=0.2", "--run-dir", "other"];
    dir.succeeds(&[&train[..4], &set].concat());
    let other = metrics(&dir.path("other"))[19]["loss"].as_f64();
    assert_relative_ne!(other.unwrap(), loss(19), max_relative = ROUNDING);
}

/// A run continues without the folder that it started from. Its checkpoints have the files of that
/// folder that other programs read, which declare its tokens that end a text.
#[test]
fn a_fine_tuned_checkpoint_stands_on_its_own() {
    let dir = dir();
    let train = ["train", "tune.toml", "--from", "model", "--run-dir"];
    dir.succeeds(&[&train[..], &["whole"]].concat());
    let stop = ["stopped", "--stop-after", "7"];
    dir.succeeds(&[&train[..], &stop].concat());
    let original = fs::read(dir.path("model/generation_config.json")).unwrap();
    fs::rename(dir.path("model"), dir.path("elsewhere")).unwrap();
    let output = dir.succeeds(&["train", "stopped/config.toml"]);
    assert!(output.contains("resuming after step 7"), "{output}");

    let [whole, stopped] = ["whole", "stopped"].map(|run| dir.path(run).join("step-000020"));
    for file in [
        "model.safetensors",
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "trainer/exp_avg/model.safetensors",
    ] {
        let [a, b] = [&whole, &stopped].map(|it| fs::read(it.join(file)).unwrap());
        assert!(a == b, "{file}");
    }
    assert!(fs::read(whole.join("generation_config.json")).unwrap() == original);
    let json = |file: &Path| -> Value { serde_json::from_slice(&fs::read(file).unwrap()).unwrap() };
    let config = json(&whole.join("config.json"));
    assert_eq!(config["eos_token_id"], serde_json::json!([256, 261]));
    assert_eq!(config["bos_token_id"], 260);
    assert_eq!(config["tie_word_embeddings"], true);
    // The checkpoint can be fine-tuned again.
    let again = ["train", "tune.toml", "--from", "whole/step-000020", "--stop-after", "1"];
    dir.succeeds(&again);
    let folders = fs::read_dir(dir.path("runs")).unwrap().count();
    assert_eq!(folders, 1);
}

/// A run stands for its newest intact checkpoint. The new run reports which checkpoint it takes,
/// what it takes besides weights, and what was skipped.
#[test]
fn a_run_is_fine_tuned_from_its_newest_intact_checkpoint() {
    let dir = dir();
    let averaged = ["--set", "optimizer.ema_decay=0.9", "--run-dir", "run"];
    let train = ["train", "tune.toml", "--from", "model"];
    dir.succeeds(&[&train[..], &averaged].concat());
    let again = |to: &str| {
        let train = ["train", "tune.toml", "--from", "run", "--stop-after", "1"];
        dir.succeeds(&[&train[..], &["--run-dir", to]].concat())
    };
    let output = again("newest");
    let expected = "starting with the weights of run/step-000020, with the averages of the run";
    assert!(output.contains(expected), "{output}");

    let weights = dir.path("run/step-000020/model.safetensors");
    flip(&weights, fs::metadata(&weights).unwrap().len() as usize - 1, 0);
    let output = again("older");
    assert!(output.contains("skipped: run/step-000020 is damaged"), "{output}");
    assert!(output.contains("weights of run/step-000010"), "{output}");
    let state = |run: &str| fs::read(dir.path(run).join("step-000001/model.safetensors"));
    assert!(state("newest").unwrap() != state("older").unwrap());
}

/// Checkpoints of a model trained from scratch also declare the token that ends a text.
#[test]
fn every_checkpoint_has_the_token_that_ends_a_text() {
    let dir = dir();
    let sizes = "model={ model_type = 'qwen3', hidden_size = 16, intermediate_size = 16, \
                 num_hidden_layers = 1, num_attention_heads = 2 }";
    let set = ["--set", sizes, "--set", "data.tokenizer=byte", "--stop-after", "1"];
    let command = [&["train", "tune.toml", "--run-dir", "run"][..], &set].concat();
    dir.succeeds(&command);
    for file in ["config.json", "generation_config.json"] {
        let text = fs::read_to_string(dir.path("run/step-000001").join(file)).unwrap();
        let json: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["eos_token_id"], 256, "{file}");
    }
}

#[test]
fn errors_of_fine_tuning_name_the_problem() {
    let dir = dir();
    let train = |from: &str, more: &[&str]| {
        let command = ["train", "tune.toml", "--from", from];
        let message = dir.fails(&[&command[..], more].concat());
        assert!(!dir.path("runs").exists(), "{message}");
        message
    };
    let message = train("nowhere", &[]);
    assert!(message.contains("model.from: nowhere/config.json"), "{message}");
    let message = train("model", &["--set", "model.hidden_size=16"]);
    assert!(
        message.contains("mismatched: `model.embed_tokens.weight` should be F32 [264, 16]"),
        "{message}"
    );
    let message = train("model", &["--set", "data.tokenizer=bpe:300"]);
    assert!(message.contains("model.vocab_size is 264"), "{message}");

    let weights = dir.path("model/model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(&weights, &bytes).unwrap();
    let message = train("model", &[]);
    assert!(message.contains("model/model.safetensors: element "), "{message}");
    assert!(message.contains(" is NaN"), "{message}");
    fs::write(&weights, &bytes[..end / 2]).unwrap();
    assert!(train("model", &[]).contains("model.safetensors"));
    fs::remove_file(dir.path("model/tokenizer.json")).unwrap();
    assert!(train("model", &[]).contains("model/tokenizer.json"));
}

/// Loss, perplexity and bits per byte equal those of transformers, for any batch size.
#[test]
fn evaluation_matches_transformers() {
    let dir = dir();
    let eval = |more: &[&str]| {
        let command = ["eval", "model", "--data", "text.txt", "--seq-len", "32"];
        dir.succeeds(&[&command[..], more].concat())
    };
    let number = |output: &str, before: &str, after: &str| -> f64 {
        let line = output.lines().find(|line| line.starts_with(before) && line.ends_with(after));
        let line = line.unwrap_or_else(|| panic!("no `{before}` in\n{output}"));
        let number = line.trim_start_matches(before).trim_end_matches(after).trim();
        number.parse().unwrap()
    };
    let expected = &expected()["evaluation"];
    for rows in ["1", "8", "1000"] {
        let output = eval(&["--batch-size", rows]);
        for (key, before, after) in [
            ("nats_per_token", "loss", " nats per token"),
            ("perplexity", "perplexity", ""),
            ("bits_per_byte", " ", " bits per byte"),
        ] {
            let (ours, theirs) = (number(&output, before, after), expected[key].as_f64().unwrap());
            assert_relative_eq!(ours, theirs, max_relative = ROUNDING);
        }
        let tokens = expected["tokens"].as_u64().unwrap();
        let tokens = format!("{},{:03} predicted tokens", tokens / 1000, tokens % 1000);
        assert!(output.contains(&tokens), "{output}");
    }
    assert_ne!(eval(&["--batch-size", "8"]), eval(&["--batch-size", "8", "--dtype", "bf16"]));

    for (arguments, expected) in [
        (&["eval", "nowhere", "--data", "text.txt"][..], "nowhere"),
        (&["eval", "model", "--data", "nowhere.txt"], "nowhere.txt"),
        (&["eval", "model", "--data", "text.txt", "--seq-len", "0"], "--seq-len"),
    ] {
        let message = dir.fails(arguments);
        assert!(message.contains(expected), "{message}");
    }
}
