//! The program `meshgrad`, started in temporary folders.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::thread;

use serde_json::Value;
use tempfile::TempDir;

/// The path of the program.
pub(crate) const MESHGRAD: &str = env!("CARGO_BIN_EXE_meshgrad");

/// A model of 16 features, which trains in a moment.
const SMALL_MODEL: &str = r#"
[model]
model_type = "qwen3"
hidden_size = 16
intermediate_size = 32
num_hidden_layers = 1
num_attention_heads = 2
"#;

/// A temporary folder in which the program runs.
pub(crate) struct TestDir(TempDir);

impl TestDir {
    pub(crate) fn new() -> TestDir {
        TestDir(tempfile::tempdir().unwrap())
    }

    /// A folder with these files.
    pub(crate) fn with(files: &[(&str, &str)]) -> TestDir {
        let dir = TestDir::new();
        for (name, text) in files {
            fs::write(dir.path(name), text).unwrap();
        }
        dir
    }

    /// A folder with `text.txt` and `small.toml`: the configuration `config` with a small model.
    pub(crate) fn with_run(config: &str) -> TestDir {
        let config = [config, SMALL_MODEL].concat();
        TestDir::with(&[("text.txt", &text()), ("small.toml", &config)])
    }

    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.path().join(name)
    }

    /// The sorted names in a subfolder, hidden ones too.
    pub(crate) fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(folder)).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(MESHGRAD);
        command.args(arguments).current_dir(&self.0);
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        Output::of(&mut self.command(arguments))
    }

    /// The output of the program, which must succeed.
    pub(crate) fn succeeds(&self, arguments: &[&str]) -> String {
        self.run(arguments).success()
    }

    /// The error of the program, which must fail.
    pub(crate) fn fails(&self, arguments: &[&str]) -> String {
        self.run(arguments).failure()
    }
}

/// A text of 40 lines.
pub(crate) fn text() -> String {
    "one two three four five six seven eight nine ten\n".repeat(40)
}

/// The output of a program.
#[derive(Clone)]
pub(crate) struct Output {
    pub(crate) arguments: String,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) code: i32,
}

impl Output {
    /// Runs a command to its end.
    pub(crate) fn of(command: &mut Command) -> Output {
        loop {
            match command.output() {
                // A process that another test is starting still has the executable open for
                // writing.
                Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => thread::yield_now(),
                output => return Output::new(command, output.unwrap()),
            }
        }
    }

    /// The output of a command that has ended.
    pub(crate) fn new(command: &Command, output: process::Output) -> Output {
        let arguments: Vec<_> = command.get_args().map(|it| it.to_string_lossy()).collect();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Output {
            arguments: arguments.join(" "),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
            code: output.status.code().unwrap_or(-1),
        }
    }

    /// What a program that succeeded printed.
    pub(crate) fn success(self) -> String {
        assert_eq!(self.code, 0, "{}", self.shown());
        self.stdout
    }

    /// The error message of a program that failed.
    pub(crate) fn failure(self) -> String {
        let is_message = self.stderr.starts_with("error: ") && !self.stderr.contains("panicked");
        assert!(self.code == 1 && is_message, "{}", self.shown());
        self.stderr
    }

    /// The command, its output and the exit code, as on a terminal.
    pub(crate) fn shown(&self) -> String {
        let Output { arguments, stdout, stderr, code } = self;
        format!("$ meshgrad {arguments}\n{stdout}{stderr}[exit code {code}]")
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|_| panic!("{}", self.shown()))
    }
}

/// Sends a signal such as `INT` to a process, and returns whether the process exists.
pub(crate) fn signal(process: u32, name: &str) -> bool {
    let arguments = [format!("-{name}"), process.to_string()];
    Command::new("kill").args(arguments).status().unwrap().success()
}
