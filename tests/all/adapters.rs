//! Adapters by configuration, compared with PEFT on the same batches (`tests/parity/make_adapters.py`).

use std::fs;
use std::path::{Path, PathBuf};

use approx::{assert_relative_eq, relative_eq};
use meshgrad::autograd::{Module, Param};
use meshgrad::ckpt::Dtype;
use meshgrad::runtime::Device;
use meshgrad::train::config::Config;
use meshgrad::train::decoder::{self, Tables};
use meshgrad::train::{memory, metrics};
use serde_json::Value;

use crate::ckpt_tool::models;
use crate::test_dir::TestDir;

/// As in `make_adapters.py`.
const CONFIG: &str = r#"
data = { paths = ["text.txt"], val_fraction = 0.0 }
train = { steps = 20, batch_size = 2, micro_batch_size = 2, seq_len = 24 }
optimizer = { learning_rate = 2e-2, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1 }
schedule = { kind = "constant", warmup_steps = 0 }
sample = { every = 0 }
checkpoint = { every = 10 }
"#;

/// The names of its cases, and what they train.
const CASES: [(&str, &str); 2] = [
    ("all", "{ targets = ['*_proj'], rank = 4, alpha = 6 }"),
    (
        "some",
        "{ targets = ['q_proj', 'v_proj', 'mlp.up_proj'], rank = 3, alpha = 5, rslora = true }",
    ),
];

/// The largest relative difference of a loss or norm.
const ROUNDING: f64 = 2e-5;

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/parity/adapters")
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let to = to.join(path.file_name().unwrap());
        match path.is_dir() {
            true => copy(&path, &to),
            false => drop(fs::copy(&path, to).unwrap()),
        }
    }
}

/// A folder with the fixture, the text and a configuration.
fn dir() -> TestDir {
    let dir = TestDir::with(&[("tune.toml", CONFIG)]);
    copy(&fixture(), dir.path("").as_path());
    let text = fixture().with_file_name("finetune").join("text.txt");
    fs::copy(text, dir.path("text.txt")).unwrap();
    dir
}

fn json(file: &Path) -> Value {
    serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
}

/// The loss on the text, in nats per token.
fn evaluated(dir: &TestDir, model: &str) -> f64 {
    let output = dir.succeeds(&["eval", model, "--data", "text.txt", "--seq-len", "32"]);
    let loss = output.lines().find_map(|line| line.strip_prefix("loss"));
    let loss = loss.and_then(|it| it.strip_suffix("nats per token"));
    loss.unwrap_or_else(|| panic!("{output}")).trim().parse().unwrap()
}

/// Losses and gradient norms of 20 steps equal those of PEFT with the same initial values, for which the
/// configuration is that of PEFT. The trained adapters compute the same, and so does PEFT's.
#[test]
fn training_matches_peft() {
    for (name, keys) in CASES {
        let dir = dir();
        let start = format!("adapter={{ from = '{name}/start' }}");
        dir.succeeds(&[
            "train",
            "tune.toml",
            "--from",
            "model",
            "--set",
            &start,
            "--run-dir",
            "run",
        ]);
        let records = metrics::read(&dir.path("run/metrics.jsonl")).unwrap();
        let expected = json(&dir.path(name).join("expected.json"));
        let steps = expected["steps"].as_array().unwrap();
        assert_eq!((records.len(), steps.len()), (20, 20));
        for (record, step) in records.iter().zip(steps) {
            let number = |key: &str| step[key].as_f64().unwrap();
            assert_relative_eq!(record.loss, number("loss"), max_relative = ROUNDING);
            assert_relative_eq!(record.grad_norm, number("grad_norm"), max_relative = ROUNDING);
        }

        let nats = expected["nats_per_token"].as_f64().unwrap();
        for adapter in [format!("{name}/trained"), "run".to_owned()] {
            assert_relative_eq!(evaluated(&dir, &adapter), nats, max_relative = ROUNDING);
        }
        // The files are those of PEFT.
        let [ours, theirs] = ["run/step-000020", &format!("{name}/trained")]
            .map(|folder| json(&dir.path(folder).join("adapter_config.json")));
        let targets = |config: &Value| {
            let targets = config["target_modules"].as_array().unwrap().iter();
            let mut targets: Vec<_> = targets.map(|name| name.to_string()).collect();
            targets.sort();
            targets
        };
        assert_eq!(targets(&ours), targets(&theirs));
        for (key, value) in ours.as_object().unwrap() {
            assert!(key == "target_modules" || theirs[key] == *value, "{key}");
        }
        assert!(!dir.path("run/step-000020/model.safetensors").exists());

        // From the same seed, with the keys that the file of PEFT implies.
        let sets = [format!("adapter={keys}"), "train.steps=1".to_owned()];
        let own = ["train", "tune.toml", "--from", "model", "--run-dir", "own", "--set"];
        dir.succeeds(&[&own[..], &[&sets[0], "--set", &sets[1]]].concat());
        let config = json(&dir.path("own/step-000001/adapter_config.json"));
        assert_eq!(config, ours);
    }
}

