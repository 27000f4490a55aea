//! Where a value came from: what an error names beside the value.

use std::fmt;

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Source {
    /// A flag of the command line, as it is written: `--tp`.
    Flag(String),
    /// A variable of the environment: `WORLD_SIZE`.
    Environment(String),
    /// A place in a file.
    File {
        /// The file, as it was named.
        path: String,
        /// The line, from 1, if it is known.
        line: Option<usize>,
        /// The keys that lead to it, joined by dots, if it has some.
        key: Option<String>,
    },
    /// A program, which says where: `the actor's configuration`.
    Code(String),
    /// Nobody gave it; whose default it is. Any other value goes before it.
    Default(String),
}

impl Source {
    /// A flag of the command line.
    pub fn flag(flag: impl Into<String>) -> Source {
        Source::Flag(flag.into())
    }

    /// A variable of the environment.
    pub fn environment(variable: impl Into<String>) -> Source {
        Source::Environment(variable.into())
    }

    /// A file as a whole.
    pub fn file(path: impl Into<String>) -> Source {
        Source::File {
            path: path.into(),
            line: None,
            key: None,
        }
    }

    /// A line of this file, from 1. Nothing but a file has lines.
    pub fn at_line(mut self, number: usize) -> Source {
        if let Source::File { line, .. } = &mut self {
            *line = Some(number);
        }
        self
    }

    /// What these keys, joined by dots, lead to in this file. Nothing but a file has keys.
    pub fn at_key(mut self, keys: impl Into<String>) -> Source {
        if let Source::File { key, .. } = &mut self {
            *key = Some(keys.into());
        }
        self
    }

    /// A place in a program.
    pub fn code(location: impl Into<String>) -> Source {
        Source::Code(location.into())
    }

    /// The default of a program or library.
    pub fn default_of(whose: impl Into<String>) -> Source {
        Source::Default(whose.into())
    }

    /// Whether nobody gave the value.
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

/// A value and where it came from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Sourced<T> {
    /// The value.
    pub value: T,
    /// Where it came from.
    pub source: Source,
}

impl<T> Sourced<T> {
    /// A value and where it came from.
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
