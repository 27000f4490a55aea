//! `meshgrad sample`: prompts, options, stop strings, answers, and runs that do not exist.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use meshgrad::train::tokenizer::Tokenizer;
use serde_json::{Value, json};

/// A model of 16 features that trains in a moment.
const CONFIG: &str = r#"
train = { steps = 3, batch_size = 4, seq_len = 32 }
data = { paths = ["text.txt"], tokenizer = "byte", val_fraction = 0.0 }
sample = { every = 0, tokens = 4 }
schedule = { kind = "constant", warmup_steps = 0 }
optimizer = { learning_rate = 1e-2 }

[model]
model_type = "qwen3"
hidden_size = 16
intermediate_size = 32
num_hidden_layers = 1
num_attention_heads = 2
"#;

const ANSWER: &str = "It is a test.";

struct TestDir(tempfile::TempDir);

impl TestDir {
    /// A folder with a configuration, a text and conversations.
    fn new() -> TestDir {
        let dir = TestDir(tempfile::tempdir().unwrap());
        let text = "one two three four five six seven eight nine ten\n".repeat(40);
        let message = |role: &str, content: &str| json!({ "role": role, "content": content });
        let messages = [message("user", "What is it?"), message("assistant", ANSWER)];
        let line = json!({ "messages": messages }).to_string() + "\n";
        fs::write(dir.path("text.txt"), text).unwrap();
        fs::write(dir.path("chat.jsonl"), line.repeat(40)).unwrap();
        fs::write(dir.path("small.toml"), CONFIG).unwrap();
        dir
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_meshgrad"));
        command.args(arguments).current_dir(self.0.path());
        command
    }

    /// The output of the program, which must succeed.
    fn succeeds(&self, arguments: &[&str]) -> String {
        text(self.command(arguments).output().unwrap())
    }

    /// The error of the program, which must fail.
    fn fails(&self, arguments: &[&str]) -> String {
        error(self.command(arguments).output().unwrap())
    }

    fn train(&self, arguments: &[&str]) -> String {
        self.succeeds(&[&["train", "small.toml", "--run-dir"], arguments].concat())
    }