/// A run resumes bit for bit; its checkpoints have what is trained.
#[test]
fn adapters_resume() {
    let dir = dir();
    let set = format!("adapter={}", CASES[1].1);
    let train = ["train", "tune.toml", "--from", "model", "--set", &set, "--run-dir"];
    dir.succeeds(&[&train[..], &["whole"]].concat());
    dir.succeeds(&[&train[..], &["stopped", "--stop-after", "7"]].concat());
    let output = dir.succeeds(&["train", "stopped/config.toml"]);
    assert!(output.contains("resuming after step 7"), "{output}");
    let [whole, stopped] = ["whole", "stopped"].map(|run| dir.path(run).join("step-000020"));
    for file in
        ["adapter_model.safetensors", "adapter_config.json", "trainer/exp_avg/model.safetensors"]
    {
        let [a, b] = [&whole, &stopped].map(|it| fs::read(it.join(file)).unwrap());
        assert!(a == b, "{file}");
    }

    let again = |more: &[&str]| dir.fails(&[&["train", "stopped/config.toml"], more].concat());
    let error = again(&["--set", "adapter.alpha=6"]);
    assert!(error.contains("was saved with adapter.alpha 5.0, but it is now 6.0"), "{error}");
    copy(&dir.path("model"), &dir.path("other"));
    let error = again(&["--set", "model.from=other"]);
    assert!(error.contains("trains an adapter of model, but model.from is now other"), "{error}");
    // The folder was moved.
    fs::rename(dir.path("model"), dir.path("moved")).unwrap();
    let error = again(&[]);
    assert!(error.contains("model"), "{error}");
    dir.succeeds(&["train", "stopped/config.toml", "--set", "model.from=moved"]);
}

/// Invalid adapters are errors that name the key.
#[test]
fn errors_name_the_key() {
    let dir = dir();
    for (set, expected) in [
        ("adapter.rank=0", "adapter.rank: an adapter has rank 0, but must have at least 1"),
        ("adapter.targets=['q']", "the target `q` of the adapter matches no projection"),
        ("adapter.dropout=0.1", "unknown key `adapter.dropout`"),
        ("adapter.from='model'", "adapter.from = model has no adapter (adapter_config.json)"),
        ("adapter={ from = 'all/start', rank = 5 }", "does not fit the adapter of the model"),
        ("adapter={ rank = 2, targets = [] }", "adapter.targets: empty, so no adapter is trained"),
        ("train={ only = ['*norm*'] }", "adapter.targets: an adapter is trained alone"),
    ] {
        let adapter = ["train", "tune.toml", "--from", "model", "--set", "adapter.alpha=2"];
        let error = dir.fails(&[&adapter[..], &["--set", set]].concat());
        assert!(error.contains(expected), "{set}: {error}");
        assert!(!dir.path("runs").exists(), "{set}");
    }
    let error = dir.fails(&["train", "tune.toml", "--set", "adapter.rank=2"]);
    assert!(error.contains("name it: --from DIR (model.from)"), "{error}");
    let error =
        dir.fails(&["train", "tune.toml", "--from", "all/trained", "--set", "adapter.rank=2"]);
    assert!(error.contains("model.from = all/trained has an adapter"), "{error}");
}

/// The losses and norms of a run with the adapter of the case `all`.
fn trained(dir: &TestDir, run: &str, more: &[&str]) -> Vec<(f64, f64)> {
    let train = ["train", "tune.toml", "--from", "model", "--run-dir", run];
    let adapter = ["--set", "adapter={ from = 'all/trained' }", "--set", "train.steps=4"];
    dir.succeeds(&[&train[..], &adapter, more].concat());
    let records = metrics::read(&dir.path(run).join("metrics.jsonl")).unwrap();
    records.iter().map(|it| (it.loss, it.grad_norm)).collect()
}

fn is_near(a: &[(f64, f64)], b: &[(f64, f64)]) -> bool {
    let near = |a: f64, b: f64, tolerance: f64| relative_eq!(a, b, max_relative = tolerance);
    let pairs = a.iter().zip(b);
    a.len() == b.len()
        && pairs.into_iter().all(|(a, b)| near(a.0, b.0, 1e-5) && near(a.1, b.1, 1e-4))
}

