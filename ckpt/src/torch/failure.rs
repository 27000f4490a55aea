//! Why reading a part of a file of PyTorch failed, before the path of the file is known.

use std::io;
use std::path::Path;

use meshgrad_error::{Error, Kind};

use crate::error::io_error;

/// A file of PyTorch cannot be read because of its content, or because a system call failed.
#[derive(Debug)]
pub(super) enum Failure {
    Content(Error),
    Io(io::Error),
}

impl Failure {
    /// The error for the file at `path`.
    pub(super) fn at(self, path: &Path) -> Error {
        match self {
            Failure::Io(error) => io_error("read", path, error),
            Failure::Content(problem) => {
                let verdict = match problem.kind() {
                    Kind::Malformed => "cannot be read as a model of PyTorch",
                    _ => "is not supported",
                };
                problem.context(format_args!("{} {verdict}", path.display()))
            }
        }
    }
}

impl From<Error> for Failure {
    fn from(problem: Error) -> Failure {
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
