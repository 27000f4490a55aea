//! The program from its users' view: training, exact resume, sampling, invalid input.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use meshgrad::autograd::Module;
use meshgrad::ckpt::{Dtype, FileWriter, Folder, discover};
use meshgrad::models::lora::LoraConfig;
use meshgrad::runtime::Device;
use meshgrad::train::config::Config;
use meshgrad::train::decoder;
use meshgrad::train::events::Event;
use meshgrad::train::session::Session;

use crate::on_disk::{checkpoint_files, flip};
use crate::test_dir::{MESHGRAD, Output, TestDir};

/// A small run over this repository's own text.
const CONFIG: &str = r#"
[model]
model_type = "qwen3_moe"
hidden_size = 32
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
num_experts = 4
num_experts_per_tok = 2
moe_intermediate_size = 32

[data]
paths = ["TEXT"]
tokenizer = "byte"
val_fraction = 0.1

[train]
steps = 8
batch_size = 4
micro_batch_size = 2
seq_len = 32

[schedule]
warmup_steps = 2

[checkpoint]
every = 3
keep = 10

[sample]
every = 100
prompt = "pub fn "
tokens = 8

[log]
val_every = 4
val_batches = 2
"#;

/// A folder with a configuration and texts.
fn dir() -> TestDir {
    let dir = TestDir::new();
    let text = dir.path("text");
    fs::create_dir(&text).unwrap();
    for (name, content) in [
        ("one.rs", include_str!("program.rs")),
        ("two.md", include_str!("../../CONTRIBUTING.md")),
        ("three.rs", include_str!("parity.rs")),
    ] {
        fs::write(text.join(name), content).unwrap();
    }
    let config = CONFIG.replace("TEXT", text.to_str().unwrap());
    fs::write(dir.path("small.toml"), config).unwrap();
    dir
}

/// Trains in the folder `run`, which must succeed, and returns the output.
fn train(dir: &TestDir, run: &str, arguments: &[&str]) -> String {
    dir.succeeds(&[&["train", "small.toml", "--run-dir", run], arguments].concat())
}

fn assert_same_checkpoint(a: &Path, b: &Path) {
    let (a, b) = (checkpoint_files(a), checkpoint_files(b));
    assert!(a.keys().eq(b.keys()));
    for (path, content) in &a {
        assert!(*content == b[path], "{} differs", path.display());
    }
}

/// The records of metrics.jsonl without times.
fn metrics(run: &Path) -> Vec<serde_json::Value> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let line = |line: &str| {
        let mut record: serde_json::Value = serde_json::from_str(line).unwrap();
        let fields = record.as_object_mut().unwrap();
        fields.remove("tokens_per_s").unwrap();
        fields.remove("save_stall_s"); // only after a save
        record
    };
    text.lines().map(line).collect()
}

/// A run that is stopped after any step and resumed saves the same bits and writes the same metrics
/// as an uninterrupted one.
#[test]
fn resuming_is_exact() {
    let dir = dir();
    train(&dir, "whole", &[]);
    for stop in ["1", "3", "5"] {
        let run = format!("stopped-{stop}");
        train(&dir, &run, &["--stop-after", stop]);
        let output = train(&dir, &run, &[]);
        assert!(output.contains(&format!("resuming after step {stop}")), "{output}");
        let last = "step-000008";
        assert_same_checkpoint(&dir.path("whole").join(last), &dir.path(&run).join(last));
        assert_eq!(metrics(&dir.path("whole")), metrics(&dir.path(&run)));
    }
}

/// The number of threads changes no bit, in f32 and bf16.
#[test]
fn threads_change_no_bit() {
    let dir = dir();
    for dtype in ["f32", "bf16"] {
        let set = format!("train.dtype={dtype}");
        let run = |threads: &str| {
            let run = format!("{dtype}-{threads}");
            train(&dir, &run, &["--threads", threads, "--set", &set, "--stop-after", "3"]);
            dir.path(&run).join("step-000003")
        };
        let one = run("1");
        assert_same_checkpoint(&one, &run("2"));
        assert_same_checkpoint(&one, &run("5"));
    }
}

