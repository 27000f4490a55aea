//! Where a setting's value came from. Errors print it next to the value.

use std::fmt;

/// The source of a value.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Source {
    /// A command-line flag, as written: `--tp`.
    Flag(String),
    /// An environment variable: `WORLD_SIZE`.
    Environment(String),
    /// A location in a file.
    File {
        /// The path, as given.
        path: String,
        /// The line, from 1, if known.
        line: Option<usize>,
        /// The keys joined by dots, if any.
        key: Option<String>,
    },
    /// Code, described by the program: `the actor's configuration`.
    Code(String),
    /// The default of a program or library. Any other value overrides it.
    Default(String),
}

impl Source {
    /// A command-line flag.
    pub fn flag(flag: impl Into<String>) -> Source {
        Source::Flag(flag.into())
    }

    /// An environment variable.
    pub fn environment(variable: impl Into<String>) -> Source {
        Source::Environment(variable.into())
    }

    /// A whole file.
    pub fn file(path: impl Into<String>) -> Source {
        Source::File { path: path.into(), line: None, key: None }
    }

    /// Sets the line, from 1. No effect on sources that are not files.
    pub fn at_line(mut self, number: usize) -> Source {
        if let Source::File { line, .. } = &mut self {
            *line = Some(number);
        }
        self
    }

    /// Sets the key path, joined by dots. No effect on sources that are not files.
    pub fn at_key(mut self, keys: impl Into<String>) -> Source {
        if let Source::File { key, .. } = &mut self {
            *key = Some(keys.into());
        }
        self
    }

    /// A location in code.
    pub fn code(location: impl Into<String>) -> Source {
        Source::Code(location.into())
    }

    /// The default of a program or library.
    pub fn default_of(whose: impl Into<String>) -> Source {
        Source::Default(whose.into())
    }

    /// Whether the value is a default.
    pub fn is_default(&self) -> bool {
        matches!(self, Source::Default(_))
    }
}

/// `--tp`, `run.toml:14, parallel.tp`, `meshgrad's default`.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Flag(flag) => f.write_str(flag),
            Source::Environment(variable) => write!(f, "${variable}"),
            Source::File { path, line, key } => {
                f.write_str(path)?;
                if let Some(line) = line {
                    write!(f, ":{line}")?;
                }
                match key {
                    Some(key) => write!(f, ", {key}"),
                    None => Ok(()),
                }
            }
            Source::Code(location) => f.write_str(location),
            Source::Default(whose) => write!(f, "{whose}'s default"),
        }
    }
}

/// A value and its source.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Sourced<T> {
    /// The value.
    pub value: T,
    /// The source.
    pub source: Source,
}

impl<T> Sourced<T> {
    /// A value with its source.
    pub fn new(value: T, source: Source) -> Sourced<T> {
        Sourced { value, source }
    }
}

/// `4 (--tp)`.
impl<T: fmt::Display> fmt::Display for Sourced<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.value, self.source)
    }
}
