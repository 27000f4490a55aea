//! Errors of planning.

use crate::Dtype;
use crate::graph::GraphError;
use crate::names::Listed;

/// Why there is no plan. Nothing has been read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The region of a target cannot be traced.
    #[error("target `{}`: {error}", target.escape_debug())]
    Graph {
        /// The target.
        target: String,
        /// The reason.
        error: GraphError,
    },

    /// Two targets with the same name.
    #[error("target `{}` is requested twice: give each region its own name", target.escape_debug())]
    DuplicateTarget {
        /// The target.
        target: String,
    },

    /// The bits of a target do not fit in 64 bits.
    #[error("target `{}` of shape {shape:?} has more than 2^64 bits", target.escape_debug())]
    TooLarge {
        /// The target.
        target: String,
        /// Its shape.
        shape: Vec<u64>,
    },

    /// No file contains these source tensors.
    #[error("the files lack {}", Listed(names))]
    Missing {
        /// All of them, sorted.
        names: Vec<String>,
    },

    /// A tensor differs from its definition in the graph.
    #[error(
        "tensor `{}` is {found_dtype} {found:?} in the file, but the graph defines it as {dtype} \
         {shape:?}", name.escape_debug()
    )]
    Differs {
        /// The tensor.
        name: String,
        /// Its dtype in the graph.
        dtype: Dtype,
        /// Its shape in the graph.
        shape: Vec<u64>,
        /// Its dtype in the file.
        found_dtype: Dtype,
        /// Its shape in the file.
        found: Vec<u64>,
    },

    /// Elements smaller than a byte would have to be extracted from their bytes.
    #[error(
        "target `{}` would split or join bytes of {dtype} elements of `{}`: \
         elements can be moved only in whole bytes; slice and concatenate along dims whose rows are whole bytes",
        target.escape_debug(), source_tensor.escape_debug()
    )]
    PartOfAByte {
        /// The target.
        target: String,
        /// The tensor that is read.
        source_tensor: String,
        /// Its dtype.
        dtype: Dtype,
    },

    /// The budget is too small.
    #[error(
        "the plan needs {need} bytes of memory, but the budget is {have}: {targets} are for targets \
         alone; raise the budget, use fewer threads, or load less at once"
    )]
    Infeasible {
        /// The minimum in bytes.
        need: u64,
        /// The budget.
        have: u64,
        /// Bytes of the minimum that are for targets.
        targets: u64,
    },
}
