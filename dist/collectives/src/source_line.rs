//! Source lines of calls, of this process or another one.

use std::borrow::Cow;
use std::fmt;
use std::panic::Location;

use serde::{Deserialize, Serialize};

/// A source line. Unlike [`Location`], it can come from another process.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SourceLine {
    file: Cow<'static, str>,
    line: u32,
    column: u32,
}

impl SourceLine {
    /// A line of a file. Lines and columns count from 1.
    pub fn new(file: impl Into<Cow<'static, str>>, line: u32, column: u32) -> SourceLine {
        SourceLine { file: file.into(), line, column }
    }

    /// The file, as the compiler was given it.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The line, from 1.
    pub fn line(&self) -> u32 {
        self.line
    }

    /// The column, from 1.
    pub fn column(&self) -> u32 {
        self.column
    }
}

impl From<&'static Location<'static>> for SourceLine {
    fn from(at: &'static Location<'static>) -> SourceLine {
        SourceLine::new(at.file(), at.line(), at.column())
    }
}

/// `src/step.rs:40:18`
impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}
