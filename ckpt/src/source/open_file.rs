//! The state of a file when it was opened, to detect changes.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use meshgrad_error::{Error, Result};

use super::file_change::FileChange;
use crate::error::{changed, io_error, unreadable};

/// The properties of a file that must not change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    bytes: u64,
    modified: (i64, i64),
    has_name: bool,
}

impl Stamp {
    fn of(file: &File) -> io::Result<Stamp> {
        let metadata = file.metadata()?;
        Ok(Stamp {
            bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            has_name: metadata.nlink() > 0,
        })
    }

    fn change_to(&self, now: &Stamp) -> Option<FileChange> {
        if now.bytes != self.bytes {
            return Some(FileChange::Length { was: self.bytes, is: now.bytes });
        }
        if now.modified != self.modified {
            return Some(FileChange::Written);
        }
        (now.has_name != self.has_name).then_some(FileChange::Replaced)
    }
}

/// An open file with its stamp, shared by the backends.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) path: PathBuf,
    pub(super) file: File,
    stamp: Stamp,
}

impl OpenFile {
    pub(super) fn new(path: PathBuf, file: File) -> Result<OpenFile> {
        match Stamp::of(&file) {
            Ok(stamp) => Ok(OpenFile { path, file, stamp }),
            Err(error) => Err(io_error("open", &path, error)),
        }
    }

    pub(super) fn byte_len(&self) -> u64 {
        self.stamp.bytes
    }

    /// The result of an attempt to read `len` bytes at `offset`. If the file has changed or is too
    /// short, the result is an error, whatever the attempt returned.
    pub(super) fn check_read(
        &self,
        offset: u64,
        len: usize,
        attempt: io::Result<()>,
    ) -> Result<()> {
        let failed = |source| unreadable(&self.path, offset, len, source);
        let now = Stamp::of(&self.file).map_err(failed)?;
        match self.stamp.change_to(&now) {
            Some(change) => Err(self.changed(offset, change)),
            None => attempt.map_err(failed),
        }
    }

    pub(super) fn changed(&self, offset: u64, change: FileChange) -> Error {
        changed(&self.path, offset, change)
    }
}

/// Why a backend cannot open a file.
pub(super) enum BackendError {
    /// Another backend may support it.
    Unsupported { file: OpenFile, reason: String },
    /// No backend can open it.
    Failed(Error),
}
