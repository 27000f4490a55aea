//! `meshgrad sample`: prompts, options, stop strings, answers, and runs that do not exist.

use std::fs;
use std::io::Write;
use std::process::Stdio;

use meshgrad::train::tokenizer::Tokenizer;
use serde_json::{Value, json};

use crate::test_dir::{Output, TestDir};

const CONFIG: &str = r#"
train = { steps = 3, batch_size = 4, seq_len = 32 }
data = { paths = ["text.txt"], tokenizer = "byte", val_fraction = 0.0 }
sample = { every = 0, tokens = 4 }
schedule = { kind = "constant", warmup_steps = 0 }
optimizer = { learning_rate = 1e-2 }
"#;

const ANSWER: &str = "It is a test.";

/// A folder with a configuration, a text and conversations.
fn folder() -> TestDir {
    let dir = TestDir::with_run(CONFIG);
    let message = |role: &str, content: &str| json!({ "role": role, "content": content });
    let messages = [message("user", "What is it?"), message("assistant", ANSWER)];
    let line = json!({ "messages": messages }).to_string() + "\n";
    fs::write(dir.path("chat.jsonl"), line.repeat(40)).unwrap();
    dir
}

fn train(dir: &TestDir, arguments: &[&str]) -> String {
    dir.succeeds(&[&["train", "small.toml", "--run-dir"], arguments].concat())
}

