//! Changes of an open file.

use std::fmt;

/// A change of a file while it was being read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FileChange {
    /// Its length changed.
    Length {
        /// The length in bytes when it was opened.
        was: u64,
        /// The current length.
        is: u64,
    },
    /// Its modification time changed.
    Written,
    /// It was removed, or another file took its name.
    Replaced,
}

impl fmt::Display for FileChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileChange::Length { was, is } => {
                write!(f, "its length changed from {was} to {is} bytes")
            }
            FileChange::Written => write!(f, "it was written"),
            FileChange::Replaced => write!(f, "it was removed or replaced"),
        }
    }
}
