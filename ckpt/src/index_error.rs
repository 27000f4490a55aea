//! Errors in an index.

use crate::limits::{MAX_DEPTH, MAX_INDEX_BYTES};
use crate::names::{Listed, NameError};

/// Why a file is not an index of safetensors files.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IndexError {
    /// It is larger than the limit.
    #[error("it has {bytes} bytes, more than the limit of {MAX_INDEX_BYTES}")]
    TooLarge {
        /// Its size.
        bytes: u64,
    },
    /// It is not UTF-8.
    #[error("it is not UTF-8 at byte {at}")]
    NotUtf8 {
        /// The first invalid byte.
        at: usize,
    },
    /// It is not JSON of the expected form.
    #[error("{message}")]
    Json {
        /// The problem, with line and column.
        message: String,
    },
    /// A value is nested too deeply, in a field that readers skip.
    #[error("it has values nested more than {MAX_DEPTH} levels deep")]
    TooDeep,
    /// It names more tensors than the limit.
    #[error("it names more than {limit} tensors")]
    TooManyTensors {
        /// The limit.
        limit: usize,
    },
    /// It names tensors more than once.
    #[error("it names tensors more than once: {}", Listed(names))]
    DuplicateTensors {
        /// The tensors, sorted.
        names: Vec<String>,
    },
    /// An invalid tensor name.
    #[error("invalid tensor name `{}`: {problem}", name.escape_debug())]
    TensorName {
        /// The name.
        name: String,
        /// The problem.
        problem: NameError,
    },
    /// An invalid file name.
    #[error("invalid file name `{}`: {problem}", name.escape_debug())]
    FileName {
        /// The name.
        name: String,
        /// The problem.
        problem: NameError,
    },
}
