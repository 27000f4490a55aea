//! `meshgrad ckpt`, run as a user runs it: what it says word for word, and that it is true.
//!
//! After a wanted change run `INSTA_UPDATE=always cargo test --test ckpt_tool` and read the diff.

mod bench;
mod convert;
mod diff;
mod export;
mod files;
mod gc;
mod inspect;
mod models;
mod plan;
mod refusals;
mod reshard;
mod verify;

use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// A folder, and the program run in it.
struct Workplace {
    folder: TempDir,
}

/// What the program said.
#[derive(Clone)]
struct Said {
    command: String,
    stdout: String,
    stderr: String,
    code: i32,
}

impl Workplace {
    fn new() -> Workplace {
        let folder = tempfile::tempdir().unwrap();
        Workplace { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_meshgrad"));
        command
            .arg("ckpt")
            .args(arguments)
            .current_dir(&self.folder);
        command
    }

    fn ckpt(&self, arguments: &[&str]) -> Said {
        said(arguments, self.command(arguments))
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

fn said(arguments: &[&str], mut command: Command) -> Said {
    let output = loop {
        match command.output() {
            // A child that another test just started has not let go of a copy of the program.
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
            other => break other.unwrap(),
        }
    };
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Said {
        command: arguments.join(" "),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
        code: output.status.code().unwrap_or(-1),
    }
}

impl Said {
    /// All of it, as a terminal shows it.
    fn shown(&self) -> String {
        let Said {
            command,
            stdout,
            stderr,
            code,
        } = self;
        format!("$ meshgrad ckpt {command}\n{stdout}{stderr}[exit code {code}]")
    }

    fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|_| panic!("{}", self.shown()))
    }
}

fn shown<const N: usize>(all: [Said; N]) -> String {
    all.map(|said| said.shown()).join("\n\n")
}

/// The same without what is another at each time: seconds, bytes that a disk has left,
/// and what hidden names end with.
fn shown_without_times<const N: usize>(all: [Said; N]) -> String {
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
    let place = Workplace::new();
    let said = shown([
        place.ckpt(&["--help"]),
        place.ckpt(&["inspect", "--help"]),
        place.ckpt(&["diff", "--help"]),
        place.ckpt(&["verify", "--help"]),
        place.ckpt(&["plan", "--help"]),
        place.ckpt(&["convert", "--help"]),
        place.ckpt(&["export", "--help"]),
        place.ckpt(&["reshard", "--help"]),
        place.ckpt(&["gc", "--help"]),
        place.ckpt(&["bench", "--help"]),
    ]);
    insta::assert_snapshot!(said);
}

/// A reader who stops reading, such as `head`, is no error.
#[test]
fn output_may_be_cut_short() {
    let place = Workplace::new();
    models::folder(&place.path("model"), &models::mixture());

    let mut command = place.command(&["inspect", "model", "--json"]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    assert!(output.status.success());
}
