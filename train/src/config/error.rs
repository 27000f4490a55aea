//! Errors of configurations, and the origin of a setting.

use std::fmt;
use std::path::PathBuf;

use super::Violations;

/// Why a configuration cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be opened.
    #[error("cannot read the configuration {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is not TOML. The message shows the line.
    #[error("{origin} is not valid TOML: {message}")]
    Syntax {
        /// The file.
        origin: String,
        /// Line, column and the problem.
        message: String,
    },
    /// `--set` without `=`, or with an empty key.
    #[error("`--set {text}` is not of the form key.path=value, for example train.steps=100")]
    Override {
        /// The argument.
        text: String,
    },
    /// The key is unknown.
    #[error("unknown key `{key}` ({origin}){}", suggestion(nearest))]
    UnknownKey {
        /// The full key path.
        key: String,
        /// File and line, or the command line.
        origin: Origin,
        /// The most similar known key.
        nearest: Option<String>,
    },
    /// A key of an optimizer or schedule that was not chosen.
    #[error("`{key}` does not apply to {chosen} ({origin}); its keys are {keys}")]
    OtherChoice {
        /// The full key path.
        key: String,
        /// The choice, such as `optimizer.name = "sgd"`.
        chosen: String,
        /// Its keys, separated by commas.
        keys: String,
        /// File and line, or the command line.
        origin: Origin,
    },
    /// A value has the wrong TOML type.
    #[error("`{key}` is {found} but must be {expected} ({origin})")]
    WrongType {
        /// The full key path.
        key: String,
        /// The actual type.
        found: &'static str,
        /// The expected type.
        expected: &'static str,
        /// File and line, or the command line.
        origin: Origin,
    },
    /// A value has the right TOML type but is invalid.
    #[error("`{key}`: {problem} ({origin})")]
    BadValue {
        /// The full key path.
        key: String,
        /// The problem.
        problem: String,
        /// File and line, or the command line.
        origin: Origin,
    },
    /// All values that are out of range or contradict each other.
    #[error("invalid configuration:{0}")]
    Range(Violations),
    /// The type of the model's tables cannot be used, or they are of another type.
    #[error("the model's tables, `{tables}`: {problem}")]
    Tables {
        /// The type.
        tables: &'static str,
        /// The problem, and how to fix it.
        problem: String,
    },
    /// The default configuration cannot be read back.
    #[error("the default configuration is invalid: {0}")]
    Defaults(#[from] toml::de::Error),
    /// The configuration cannot be written as TOML.
    #[error("the configuration cannot be written as TOML: {0}")]
    Write(#[from] toml::ser::Error),
}

impl Violations {
    /// # Errors
    /// [`ConfigError::Range`] if there are any.
    pub fn check(self) -> Result<(), ConfigError> {
        match self.0.is_empty() {
            true => Ok(()),
            false => Err(ConfigError::Range(self)),
        }
    }
}

fn suggestion(nearest: &Option<String>) -> String {
    let hint = |name| format!("; did you mean `{name}`?");
    nearest.as_ref().map(hint).unwrap_or_default()
}

/// Where a setting comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A file and the line, from 1.
    File {
        /// The file name as given.
        name: String,
        /// The line of the key, from 1.
        line: usize,
    },
    /// `--set`.
    CommandLine,
}

impl fmt::Display for Origin {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { name, line } => write!(out, "{name}:{line}"),
            Self::CommandLine => write!(out, "--set"),
        }
    }
}
