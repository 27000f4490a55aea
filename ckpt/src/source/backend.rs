//! The ways to read a file.

use std::fmt;
use std::path::Path;

use meshgrad_error::Result;

/// An open file for reading.
pub trait Source: fmt::Debug + Send + Sync {
    /// The file's path.
    fn path(&self) -> &Path;

    /// Its length in bytes when it was opened.
    fn byte_len(&self) -> u64;

    /// Fills `data` with the bytes at `offset`.
    ///
    /// # Errors
    /// When the file is shorter, has changed since it was opened, or the system cannot read it.
    /// `data` is then undefined.
    fn read_at(&self, offset: u64, data: &mut [u8]) -> Result<()>;
}

/// A way to read a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Backend {
    /// Positioned reads through the page cache.
    Pread,
    /// Reads of whole blocks that bypass the page cache.
    Direct,
    /// Copies from a memory map.
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

/// The user's choice of backend.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum BackendChoice {
    /// The right choice in nearly all cases: [`FileSystem::backend`](super::FileSystem::backend).
    #[default]
    Auto,
    /// This one, if the file system supports it.
    Only(Backend),
}
