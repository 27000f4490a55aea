//! The output of the program, word for word: help, a run, and errors. Paths and numbers that depend
//! on the machine are masked.
//!
//! After an intended change run `INSTA_UPDATE=always cargo test -p meshgrad --test all cli` and
//! read the diff.

use std::{env, fs};

use crate::test_dir::{Output, TestDir, text};

/// A short run on `text.txt`.
const CONFIG: &str = r#"
data = { paths = ["text.txt"], tokenizer = "byte", val_fraction = 0.1 }
train = { steps = 4, batch_size = 2, micro_batch_size = 1, seq_len = 16 }
schedule = { warmup_steps = 1 }
sample = { every = 2, tokens = 4, prompt = "one" }
log = { val_every = 2, val_batches = 1, every = 2 }

[model]
model_type = "qwen3_moe"
hidden_size = 16
num_hidden_layers = 1
num_attention_heads = 2
num_key_value_heads = 1
num_experts = 2
num_experts_per_tok = 1
moe_intermediate_size = 16
"#;

/// Runs the program in a temporary folder and returns its output and exit code.
fn meshgrad(arguments: &[&str]) -> String {
    let files = [("text.txt", &*text()), ("small.toml", CONFIG), ("empty.txt", "")];
    let dir = TestDir::with(&files);
    fs::create_dir(dir.path("nothing")).unwrap();

    // Cargo puts it next to this test.
    let emulator = env::current_exe().unwrap().with_file_name("libmeshgrad_emulator.so");
    let mut command = dir.command(arguments);
    command.env("NO_COLOR", "1").env("MESHGRAD_EMULATOR", &emulator);
    let shown = Output::of(&mut command).shown();
    shown.replace(dir.path("").to_str().unwrap().trim_end_matches('/'), "FOLDER")
}

/// Compares output with the committed snapshot, masking what differs between machines.
macro_rules! assert_output {
    ($name:expr, $output:expr) => {
        insta::with_settings!({filters => vec![
            (r"cpu x\d+ .*", "cpu [threads, vectors, dtype]"),
            (r"\d[\d,]* tok/s", "[rate] tok/s"),
            (r"mem [\d,.]+ \w+", "mem [bytes]"),
            (r"eta \S+", "eta [time]"),
            (r"experts \[[\d ]+\]", "experts [shares]"),
            (r"\d+\.\d{3,}", "[number]"),
            (r"\|g\| \d+\.\d+", "|g| [number]"),
            (r"(?m)^  \| .*", "  | [sample]"),
        ]}, {
            insta::assert_snapshot!($name, $output);
        });
    };
}

#[test]
fn help() {
    let all = [
        &["--help"][..],
        &["train", "--help"],
        &["sample", "--help"],
        &["forward", "--help"],
        &["comm", "--help"],
        &["launch", "--help"],
        &["check", "--help"],
        &["bench", "--help"],
        &["bench", "cpu", "--help"],
        &["bench", "growth", "--help"],
        &["bench", "start", "--help"],
        &["bench", "gpu", "--help"],
        &["bench", "gpu", "train", "--help"],
    ];
    assert_output!("help", all.map(meshgrad).join("\n\n"));
}

#[test]
fn a_run_from_start_to_end() {
    assert_output!("run", meshgrad(&["train", "small.toml", "--run-dir", "run"]));
}

/// Shows which cases have kernels and pass on a GPU. A case that is no longer `ok` appears in the
/// diff.
#[cfg(target_os = "linux")]
#[test]
fn check_on_a_gpu() {
    assert_output!("check", meshgrad(&["check", "--device", "emulator"]));
}

#[test]
fn errors() {
    let set =
        |setting: &str| meshgrad(&["train", "small.toml", "--run-dir", "run", "--set", setting]);
    let time_on_emulator = |rest: &[&str]| {
        let begin = ["bench", "gpu", "time", "--device", "emulator", "--smoke"];
        meshgrad(&[&begin[..], rest].concat())
    };
    let all = [
        set("model.hiden_size=32"),
        set("train.steps=\"many\""),
        set("model.num_experts_per_tok=3"),
        set("model.num_key_value_heads=3"),
        set("train.seq_len=100000"),
        set("data.paths=[\"absent.txt\"]"),
        set("data.paths=[\"empty.txt\"]"),
        set("data.paths=[\"nothing\"]"),
        set("data.tokenizer=\"bpe\""),
        set("optimizer.learning_rate=1e30"),
        meshgrad(&["train", "absent.toml"]),
        meshgrad(&["train", "small.toml", "--run-dir", "text.txt"]),
        meshgrad(&["train", "small.toml", "--resume", "nothing"]),
        meshgrad(&["sample", "nothing"]),
        meshgrad(&["forward", "nothing", "--input", "i.safetensors", "--output", "o.safetensors"]),
        time_on_emulator(&["--shapes", "absent.toml"]),
        time_on_emulator(&["--shapes", "text.txt"]),
        time_on_emulator(&["--torch", "nothing/python"]),
        meshgrad(&["bench", "cpu", "--smoke", "--only", "sofmax"]),
        meshgrad(&["bench", "start", "--smoke", "--set", "train.steps=0"]),
        meshgrad(&["bench", "gpu", "time", "--device", "tpu"]),
        meshgrad(&["bench", "gpu", "compare", "nothing", "nothing"]),
        meshgrad(&["trian"]),
    ];
    assert_output!("errors", all.join("\n\n"));
}
