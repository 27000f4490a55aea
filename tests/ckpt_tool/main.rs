//! Runs `meshgrad ckpt` as a user does and checks its output and files.
//!
//! After an intended change run `INSTA_UPDATE=always cargo test --test ckpt_tool` and read the
//! diff.

mod bench;
mod convert;
mod damage;
mod diff;
mod errors;
mod export;
mod files;
mod gc;
mod inspect;
mod models;
mod plan;
mod reshard;
mod torch;
mod verify;
#[path = "../../ckpt/tests/all/torch/zips.rs"]
mod zips;

use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// A temporary folder in which the program runs.
struct TestDir {
    folder: TempDir,
}

/// The output of the program.
#[derive(Clone)]
struct Output {
    command: String,
    stdout: String,
    stderr: String,
    code: i32,
}

impl TestDir {
    fn new() -> TestDir {
        let folder = tempfile::tempdir().unwrap();
        TestDir { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_meshgrad"));
        command.arg("ckpt").args(arguments).current_dir(&self.folder);
        command
    }

    fn ckpt(&self, arguments: &[&str]) -> Output {
        run(arguments, self.command(arguments))
    }

    /// The names in the folder, hidden ones too.
    fn names(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(folder)).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }
}

fn run(arguments: &[&str], mut command: Command) -> Output {
    let output = loop {
        match command.output() {
            // A process that another test is starting still has the executable open for writing.
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
            other => break other.unwrap(),
        }
    };
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Output {
        command: arguments.join(" "),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
        code: output.status.code().unwrap_or(-1),
    }
}

impl Output {
    /// Command, output and exit code, as on a terminal.
    fn shown(&self) -> String {
        let Output { command, stdout, stderr, code } = self;
        format!("$ meshgrad ckpt {command}\n{stdout}{stderr}[exit code {code}]")
    }

    fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|_| panic!("{}", self.shown()))
    }
}

fn shown<const N: usize>(all: [Output; N]) -> String {
    all.map(|output| output.shown()).join("\n\n")
}

/// The same without what varies between runs: seconds, free disk space, suffixes of hidden names.
fn shown_without_times<const N: usize>(all: [Output; N]) -> String {
    let is_end = |word: &str| word == "s" || word == "s\n";
    let mut text = String::new();
    for line in shown(all).lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let available = words.iter().position(|word| *word == "available;");
        let last = words.last().is_some_and(|word| is_end(word));
        let seconds = (last && line.starts_with("done")).then(|| words.len() - 2);
        let known = |at: usize| match words[at].split_once(".tmp-") {
            _ if Some(at) == seconds || Some(at + 1) == available => "N",
            Some((before, _)) => before,
            None => words[at],
        };
        let shown: Vec<&str> = (0..words.len()).map(known).collect();
        text.push_str(&shown.join(" "));
        text.push('\n');
    }
    text
}

#[test]
fn help() {
    let dir = TestDir::new();
    let output = shown([
        dir.ckpt(&["--help"]),
        dir.ckpt(&["inspect", "--help"]),
        dir.ckpt(&["diff", "--help"]),
        dir.ckpt(&["verify", "--help"]),
        dir.ckpt(&["plan", "--help"]),
        dir.ckpt(&["convert", "--help"]),
        dir.ckpt(&["export", "--help"]),
        dir.ckpt(&["reshard", "--help"]),
        dir.ckpt(&["gc", "--help"]),
        dir.ckpt(&["bench", "--help"]),
        dir.ckpt(&["crash-test", "--help"]),
    ]);
    insta::assert_snapshot!(output);
}

/// A reader that closes the pipe, such as `head`, causes no error.
#[test]
fn a_closed_pipe_is_not_an_error() {
    let dir = TestDir::new();
    models::folder(&dir.path("model"), &models::mixture());

    let mut command = dir.command(&["inspect", "model", "--json"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    assert!(output.status.success());
}