/// Ranks have the losses of one rank, and their checkpoints the tensors, which any mesh resumes.
#[test]
fn adapters_train_on_ranks_as_on_one() {
    let dir = dir();
    let one = trained(&dir, "one", &[]);
    assert_eq!(one.len(), 4);
    let nats = evaluated(&dir, "one");
    for degree in ["tp", "dp_shard", "pp", "cp_shard"] {
        let set = format!("parallel.{degree}=2");
        let of_ranks = trained(&dir, degree, &["--ranks", "2", "--set", &set]);
        assert!(is_near(&of_ranks, &one), "{degree}: {of_ranks:?}, not {one:?}");
        assert_relative_eq!(evaluated(&dir, degree), nats, max_relative = ROUNDING);

        let stopped = format!("{degree}-stopped");
        trained(&dir, &stopped, &["--ranks", "2", "--set", &set, "--stop-after", "2"]);
        let resumed =
            trained(&dir, &stopped, &["--ranks", "1", "--set", &format!("parallel.{degree}=1")]);
        assert!(is_near(&resumed, &one), "{degree}: {resumed:?}, not {one:?}");
    }
    // A slightly larger update is seen, so a lost or repeated one would be.
    let larger = trained(&dir, "larger", &["--set", "adapter.alpha=6.1"]);
    assert!(!is_near(&larger, &one), "{larger:?}");
}

/// In bf16, frozen weights are stored in bf16 only: as many bytes less as full training has for masters, copies,
/// gradients and the state of AdamW.
#[test]
fn frozen_weights_have_one_copy() {
    let sizes = "model={ model_type = 'llama', vocab_size = 257, hidden_size = 128, intermediate_size = 256, \
                 num_hidden_layers = 4, num_attention_heads = 4, num_key_value_heads = 4, \
                 tie_word_embeddings = false }";
    let needed = |more: &[&str]| {
        let sets = [
            "data.tokenizer=byte",
            "train.dtype=bf16",
            "train.seq_len=16",
            "train.batch_size=1",
            sizes,
        ];
        let sets = sets.iter().chain(more).map(|set| set.parse().unwrap());
        let config = Config::parse::<Tables>("", "the test", &sets.collect::<Vec<_>>()).unwrap();
        let model = decoder::model(&config, 257, None).unwrap();
        let elements = |param: &Param| param.shape().elements() as u64;
        let trained: u64 = model.trained().iter().map(elements).sum();
        let all: u64 = model.params().iter().map(elements).sum();
        let needed = memory::predict(&model, &config, Device::cpu().properties()).unwrap();
        (needed, trained, all - trained)
    };
    let dir = dir();
    let from = format!("model.from={:?}", dir.path("model"));
    let (full, parameters, none) = needed(&[]);
    let (adapted, trained, frozen) =
        needed(&[&from, "adapter.targets=['*_proj']", "adapter.rank=4"]);
    assert_eq!((none, frozen), (0, parameters));
    // f32 masters, bf16 copies, f32 gradients and two f32 states, or bf16 alone.
    let [full_bytes, adapted_bytes] = [18 * parameters, 2 * frozen + 18 * trained];
    let (saved, expected) = (full.device - adapted.device, full_bytes - adapted_bytes);
    assert!(
        saved.abs_diff(expected) < expected / 10,
        "{saved} of {expected}: {full:?}, {adapted:?}"
    );
    assert_eq!(adapted.saving, 12 * trained);
    println!("{parameters} parameters: {full:?}, with an adapter of {trained}: {adapted:?}");
}

fn floats(tensor: &models::Tensor) -> Vec<f32> {
    let bytes = &tensor.bytes;
    match tensor.dtype {
        Dtype::F32 => {
            bytes.chunks_exact(4).map(|it| f32::from_le_bytes(it.try_into().unwrap())).collect()
        }
        _ => {
            let halves = bytes.chunks_exact(2).map(|it| u16::from_le_bytes(it.try_into().unwrap()));
            halves.map(|bits| f32::from_bits(u32::from(bits) << 16)).collect()
        }
    }
}