/// Activation checkpointing changes no bit.
#[test]
fn activation_checkpointing_changes_no_bit() {
    let dir = dir();
    train(&dir, "saved", &["--stop-after", "3"]);
    let set = ["--set", "train.activation_checkpointing=true", "--stop-after", "3"];
    train(&dir, "recomputed", &set);
    let of = |run: &str| dir.path(run).join("step-000003");
    assert_same_checkpoint(&of("saved"), &of("recomputed"));
}

/// An incomplete checkpoint is skipped, and the run resumes from the one before.
#[test]
fn incomplete_checkpoints_are_never_used() {
    let dir = dir();
    train(&dir, "run", &["--stop-after", "6"]);
    let newest = dir.path("run").join("step-000006");
    fs::remove_file(newest.join("manifest.json")).unwrap();
    assert_eq!(discover(dir.path("run")).unwrap().len(), 1);

    let output = train(&dir, "run", &[]);
    for expected in [
        "skipped: run/step-000006",
        "it has no manifest.json",
        "moved checkpoints after step 3 to run/set-aside-1",
        "resuming after step 3",
    ] {
        assert!(output.contains(expected), "{output}");
    }
    train(&dir, "whole", &[]);
    let last = "step-000008";
    assert_same_checkpoint(&dir.path("whole").join(last), &dir.path("run").join(last));
    assert_eq!(metrics(&dir.path("whole")), metrics(&dir.path("run")));
}

/// A run from scratch keeps the old checkpoints and metrics in `set-aside-1`.
#[test]
fn starting_from_scratch_sets_the_old_run_aside() {
    let dir = dir();
    train(&dir, "run", &["--stop-after", "3"]);
    let output = train(&dir, "run", &["--resume", "never", "--stop-after", "2"]);
    assert!(
        output.contains("moved the checkpoints and metrics of an earlier run to run/set-aside-1"),
        "{output}"
    );
    assert!(dir.path("run").join("set-aside-1/step-000003/model.safetensors").exists());
    assert!(dir.path("run").join("set-aside-1/metrics.jsonl").exists());
    assert_eq!(metrics(&dir.path("run")).len(), 2);
}

/// Settings that differ from those of the run are listed.
#[test]
fn changed_settings_are_listed() {
    let dir = dir();
    train(&dir, "run", &["--stop-after", "2"]);
    let sets = ["optimizer.learning_rate=3e-3", "train.micro_batch_size=4"];
    let [rate, rows] = sets;
    let output = train(&dir, "run", &["--set", rate, "--set", rows, "--stop-after", "3"]);
    let changes: Vec<&str> = output.lines().filter(|it| it.contains("changed: ")).collect();
    let expected =
        ["changed: optimizer.learning_rate 1e-3 -> 3e-3", "changed: train.micro_batch_size 2 -> 4"];
    assert_eq!(changes, expected);
    assert!(!train(&dir, "run", &["--set", rate, "--set", rows]).contains("changed: "));
}

