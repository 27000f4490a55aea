//! Errors of tensors in memory.

use crate::graph::GraphError;

/// Why a region cannot be gathered from memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The region cannot be traced.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A tensor that is not in memory.
    #[error("`{}` is not in memory", .0.escape_debug())]
    Absent(String),
    /// An operation whose result would have to be computed first.
    #[error("the result of `{}` is not in memory; compute it first", .0.escape_debug())]
    NotComputed(String),
    /// A tensor's memory has a different size than the tensor.
    #[error("`{}` has {expected} bytes, but its memory has {found}", name.escape_debug())]
    Size {
        /// The tensor.
        name: String,
        /// Bytes of the tensor.
        expected: u64,
        /// Bytes of the memory.
        found: u64,
    },
    /// Elements smaller than a byte would have to be extracted from their bytes.
    #[error("elements of `{}` are smaller than a byte and cannot be copied one by one", .0.escape_debug())]
    PartOfAByte(String),
}