/// A merged model is a plain folder that computes what the adapter computes. Subtracted again, weights have the
/// bits of the base if the merged ones had more.
#[test]
fn adapters_are_merged_and_subtracted() {
    let dir = dir();
    dir.succeeds(&["ckpt", "convert", "model", "bf16", "--dtype", "BF16"]);
    for (base, dtype) in [("model", "F32"), ("bf16", "BF16")] {
        let name = |text: &str| format!("{base}-{text}");
        let (merged, back) = (name("merged"), name("back"));
        let merge = ["ckpt", "merge", "all/trained", &merged, "--base", base, "--dtype", "F32"];
        let output = dir.succeeds(&merge);
        assert!(output.contains("14 low-rank updates"), "{output}");
        assert!(!dir.path(&merged).join("adapter_config.json").exists());
        if base == "model" {
            let expected = json(&dir.path("all/expected.json"))["merged_nats_per_token"].as_f64();
            assert_relative_eq!(
                evaluated(&dir, &merged),
                expected.unwrap(),
                max_relative = ROUNDING
            );
        }
        dir.succeeds(&["ckpt", "unmerge", &merged, "all/trained", &back, "--dtype", dtype]);
        let [expected, actual, sums] = [base, &back, &merged].map(|it| models::read(&dir.path(it)));
        assert!(expected.keys().eq(actual.keys()));
        for (tensor, expected) in &expected {
            let actual = &actual[tensor];
            if !tensor.ends_with("proj.weight") {
                assert!(expected.bytes == actual.bytes, "{base} {tensor}");
                continue;
            }
            let sums = floats(&sums[tensor]);
            let all = floats(expected).into_iter().zip(floats(actual)).zip(sums);
            for ((expected, actual), sum) in all {
                let is_exact = expected.abs() > sum.abs() / 32768.0;
                let tolerance = if dtype == "BF16" && is_exact { 0.0 } else { 1e-6 };
                assert!((expected - actual).abs() <= tolerance, "{tensor}: {expected} {actual}");
            }
        }
    }

    // A run that starts from an adapter merges it.
    let slow = ["--set", "optimizer.learning_rate=1e-9", "--set", "train.steps=1"];
    let tune = ["train", "tune.toml", "--from", "all/trained", "--run-dir", "tuned"];
    let output = dir.succeeds(&[&tune[..], &slow].concat());
    assert!(output.contains("its adapter merged"), "{output}");
    let trained = evaluated(&dir, "all/trained");
    assert_relative_eq!(evaluated(&dir, "tuned"), trained, max_relative = ROUNDING);

    let set = "adapter={ from = 'all/trained' }";
    let train = ["train", "tune.toml", "--from", "model", "--set", set, "--stop-after", "1"];
    dir.succeeds(&[&train[..], &["--run-dir", "run"]].concat());
    dir.succeeds(&["ckpt", "merge", "run", "of-run"]);
    dir.succeeds(&["ckpt", "export", "run", "--hf", "exported", "--dtype", "F32"]);
    for folder in ["of-run", "exported"] {
        assert_relative_eq!(
            evaluated(&dir, folder),
            evaluated(&dir, "run"),
            max_relative = ROUNDING
        );
    }
    let output = dir.succeeds(&["ckpt", "inspect", "all/trained"]);
    assert!(output.contains("28 in 1 file"), "{output}");

    let error = dir.fails(&["ckpt", "merge", "model", "new"]);
    assert!(error.contains("model has no adapter_config.json"), "{error}");
    let error = dir.fails(&["ckpt", "merge", "all/trained", "new", "--base", "nowhere"]);
    assert!(error.contains("nowhere"), "{error}");
    let narrow = fixture().with_file_name("fixtures").join("dense-gqa-tied");
    let error = dir.fails(&["ckpt", "unmerge", narrow.to_str().unwrap(), "some/trained", "new"]);
    assert!(error.contains("the adapter in some/trained does not fit the weights in "), "{error}");
}

/// `train.only` trains the parameters that its patterns match; the others keep their bits.
#[test]
fn some_parameters_are_trained_only() {
    let dir = dir();
    let train = ["train", "tune.toml", "--from", "model", "--set", "train.steps=3"];
    let only = ["--set", "train.only=['*.q_proj.weight', '*norm.weight']"];
    dir.succeeds(&[&train[..], &only, &["--run-dir", "run"]].concat());
    let [before, after] = ["model", "run/step-000003"].map(|it| models::read(&dir.path(it)));
    for (name, tensor) in &before {
        let is_trained = name.ends_with(".q_proj.weight") || name.ends_with("norm.weight");
        assert_eq!(tensor.bytes != after[name].bytes, is_trained, "{name}");
    }
    let state = dir.path("run/step-000003/trainer/exp_avg");
    assert_eq!(models::read(&state).len(), 2 + 5);

    let losses = |run: &str| {
        let records = metrics::read(&dir.path(run).join("metrics.jsonl")).unwrap();
        records.iter().map(|it| (it.loss, it.grad_norm)).collect::<Vec<_>>()
    };
    for degree in ["tp", "dp_shard", "pp"] {
        let set = format!("parallel.{degree}=2");
        let ranks = ["--ranks", "2", "--set", &set, "--run-dir", degree];
        dir.succeeds(&[&train[..], &only, &ranks].concat());
        assert!(is_near(&losses(degree), &losses("run")), "{degree}");
    }

    let again = ["train", "run/config.toml", "--set", "train.only=['*norm.weight']"];
    let error = dir.fails(&again);
    assert!(error.contains("was saved with train.only"), "{error}");
    let none = ["--set", "train.only=['*.qproj.*']", "--run-dir", "none"];
    let error = dir.fails(&[&train[..], &none].concat());
    assert!(
        error.contains("train.only: pattern `*.qproj.*` matches no parameter; the most"),
        "{error}"
    );
}
