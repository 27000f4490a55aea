//! What can happen to a file that is open.

use std::fmt;

/// What happened to a file that was being read.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileChange {
    /// It has another length.
    Length {
        /// When it was opened, in bytes.
        was: u64,
        /// Now.
        is: u64,
    },
    /// Its time of modification is another one.
    Written,
    /// It was removed, or another file took its name.
    Replaced,
}

impl fmt::Display for FileChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileChange::Length { was, is } => write!(f, "it had {was} bytes and has {is} now"),
            FileChange::Written => write!(f, "it was written to"),
            FileChange::Replaced => write!(f, "it was removed, or another file took its name"),
        }
    }
}