    /// The output of `sample` with `input` on a pipe.
    fn sample_piped(&self, arguments: &[&str], input: &[u8]) -> Output {
        let arguments = [&["sample", "runs/a", "--tokens", "9"], arguments].concat();
        let mut child = self
            .command(&arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A program that fails may have closed the pipe.
        let _ = child.stdin.take().unwrap().write_all(input);
        child.wait_with_output().unwrap()
    }
}

fn text(output: Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn error(output: Output) -> String {
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.starts_with("error: "), "{error}");
    error
}

/// The text equals the text without stop strings, up to the first stop string. Each string here
/// spans several tokens, because tokens are bytes.
#[test]
fn a_text_ends_before_a_stop_string() {
    let dir = TestDir::new();
    dir.train(&["runs/a"]);
    let sample = |more: &[&str]| {
        let command = ["sample", "runs/a", "--prompt", "one", "--tokens", "60"];
        let text = dir.succeeds(&[&command[..], more].concat());
        text.strip_suffix('\n').unwrap().to_owned()
    };
    let whole = sample(&[]);
    let generated: Vec<char> = whole.strip_prefix("one").unwrap().chars().collect();
    assert!(generated.len() > 20, "{whole:?}");
    for start in [0, 3, 17] {
        let stop: String = generated[start..start + 3].iter().collect();
        let at = whole[3..].find(&stop).unwrap();
        assert_eq!(sample(&["--stop", &stop]), whole[..3 + at]);
        let both = sample(&["--stop", "no such text", "--stop", &stop]);
        assert_eq!(both, whole[..3 + at]);
    }
    assert_eq!(sample(&["--stop", "no such text"]), whole);
    // Values that change nothing.
    let neutral = ["--top-p", "1", "--min-p", "0", "--repetition-penalty", "1"];
    assert_eq!(sample(&neutral), whole);
    let strict = [
        "--top-p",
        "0.1",
        "--min-p",
        "1",
        "--repetition-penalty",
        "9",
    ];
    for option in strict.chunks(2) {
        assert_ne!(sample(option), whole, "{option:?}");
    }
}

#[test]
fn the_prompt_may_come_from_a_pipe() {
    let dir = TestDir::new();
    dir.train(&["runs/a"]);
    let expected = dir.succeeds(&[
        "sample",
        "runs/a",
        "--prompt",
        "two\n\u{e9}",
        "--tokens",
        "9",
    ]);
    let input = "two\n\u{e9}\n".as_bytes();
    let from_input = ["--prompt", "-"];
    assert_eq!(text(dir.sample_piped(&from_input, input)), expected);
    // A prompt leaves the pipe alone, and so does none.
    let given = text(dir.sample_piped(&["--prompt", "two\n\u{e9}"], b"other"));
    assert_eq!(given, expected);
    let new = dir.succeeds(&["sample", "runs/a", "--tokens", "9"]);
    assert_eq!(text(dir.sample_piped(&[], input)), new);

    let empty = error(dir.sample_piped(&from_input, b""));
    let expected = "error: the prompt from standard input is empty; pipe a text, or use --prompt";
    assert!(empty.starts_with(expected), "{empty}");
    let invalid = error(dir.sample_piped(&from_input, b"abc\xff"));
    let expected = "the prompt from standard input is not UTF-8 at byte 3; convert it";
    assert!(invalid.contains(expected), "{invalid}");
}

/// Many texts are divided by `---`, and lists begin with a dash.
#[test]
fn a_prompt_and_a_stop_string_may_begin_with_a_dash() {
    let dir = TestDir::new();
    dir.train(&["runs/a"]);
    let sampled = dir.succeeds(&["sample", "runs/a", "--prompt", "- two", "--stop", "---"]);
    assert!(sampled.starts_with("- two"), "{sampled}");
    assert!(!sampled["- two".len()..].contains("---"), "{sampled}");
}

#[test]
fn invalid_options_are_named_with_their_range() {
    let dir = TestDir::new();
    let cases = [
        (["--top-p", "1.5"], "--top-p is 1.5; it must be from 0 to 1"),
        (
            ["--min-p", "-0.1"],
            "--min-p is -0.1; it must be from 0 to 1",
        ),
        (
            ["--repetition-penalty", "0"],
            "--repetition-penalty is 0; it must be above 0",
        ),
        (
            ["--temperature", "-1"],
            "--temperature is -1; it must be 0 or above",
        ),
        (
            ["--temperature", "NaN"],
            "--temperature is NaN; it must be 0 or above",
        ),
        (
            ["--stop", ""],
            "--stop is empty; it needs at least one character",
        ),
        (
            ["--chat", "--raw"],
            "--chat has no message to answer; use --prompt TEXT",
        ),
    ];
    for (options, expected) in cases {
        let error = dir.fails(&[&["sample", "no-run"], &options[..]].concat());
        assert_eq!(error, format!("error: {expected}\n"));
    }
}

/// A name that does not exist is an error that lists the runs with checkpoints.
#[test]
fn a_missing_run_lists_the_runs() {
    let dir = TestDir::new();
    let none = "nope does not exist; name a run, a checkpoint or a Hugging Face folder; there are no \
                runs with checkpoints in runs\n";
    assert_eq!(dir.fails(&["sample", "nope"]), format!("error: {none}"));

    dir.train(&["runs/b", "--stop-after", "1"]);
    dir.train(&["runs/a", "--stop-after", "1"]);
    fs::create_dir(dir.path("runs/empty")).unwrap();
    let commands: [&[&str]; 4] = [
        &["sample", "nope"],
        &["eval", "nope", "--data", "text.txt"],
        &["forward", "nope", "--input", "i", "--output", "o"],
        &["train", "small.toml", "--resume", "nope"],
    ];
    for command in commands {
        let error = dir.fails(command);
        assert!(error.starts_with("error: nope does not exist; name a run, a checkpoint"));
        assert!(error.ends_with("; runs: `runs/a`, `runs/b`\n"), "{error}");
    }
    assert!(!dir.path("runs/small").exists());
    // If the path is in a run, the error lists the run's checkpoints.
    for command in [&["sample"][..], &["train", "small.toml", "--resume"]] {
        let error = dir.fails(&[command, &["runs/a/step-000009"]].concat());
        let expected = "runs/a/step-000009 does not exist; checkpoints of runs/a: `step-000001`\n";
        assert_eq!(error, format!("error: {expected}"));
    }
}

/// A run on conversations answers with `--chat`, in both formats. Its exports end a text where the
/// answers end.
#[test]
fn a_run_on_conversations_answers() {
    let dir = TestDir::new();
    let byte = Tokenizer::byte().to_json().unwrap();
    let mut with_chat_ml: Value = serde_json::from_str(&byte).unwrap();
    let added = with_chat_ml["added_tokens"].as_array_mut().unwrap();
    for (id, name) in [(257, "<|im_start|>"), (258, "<|im_end|>")] {
        let mut token = added[0].clone();
        (token["id"], token["content"]) = (id.into(), name.into());
        added.push(token);
    }
    fs::write(dir.path("chat.json"), with_chat_ml.to_string()).unwrap();

    for (run, tokenizer, ends) in [
        ("plain", "byte", json!(256)),
        ("chat-ml", "chat.json", json!([256, 258])),
    ] {
        let tokenizer = format!("data.tokenizer={tokenizer}");
        let sets = [
            "--set",
            "data.paths=['chat.jsonl']",
            "--set",
            "train.steps=80",
            "--set",
            "train.seq_len=64",
            "--set",
            "sample.every=80",
            "--set",
            "sample.temperature=0.0",
            "--set",
            "sample.tokens=40",
            "--set",
            &tokenizer,
        ];
        let output = dir.train(&[&[run], &sets[..]].concat());
        // The run's own samples are answers too, and end where the answers in the data end.
        let (_, sample) = output.split_once("sample after step 80\n").unwrap();
        let lines: Vec<&str> = sample.lines().map(str::trim).collect();
        let last = lines
            .iter()
            .position(|line| line.ends_with(ANSWER))
            .unwrap();
        assert!(lines[last + 1].is_empty(), "{output}");

        for file in ["config.json", "generation_config.json"] {
            let path = dir.path(run).join("step-000080").join(file);
            let json: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
            assert_eq!(json["eos_token_id"], ends, "{run}: {file}");
        }
        let sample = |more: &[&str]| {
            let greedy = [
                "sample",
                run,
                "--temperature",
                "0",
                "--tokens",
                "40",
                "--prompt",
            ];
            dir.succeeds(&[&greedy[..], more].concat())
        };
        assert_eq!(sample(&["What is it?", "--chat"]), format!("{ANSWER}\n"));
        assert_ne!(sample(&["What is it?"]), format!("What is it?{ANSWER}\n"));
        // In a user's prompt, the spelling of a special token is plain text.
        assert!(sample(&["<|im_end|>"]).starts_with("<|im_end|>"));
    }
}
