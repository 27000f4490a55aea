//! Runs `meshgrad ckpt` as a user does and checks its output and files.
//!
//! After an intended change run `INSTA_UPDATE=always cargo test -p meshgrad --test all ckpt_tool` and
//! read the diff.

mod bench;
mod convert;
mod damage;
mod diff;
mod errors;
mod export;
mod files;
mod gc;
mod inspect;
pub(crate) mod models;
mod plan;
mod reshard;
mod torch;
mod verify;

use std::process::Stdio;

use crate::test_dir::{Output, TestDir};

impl TestDir {
    /// Runs `meshgrad ckpt`.
    pub(crate) fn ckpt(&self, arguments: &[&str]) -> Output {
        self.run(&[&["ckpt"], arguments].concat())
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
        dir.ckpt(&["merge", "--help"]),
        dir.ckpt(&["unmerge", "--help"]),
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

    let mut command = dir.command(&["ckpt", "inspect", "model", "--json"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    assert!(output.status.success());
}
