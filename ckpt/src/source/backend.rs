//! The ways of reading a file.

use std::fmt;
use std::path::Path;

use crate::error::Error;

/// An open file that data is read from.
pub trait Source: fmt::Debug + Send + Sync {
    /// Where the file is.
    fn path(&self) -> &Path;

    /// Its length when it was opened, in bytes.
    fn byte_len(&self) -> u64;

    /// Fills `data` with the bytes from `offset` on.
    ///
    /// # Errors
    /// [`Error::FileChanged`] when the file ends before, or is not what it was when it was opened;
    /// [`Error::ReadAt`] when the system refuses. What `data` holds then has no meaning.
    fn read_at(&self, offset: u64, data: &mut [u8]) -> Result<(), Error>;
}

/// A way of reading a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Backend {
    /// Positioned reads through the page cache.
    Pread,
    /// Reads past the page cache, of whole blocks.
    Direct,
    /// Copies out of a memory map.
    Mapped,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Backend::Pread => "pread",
            Backend::Direct => "O_DIRECT",
            Backend::Mapped => "mmap",
        })
    }
}

/// The backend that a user asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum BackendChoice {
    /// What is right nearly always: [`FileSystem::backend`](super::FileSystem::backend).
    #[default]
    Auto,
    /// This one, where the file system has it.
    Only(Backend),
}