/// The commands that a run suggests work as they are, in a folder whose name has to be quoted.
#[test]
fn the_suggested_commands_work() {
    let dir = dir();
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", Path::new(MESHGRAD).parent().unwrap().display());
    let sets = ["--set", "optimizer.learning_rate=2e-3", "--set", "sample.every=0"];
    let suggested = |output: &str| -> Vec<String> {
        let (_, next) = output.split_once("next:\n").unwrap();
        next.lines().map(|line| line.trim().to_owned()).collect()
    };
    let run = |command: &str| {
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).env("PATH", &path).current_dir(dir.path(""));
        Output::of(&mut shell).success()
    };

    let stopped = train(&dir, "it's my run", &[&sets[..], &["--stop-after", "2"]].concat());
    let [sample, resume, other] = &suggested(&stopped)[..] else { panic!("{stopped}") };
    assert!(
        run(&sample.replace("meshgrad sample", "meshgrad sample --tokens 2"))
            .starts_with("fn main")
    );
    let finished = run(resume);
    assert!(finished.contains("resuming after step 2"), "{finished}");
    assert!(!finished.contains("changed: "), "{finished}");
    assert!(finished.contains("checkpoint  it's my run/step-000008"), "{finished}");
    let [_, longer, _] = &suggested(&finished)[..] else { panic!("{finished}") };
    let longer = run(longer);
    assert!(longer.contains("changed: train.steps 8 -> 16"), "{longer}");
    assert!(longer.contains("checkpoint  it's my run/step-000016"), "{longer}");
    let other = other.replace("YOUR/TEXT", "text");
    let small = "--set data.tokenizer=byte --set train.steps=1 --set train.batch_size=1 \
                 --set train.micro_batch_size=1 --set train.seq_len=8 --set log.val_batches=1 \
                 --set sample.tokens=1 --set model.hidden_size=32 --set model.num_hidden_layers=1";
    assert!(run(&format!("{other} {small}")).contains("checkpoint  runs/mine/step-000001"));
}

/// The same command resumes its run. A command that trains something else has another folder.
#[test]
fn default_folders_follow_the_command() {
    let dir = dir();
    let train = |arguments: &[&str]| dir.succeeds(&[&["train", "small.toml"], arguments].concat());
    let first = train(&["--stop-after", "1"]);
    assert!(first.contains("checkpoint  runs/small/step-000001"), "{first}");
    let wide = ["--set", "model.hidden_size=16", "--stop-after", "1"];
    let other = train(&wide);
    let expected = "checkpoint  runs/small,model.hidden_size=16/step-000001";
    assert!(other.contains(expected), "{other}");
    let longer = train(&["--set", "train.steps=9", "--stop-after", "2"]);
    assert!(longer.contains("resuming after step 1"), "{longer}");
}

/// A start that fails leaves no folder behind, and changes no file of an existing one.
#[test]
fn a_failed_start_leaves_nothing_behind() {
    let dir = dir();
    let before = dir.names("");
    let failing = [
        "model.vocab_size=10",
        "train.seq_len=1000000",
        "data.paths=[\"nowhere\"]",
        "model.num_attention_heads=3",
    ];
    for set in failing {
        dir.fails(&["train", "small.toml", "--set", set]);
        assert_eq!(dir.names(""), before, "{set}");
    }

    train(&dir, "run", &["--stop-after", "1"]);
    let run = dir.path("run");
    let contents = || -> Vec<Vec<u8>> {
        let names = ["tokenizer.json", "tokens.bin", "config.toml", "metrics.jsonl"];
        names.map(|name| fs::read(run.join(name)).unwrap()).into()
    };
    let (names, files) = (dir.names("run"), contents());
    let other_text = "data.paths=[\"text/one.rs\"]";
    for set in failing {
        let command = ["train", "small.toml", "--run-dir", "run", "--set", other_text, "--set"];
        for resume in ["auto", "never"] {
            dir.fails(&[&command[..], &[set, "--resume", resume]].concat());
            assert!(contents() == files && dir.names("run") == names, "{set}, {resume}");
        }
    }
}

#[test]
fn checkpoints_are_hugging_face_folders_that_can_be_sampled() {
    let dir = dir();
    let output = train(&dir, "run", &[]);
    for expected in ["device", "model", "step 8/8", "sample after step 8", "loss.svg", "next:"] {
        assert!(output.contains(expected), "no `{expected}` in\n{output}");
    }
    let checkpoint = dir.path("run").join("step-000008");
    let names: Vec<String> =
        Folder::open(&checkpoint).unwrap().tensors().map(|tensor| tensor.name.clone()).collect();
    assert!(names.contains(&"model.layers.1.mlp.experts.3.down_proj.weight".into()), "{names:?}");

    let sample =
        |folder: &str| dir.succeeds(&["sample", folder, "--prompt", "fn ", "--tokens", "12"]);
    assert!(sample("run").starts_with("fn "));
    assert_eq!(sample("run"), sample("run/step-000008"));
}

