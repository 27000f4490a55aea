//! What can be wrong with an index.

use crate::limits::{MAX_DEPTH, MAX_INDEX_BYTES};
use crate::names::{Listed, NameError};

/// Why a file is no index of safetensors files.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IndexError {
    /// It is larger than any index.
    #[error("it has {bytes} bytes, at most {MAX_INDEX_BYTES} are read")]
    TooLarge {
        /// Its size.
        bytes: u64,
    },
    /// It is not UTF-8.
    #[error("it is not UTF-8 from byte {at} on")]
    NotUtf8 {
        /// The first bad byte.
        at: usize,
    },
    /// It is not JSON of the expected form.
    #[error("{message}")]
    Json {
        /// What is wrong, with line and column.
        message: String,
    },
    /// A value is nested too deeply, in a field that readers skip.
    #[error("it has values nested more than {MAX_DEPTH} deep")]
    TooDeep,
    /// It names more tensors than any model has.
    #[error("it names more than {limit} tensors")]
    TooManyTensors {
        /// As many as it may name.
        limit: usize,
    },
    /// It names tensors more than once.
    #[error("it names tensors more than once: {}", Listed(names))]
    DuplicateTensors {
        /// The tensors, sorted.
        names: Vec<String>,
    },
    /// A name that no tensor may have.
    #[error("a tensor is called `{}`: {problem}", name.escape_debug())]
    TensorName {
        /// The name.
        name: String,
        /// What is wrong with it.
        problem: NameError,
    },
    /// A name that no file of the folder may have.
    #[error("a file is called `{}`: {problem}", name.escape_debug())]
    FileName {
        /// The name.
        name: String,
        /// What is wrong with it.
        problem: NameError,
    },
}
