//! A file as it was when it was opened, and what has become of it.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::file_change::FileChange;
use crate::error::Error;

/// What a file must still be after a read.
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
            return Some(FileChange::Length {
                was: self.bytes,
                is: now.bytes,
            });
        }
        if now.modified != self.modified {
            return Some(FileChange::Written);
        }
        (now.has_name != self.has_name).then_some(FileChange::Replaced)
    }
}

/// An open file with its stamp: what the backends share.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) path: PathBuf,
    pub(super) file: File,
    stamp: Stamp,
}

impl OpenFile {
    pub(super) fn new(path: PathBuf, file: File) -> Result<OpenFile, Error> {
        match Stamp::of(&file) {
            Ok(stamp) => Ok(OpenFile { path, file, stamp }),
            Err(error) => Err(Error::io("open", &path, error)),
        }
    }

    pub(super) fn byte_len(&self) -> u64 {
        self.stamp.bytes
    }

    /// What follows from an attempt to read `len` bytes at `offset`: bytes of a file that has
    /// changed, or that ends before them, are no result, whatever the attempt gave.
    pub(super) fn check_read(
        &self,
        offset: u64,
        len: usize,
        attempt: io::Result<()>,
    ) -> Result<(), Error> {
        let failed = |source| Error::ReadAt {
            path: self.path.clone(),
            offset,
            len,
            tensor: None,
            source,
        };
        let now = Stamp::of(&self.file).map_err(failed)?;
        match self.stamp.change_to(&now) {
            Some(change) => Err(self.changed(offset, change)),
            None => attempt.map_err(failed),
        }
    }

    pub(super) fn changed(&self, offset: u64, change: FileChange) -> Error {
        Error::FileChanged {
            path: self.path.clone(),
            offset,
            tensor: None,
            change,
        }
    }
}

/// Why a backend does not take a file.
pub(super) enum BackendError {
    /// Another one can have it.
    Unsupported { file: OpenFile, reason: String },
    /// Nobody can.
    Failed(Error),
}