/// `sample` and `forward` detect damage too. For a run, they take the previous checkpoint.
#[test]
fn damaged_weights_are_not_used() {
    let dir = dir();
    train(&dir, "run", &["--stop-after", "6"]);
    let sample = |folder: &str, more: &[&str]| {
        let command = ["sample", folder, "--prompt", "fn ", "--tokens", "12"];
        dir.run(&[&command[..], more].concat())
    };
    let earlier = sample("run/step-000003", &[]).stdout;
    let model = dir.path("run/step-000006/model.safetensors");
    flip(&model, fs::metadata(&model).unwrap().len() as usize - 1, 0);

    let of_run = sample("run", &[]);
    assert_eq!(of_run.stdout, earlier);
    let note = of_run.stderr;
    let expected = "skipped: run/step-000006 is damaged: model.safetensors is damaged: bytes 0..";
    assert!(note.starts_with(expected), "{note}");
    let damaged = "run/step-000006";
    let message = dir.fails(&["sample", damaged]);
    assert!(message.contains("model.safetensors is damaged"), "{message}");
    sample(damaged, &["--no-verify"]).success();
    let forward = ["forward", damaged, "--input", "in.safetensors", "--output", "out.safetensors"];
    let message = dir.fails(&forward);
    assert!(message.contains("model.safetensors is damaged"), "{message}");
    let message = dir.fails(&[&forward[..], &["--no-verify"]].concat());
    assert!(message.contains("in.safetensors"), "{message}");

    // A run stands for its newest intact checkpoint.
    let mut writer = FileWriter::new();
    writer.add("input_ids", Dtype::I64, &[1, 3]).unwrap();
    let ids: Vec<u8> = [1i64, 2, 3].iter().flat_map(|id| id.to_le_bytes()).collect();
    let input = dir.path("in.safetensors");
    writer.save(&input, |_, sink| sink.append(&ids)).unwrap();
    let logits = |folder: &str| {
        let command = ["forward", folder, "--input", "in.safetensors", "--output", "out"];
        let output = dir.run(&command);
        assert_eq!(output.code, 0, "{}", output.stderr);
        (output.stderr, fs::read(dir.path("out")).unwrap())
    };
    let (note, of_run) = logits("run");
    assert!(note.starts_with(expected), "{note}");
    assert_eq!((String::new(), of_run), logits("run/step-000003"));
}

/// Trains in the folder `run`, with low-rank updates of a frozen model if `adapted`. Returns the
/// last sample.
fn last_sample(dir: &TestDir, run: &str, sets: &[&str], adapted: bool) -> String {
    let sets: Vec<_> = sets.iter().map(|set| set.parse().unwrap()).collect();
    let file = dir.path("small.toml");
    let config = Config::read::<decoder::Tables>(Some(&file), &sets).unwrap();
    let device = Device::cpu();
    let sample = Arc::new(Mutex::new(String::new()));
    let seen = sample.clone();
    let session =
        Session::new(&config, &device).run_dir(dir.path(run)).subscribe("sample", move |event| {
            if let Event::Sampled { text, .. } = event {
                *seen.lock().unwrap() = text.to_owned();
            }
            Ok(())
        });
    let trained = session.train(|data, from| {
        let mut model = decoder::model(&config, data.tokenizer.vocab_size(), from)?;
        if adapted {
            model.materialize(&device, 5)?;
            let targets = vec!["q_proj".to_owned(), "o_proj".to_owned()];
            let adapter = LoraConfig { rank: 3, alpha: 5.0, rslora: false, targets, base: None };
            model.add_adapter(&adapter)?;
        }
        Ok(model)
    });
    trained.unwrap();
    sample.lock().unwrap().clone()
}

