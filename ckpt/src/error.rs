//! Errors that several modules return.

use std::error::Error as _;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use meshgrad_error::{Error, Kind, error};

use crate::integrity::Incomplete;
use crate::source::FileChange;

/// The disk or the quota is full: details of an [`Error`]. Earlier checkpoints are untouched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoSpace {
    /// The file or folder that was being written.
    pub path: PathBuf,
    /// Bytes that had to be written.
    pub needed: u64,
    /// Bytes that were available, if the system reports it.
    pub available: Option<u64>,
}

impl fmt::Display for NoSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no space for {}: {} bytes needed", self.path.display(), self.needed)?;
        if let Some(available) = self.available {
            write!(f, ", {available} available")?;
        }
        f.write_str(
            "; free some space or choose another folder (earlier checkpoints are untouched)",
        )
    }
}

/// The path of a system call that failed, and the message.
struct FailedCall {
    path: PathBuf,
    message: String,
}

impl fmt::Display for FailedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// The error of a system call: `action`, a verb, failed for a file or folder.
pub fn io_error(action: &str, path: &Path, source: io::Error) -> Error {
    let message = format!("cannot {action} {}: {source}", path.display());
    let kind = match source.kind() {
        io::ErrorKind::NotFound => Kind::Missing,
        _ => Kind::System,
    };
    Error::with_details(kind, FailedCall { path: path.to_owned(), message }).caused_by(source)
}

/// The path of an [`io_error`], or the folder of an [`Incomplete`] checkpoint.
pub fn path_of(error: &Error) -> Option<&Path> {
    let incomplete = error.details().map(|it: &Incomplete| &it.path);
    let path = incomplete.or_else(|| error.details().map(|it: &FailedCall| &it.path));
    path.map(PathBuf::as_path)
}

/// The error of a write of `needed` bytes; [`NoSpace`] if the disk is full.
pub(crate) fn write_error(path: &Path, needed: u64, source: io::Error) -> Error {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            no_space(path, needed, crate::disk::available_bytes(path))
        }
        _ => io_error("write", path, source),
    }
}

pub(crate) fn no_space(path: &Path, needed: u64, available: Option<u64>) -> Error {
    Error::with_details(Kind::System, NoSpace { path: path.to_owned(), needed, available })
}

pub(crate) fn not_a_file(path: &Path) -> Error {
    error!(System, "{} is not a regular file", path.display())
}

pub(crate) fn already_exists(path: &Path) -> Error {
    error!(Invalid, "{} already exists; remove it or choose another name", path.display())
}

pub(crate) fn bad_file_name(folder: &Path, name: &str, problem: &str) -> Error {
    let (name, folder) = (name.escape_debug(), folder.display());
    error!(Invalid, "invalid file name `{name}` in {folder}: {problem}")
}

pub(crate) fn duplicate_tensor(kind: Kind, name: &str) -> Error {
    let name = name.escape_debug();
    Error::new(kind, format!("two tensors have the name `{name}`; rename one of them"))
}

/// A failed read of a file. The name of a tensor goes between the two halves of the message.
struct FailedRead {
    place: String,
    problem: String,
}

impl fmt::Display for FailedRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.place, self.problem)
    }
}

/// The error for a file that changed since it was opened, detected by a read at `offset`.
pub(crate) fn changed(path: &Path, offset: u64, change: FileChange) -> Error {
    let path = path.display();
    let failed = FailedRead {
        place: format!("{path} was modified while it was read, detected at offset {offset}"),
        problem: format!(": {change}; do not write to a checkpoint in place"),
    };
    Error::with_details(Kind::Malformed, failed)
}

/// The error for `len` bytes at `offset` that the system could not read.
pub(crate) fn unreadable(path: &Path, offset: u64, len: usize, source: io::Error) -> Error {
    let failed = FailedRead {
        place: format!("cannot read {len} bytes at offset {offset} of {}", path.display()),
        problem: format!(": {source}"),
    };
    Error::with_details(Kind::System, failed).caused_by(source)
}

/// Adds the tensor that was being read, or the first of several.
pub(crate) fn while_reading(error: Error, tensor: &str) -> Error {
    let Some(FailedRead { place, problem }) = error.details() else {
        return error;
    };
    let message = format!("{place} (tensor `{}`){problem}", tensor.escape_debug());
    let named = Error::new(error.kind(), message);
    match error.source().and_then(|source| source.downcast_ref::<io::Error>()) {
        Some(source) => named.caused_by(again(source)),
        None => named,
    }
}

/// The same error of the system.
pub(crate) fn again(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tensor is added to the message of a failed read once, and the system's error stays.
    #[test]
    fn errors_of_reads_name_the_tensor() {
        let source = io::Error::from_raw_os_error(5);
        let text = source.to_string();
        let error = unreadable(Path::new("x"), 3, 4, source);
        assert_eq!(error.to_string(), format!("cannot read 4 bytes at offset 3 of x: {text}"));

        let named = while_reading(while_reading(error, "w\n"), "v");
        assert_eq!(
            named.to_string(),
            format!("cannot read 4 bytes at offset 3 of x (tensor `w\\n`): {text}")
        );
        assert!(crate::is_disk_failure(&named));

        let changed = changed(Path::new("x"), 9, FileChange::Written);
        assert_eq!(
            while_reading(changed, "w").to_string(),
            "x was modified while it was read, detected at offset 9 (tensor `w`): it was written; \
             do not write to a checkpoint in place"
        );
    }
}
