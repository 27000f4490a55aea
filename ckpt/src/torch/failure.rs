//! Why reading a part of a file of PyTorch failed, before the path of the file is known.

use std::io;
use std::path::Path;

use super::error::TorchError;
use crate::Error;

/// A file of PyTorch cannot be read because of its content, or because a system call failed.
#[derive(Debug)]
pub(super) enum Failure {
    Content(TorchError),
    Io(io::Error),
}

impl Failure {
    /// The error for the file at `path`.
    pub(super) fn at(self, path: &Path) -> Error {
        match self {
            Failure::Io(error) => Error::io("read", path, error),
            Failure::Content(problem) => Error::Torch { path: path.to_owned(), problem },
        }
    }
}

impl From<TorchError> for Failure {
    fn from(problem: TorchError) -> Failure {
        Failure::Content(problem)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Io(error)
    }
}

/// The result of reading a part of a file.
pub(super) type Read<T> = Result<T, Failure>;