/// `meshgrad sample` generates the text that the run generated at its end. It uses the averages of
/// the weights, if the run has them, and the low-rank updates.
#[test]
fn samples_are_those_of_the_run() {
    let dir = dir();
    let fast = ["optimizer.learning_rate=0.05", "sample.tokens=40"];
    let averaged = [&fast[..], &["optimizer.ema_decay=0.9"]].concat();
    let sample = |run: &str, more: &[&str]| {
        // The seed is the run's seed plus the step.
        let run = ["sample", run, "--prompt", "pub fn ", "--tokens", "40", "--seed", "9"];
        let output = dir.run(&[&run[..], more].concat());
        assert_eq!(output.code, 0, "{}", output.stderr);
        (output.stdout.trim_end_matches('\n').to_owned(), output.stderr)
    };
    for (run, sets, adapted) in [
        ("plain", &fast[..], false),
        ("averaged", &averaged, false),
        ("adapted", &fast, true),
        ("averaged-and-adapted", &averaged, true),
    ] {
        let expected = last_sample(&dir, run, sets, adapted);
        let (text, note) = sample(run, &[]);
        assert_eq!(text, expected.trim_end_matches('\n'), "{run}");
        let (raw, raw_note) = sample(run, &["--raw"]);
        match run.starts_with("averaged") {
            false => assert_eq!((raw, note.as_str()), (text, "")),
            true => {
                assert_ne!(raw, text, "{run}");
                assert!(note.starts_with("averages of the weights of averaged"), "{note}");
                assert!(raw_note.contains("not their averages"), "{raw_note}");
            }
        }
    }

    let unchanged = sample("adapted", &[]);
    let adapters = dir.path("adapted/step-000008/adapter_config.json");
    let text = fs::read_to_string(&adapters).unwrap();
    fs::write(&adapters, text.replace("\"lora_alpha\": 5", "\"lora_alpha\": 9")).unwrap();
    // A changed file is damage, unless the check is off.
    dir.fails(&["sample", "adapted/step-000008"]);
    assert_ne!(sample("adapted", &["--no-verify"]), unchanged);
    fs::write(&adapters, text.replace("\"r\": 3", "\"r\": 4")).unwrap();
    let error = dir.fails(&["sample", "adapted/step-000008", "--no-verify"]);
    assert!(error.contains("but with r = 4 `model.layers.0.self_attn.q_proj` needs"), "{error}");
}

#[test]
fn errors_of_invalid_input_name_it() {
    let dir = dir();
    let train = |arguments: &[&str]| {
        dir.fails(&[&["train", "small.toml", "--run-dir", "run"], arguments].concat())
    };
    let cases: [(&[&str], &str); 9] = [
        (&["--set", "train.stepz=3"], "did you mean"),
        (&["--set", "train.steps=many"], "train.steps"),
        (&["--set", "model.hidden_sise=3"], "hidden_sise"),
        (&["--set", "model.num_experts_per_tok=9"], "num_experts_per_tok"),
        (&["--set", "model.num_attention_heads=3"], "num_key_value_heads"),
        (&["--set", "train.seq_len=10000000"], "seq_len"),
        (&["--set", "train.micro_batch_size=3"], "micro_batch_size"),
        (&["--set", "data.paths=[\"nowhere\"]"], "nowhere"),
        (&["--resume", "nowhere"], "nowhere"),
    ];
    for (arguments, expected) in cases {
        let message = train(arguments);
        assert!(message.contains(expected), "no `{expected}` in: {message}");
    }
    assert!(dir.fails(&["train", "nowhere.toml"]).contains("nowhere.toml"));
    assert!(dir.fails(&["sample", "nowhere"]).contains("nowhere"));

    fs::write(dir.path("file"), "").unwrap();
    let unwritable = ["train", "small.toml", "--run-dir", "file/run"];
    assert!(dir.fails(&unwritable).contains("--run-dir"));
}

/// A loss that is not finite ends the run with an error, and checkpoints saved before stay intact.
#[test]
fn a_loss_that_is_not_finite_ends_the_run() {
    let dir = dir();
    train(&dir, "run", &["--stop-after", "3"]);
    let before = checkpoint_files(&dir.path("run/step-000003"));
    let huge = ["train", "small.toml", "--run-dir", "run", "--set", "optimizer.learning_rate=1e30"];
    let message = dir.fails(&huge);
    assert!(message.contains("learning_rate") && message.contains("step-000003"), "{message}");
    assert!(before == checkpoint_files(&dir.path("run/step-000003")));
}