/// The output of `sample` with `input` on a pipe.
fn sample_piped(dir: &TestDir, arguments: &[&str], input: &[u8]) -> Output {
    let arguments = [&["sample", "runs/a", "--tokens", "9"], arguments].concat();
    let mut command = dir.command(&arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A program that fails may have closed the pipe.
    let _ = child.stdin.take().unwrap().write_all(input);
    Output::new(&command, child.wait_with_output().unwrap())
}

/// The text equals the text without stop strings, up to the first stop string. Each string here
/// spans several tokens, because tokens are bytes.
#[test]
fn a_text_ends_before_a_stop_string() {
    let dir = folder();
    train(&dir, &["runs/a"]);
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
    let strict = ["--top-p", "0.1", "--min-p", "1", "--repetition-penalty", "9"];
    for option in strict.chunks(2) {
        assert_ne!(sample(option), whole, "{option:?}");
    }
}

#[test]
fn the_prompt_may_come_from_a_pipe() {
    let dir = folder();
    train(&dir, &["runs/a"]);
    let expected = dir.succeeds(&["sample", "runs/a", "--prompt", "two\n\u{e9}", "--tokens", "9"]);
    let input = "two\n\u{e9}\n".as_bytes();
    let from_input = ["--prompt", "-"];
    assert_eq!(sample_piped(&dir, &from_input, input).success(), expected);
    // A prompt leaves the pipe alone, and so does none.
    let given = sample_piped(&dir, &["--prompt", "two\n\u{e9}"], b"other").success();
    assert_eq!(given, expected);
    let new = dir.succeeds(&["sample", "runs/a", "--tokens", "9"]);
    assert_eq!(sample_piped(&dir, &[], input).success(), new);

    let empty = sample_piped(&dir, &from_input, b"").failure();
    let expected = "error: the prompt from standard input is empty; pipe a text, or use --prompt";
    assert!(empty.starts_with(expected), "{empty}");
    let invalid = sample_piped(&dir, &from_input, b"abc\xff").failure();
    let expected = "the prompt from standard input is not UTF-8 at byte 3; convert it";
    assert!(invalid.contains(expected), "{invalid}");
}

/// Many texts are divided by `---`, and lists begin with a dash.
#[test]
fn a_prompt_and_a_stop_string_may_begin_with_a_dash() {
    let dir = folder();
    train(&dir, &["runs/a"]);
    let sampled = dir.succeeds(&["sample", "runs/a", "--prompt", "- two", "--stop", "---"]);
    assert!(sampled.starts_with("- two"), "{sampled}");
    assert!(!sampled["- two".len()..].contains("---"), "{sampled}");
}

#[test]
fn invalid_options_are_named_with_their_range() {
    let dir = folder();
    let cases = [
        (["--top-p", "1.5"], "--top-p is 1.5; it must be from 0 to 1"),
        (["--min-p", "-0.1"], "--min-p is -0.1; it must be from 0 to 1"),
        (["--repetition-penalty", "0"], "--repetition-penalty is 0; it must be above 0"),
        (["--temperature", "-1"], "--temperature is -1; it must be 0 or above"),
        (["--temperature", "NaN"], "--temperature is NaN; it must be 0 or above"),
        (["--stop", ""], "--stop is empty; it needs at least one character"),
        (["--chat", "--raw"], "--chat has no message to answer; use --prompt TEXT"),
    ];
    for (options, expected) in cases {
        let error = dir.fails(&[&["sample", "no-run"], &options[..]].concat());
        assert_eq!(error, format!("error: {expected}\n"));
    }
}

/// A name that does not exist is an error that lists the runs with checkpoints.
#[test]
fn a_missing_run_lists_the_runs() {
    let dir = folder();
    let none = "nope does not exist; name a run, a checkpoint or a Hugging Face folder; there are no \
                runs with checkpoints in runs\n";
    assert_eq!(dir.fails(&["sample", "nope"]), format!("error: {none}"));

    train(&dir, &["runs/b", "--stop-after", "1"]);
    train(&dir, &["runs/a", "--stop-after", "1"]);
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
    // The name of a checkpoint, outside of runs and in one.
    let expected = "error: step-000001 does not exist; name one of `runs/a/step-000001`, \
                    `runs/b/step-000001`\n";
    assert_eq!(dir.fails(&["sample", "step-000001"]), expected);
    let mut in_run = dir.command(&["sample", "step-000009"]);
    let error = Output::of(in_run.current_dir(dir.path("runs/a"))).failure();
    let expected = "error: step-000009 does not exist; checkpoints of .: `step-000001`\n";
    assert_eq!(error, expected);
}

/// A path that cannot be read may exist.
#[test]
fn a_path_that_cannot_be_read_is_not_missing() {
    let dir = folder();
    std::os::unix::fs::symlink("loop", dir.path("loop")).unwrap();
    for (path, expected) in [
        ("loop", "cannot read loop: Too many levels of symbolic links"),
        ("text.txt/a", "cannot read text.txt/a: Not a directory"),
    ] {
        let error = dir.fails(&["sample", path]);
        assert!(error.starts_with(&format!("error: {expected}")), "{error}");
    }
    fs::write(dir.path("runs"), "").unwrap();
    let error = dir.fails(&["sample", "nope"]);
    let expected = "error: nope does not exist; cannot list the runs in runs: Not a directory";
    assert!(error.starts_with(expected), "{error}");
}

/// The text of a Hugging Face folder ends at the ids that the folder declares.
#[test]
fn a_text_ends_at_the_ids_of_its_folder() {
    let dir = folder();
    train(&dir, &["runs/a"]);
    fs::create_dir(dir.path("hf")).unwrap();
    let copied = |name: &str| dir.path("hf").join(name);
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs::copy(dir.path("runs/a/step-000003").join(name), copied(name)).unwrap();
    }
    let sample = || {
        let command = ["sample", "hf", "--prompt", "one", "--tokens", "60"];
        dir.succeeds(&command).trim_end_matches('\n').to_owned()
    };
    let whole = sample();
    let generated = whole.strip_prefix("one").unwrap();
    let letters: Vec<char> = generated.chars().filter(char::is_ascii_graphic).collect();
    let (first, last) = (letters[0], letters[letters.len() - 1]);
    assert_ne!(first, last, "{whole:?}");
    let until = |end: char| {
        let before = generated.split(end).next().unwrap();
        format!("one{}", before.trim_end_matches('\n'))
    };
    let text = fs::read_to_string(copied("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    config["eos_token_id"] = u32::from(last).into();
    fs::write(copied("config.json"), config.to_string()).unwrap();
    assert_eq!(sample(), until(last));
    let ends = json!({ "eos_token_id": [u32::from(first), 256] });
    fs::write(copied("generation_config.json"), ends.to_string()).unwrap();
    assert_eq!(sample(), until(first));
    fs::write(copied("generation_config.json"), "{\"eos_token_id\": \"x\"}").unwrap();
    let error = dir.fails(&["sample", "hf", "--prompt", "one"]);
    let expected = "hf/generation_config.json: `eos_token_id` is \"x\", not an id or a list of ids";
    assert!(error.contains(expected), "{error}");
}

/// A run on conversations answers with `--chat`, in both formats. Its exports end a text where the
/// answers end.
#[test]
fn a_run_on_conversations_answers() {
    let dir = folder();
    let byte = Tokenizer::byte().to_json().unwrap();
    let mut with_chat_ml: Value = serde_json::from_str(&byte).unwrap();
    let added = with_chat_ml["added_tokens"].as_array_mut().unwrap();
    for (id, name) in [(257, "<|im_start|>"), (258, "<|im_end|>")] {
        let mut token = added[0].clone();
        (token["id"], token["content"]) = (id.into(), name.into());
        added.push(token);
    }
    fs::write(dir.path("chat.json"), with_chat_ml.to_string()).unwrap();

    for (run, tokenizer, ends) in
        [("plain", "byte", json!(256)), ("chat-ml", "chat.json", json!([256, 258]))]
    {
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
        let output = train(&dir, &[&[run], &sets[..]].concat());
        let suggested = format!("  meshgrad sample {run} --chat --prompt 'Who are you?'\n");
        assert!(output.contains(&suggested), "{output}");
        // The run's own samples are answers too, and end where the answers in the data end.
        let (_, sample) = output.split_once("sample after step 80\n").unwrap();
        let lines: Vec<&str> = sample.lines().map(str::trim).collect();
        let last = lines.iter().position(|line| line.ends_with(ANSWER)).unwrap();
        assert!(lines[last + 1].is_empty(), "{output}");

        for file in ["config.json", "generation_config.json"] {
            let path = dir.path(run).join("step-000080").join(file);
            let json: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
            assert_eq!(json["eos_token_id"], ends, "{run}: {file}");
        }
        let sample = |more: &[&str]| {
            let greedy = ["sample", run, "--temperature", "0", "--tokens", "40", "--prompt"];
            dir.succeeds(&[&greedy[..], more].concat())
        };
        assert_eq!(sample(&["What is it?", "--chat"]), format!("{ANSWER}\n"));
        assert_ne!(sample(&["What is it?"]), format!("What is it?{ANSWER}\n"));
        // In a user's prompt, the spelling of a special token is plain text.
        assert!(sample(&["<|im_end|>"]).starts_with("<|im_end|>"));
    }
}
