//! The program in a temporary folder with a text and a model of 16 features, which trains in a
//! moment.

#![allow(dead_code)] // Each test uses a part.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const MODEL: &str = r#"
[model]
model_type = "qwen3"
hidden_size = 16
intermediate_size = 32
num_hidden_layers = 1
num_attention_heads = 2
"#;

pub(crate) struct TestDir(tempfile::TempDir);

impl TestDir {
    /// A folder with `text.txt` and `small.toml`: the configuration `config` with the model.
    pub(crate) fn new(config: &str) -> TestDir {
        let dir = TestDir(tempfile::tempdir().unwrap());
        let text = "one two three four five six seven eight nine ten\n".repeat(40);
        fs::write(dir.path("text.txt"), text).unwrap();
        fs::write(dir.path("small.toml"), [config, MODEL].concat()).unwrap();
        dir
    }

    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_meshgrad"));
        command.args(arguments).current_dir(self.0.path());
        command
    }

    /// The output of the program, which must succeed.
    pub(crate) fn succeeds(&self, arguments: &[&str]) -> String {
        text(self.command(arguments).output().unwrap())
    }

    /// The error of the program, which must fail.
    pub(crate) fn fails(&self, arguments: &[&str]) -> String {
        error(self.command(arguments).output().unwrap())
    }
}

/// The output of a program that succeeded.
pub(crate) fn text(output: Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// The error of a program that failed.
pub(crate) fn error(output: Output) -> String {
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.starts_with("error: "), "{error}");
    error
}