/// The emulated GPU trains, counts launches, and generates text.
#[test]
fn the_program_computes_on_a_gpu() {
    let dir = dir();
    let output = train(&dir, "run", &["--device", "emulator", "--stop-after", "2"]);
    assert!(output.contains("emulator:0"), "{output}");
    let launches = |record: &serde_json::Value| record["kernel_launches"].as_u64().unwrap();
    let records = metrics(&dir.path("run"));
    assert!(launches(&records[0]) > 100);
    assert_eq!(launches(&records[0]), launches(&records[1]));

    let sample = ["sample", "run", "--prompt", "fn", "--tokens", "3"];
    let text = dir.succeeds(&[&sample[..], &["--device", "emulator"]].concat());
    assert!(text.starts_with("fn"));
    dir.fails(&["train", "small.toml", "--device", "emulator:1000"]);
}

#[test]
fn usage_errors_exit_with_2() {
    let dir = dir();
    for arguments in [&["trian"] as &[&str], &["train", "--steps"], &[]] {
        assert_eq!(dir.run(arguments).code, 2, "{arguments:?}");
    }
}

/// Invalid model folders are errors that name the problem.
#[test]
fn invalid_safetensors_are_errors() {
    let dir = dir();
    train(&dir, "run", &["--stop-after", "1"]);
    let good = dir.path("run").join("step-000001");
    let model = fs::read(good.join("model.safetensors")).unwrap();
    let header = u64::from_le_bytes(model[..8].try_into().unwrap()) as usize;
    let text = String::from_utf8(model[8..8 + header].to_vec()).unwrap();

    let with_header = |text: &str| {
        let data = &model[8 + header..];
        [&(text.len() as u64).to_le_bytes(), text.as_bytes(), data].concat()
    };
    let cases: [(&str, Vec<u8>); 5] = [
        ("truncated", model[..model.len() - 100].to_vec()),
        ("huge header", [&u64::MAX.to_le_bytes(), &model[8..]].concat()),
        ("another dtype", with_header(&text.replacen("\"F32\"", "\"I32\"", 1))),
        ("no json", with_header(&text.replacen('{', "[", 1))),
        ("an unknown name", with_header(&text.replacen("lm_head.weight", "lm_head.wrong!", 1))),
    ];
    let bad = dir.path("bad");
    fs::create_dir(&bad).unwrap();
    fs::copy(good.join("config.json"), bad.join("config.json")).unwrap();
    fs::copy(good.join("tokenizer.json"), bad.join("tokenizer.json")).unwrap();
    for (what, bytes) in cases {
        fs::write(bad.join("model.safetensors"), bytes).unwrap();
        let message = dir.fails(&["sample", "bad"]);
        assert!(message.contains("bad"), "{what}: {message}");
    }

    fs::remove_file(bad.join("model.safetensors")).unwrap();
    let index = r#"{"weight_map": {"lm_head.weight": "../run/step-000001/model.safetensors"}}"#;
    fs::write(bad.join("model.safetensors.index.json"), index).unwrap();
    let message = dir.fails(&["sample", "bad"]);
    assert!(message.contains("../run"), "{message}");
}

/// A custom loop made of the same parts gives the same bits.
#[test]
fn a_custom_loop_gives_the_same_bits() {
    let dir = dir();
    train(&dir, "program", &[]);
    let example = Path::new(MESHGRAD).with_file_name("examples/06-moe");
    let shown = example.display();
    assert!(example.exists(), "no {shown}; cargo test builds it, or cargo build --examples");
    Output::of(Command::new(example).args(["small.toml", "own"]).current_dir(dir.path("")))
        .success();
    let of = |run: &str| dir.path(run).join("step-000008");
    assert_same_checkpoint(&of("program"), &of("own"));
}
