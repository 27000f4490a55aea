//! What cannot be planned.

use crate::Dtype;
use crate::graph::GraphError;
use crate::names::Listed;

/// Why there is no plan. Nothing has been read then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The region of a target cannot be pulled.
    #[error("target `{}`: {error}", target.escape_debug())]
    Graph {
        /// The target.
        target: String,
        /// Why not.
        error: GraphError,
    },

    /// Two targets of one name.
    #[error("target `{}` is wanted twice: give each region its own name", target.escape_debug())]
    DuplicateTarget {
        /// The target.
        target: String,
    },

    /// A target of more bytes than can be counted.
    #[error("target `{}` of shape {shape:?} has more than 2^64 bits", target.escape_debug())]
    TooLarge {
        /// The target.
        target: String,
        /// Its shape.
        shape: Vec<u64>,
    },

    /// Tensors that targets are made of are in no file.
    #[error("the files do not have {}", Listed(names))]
    Missing {
        /// All of them, sorted.
        names: Vec<String>,
    },

    /// A tensor is not what the graph says.
    #[error(
        "tensor `{}` is {found_dtype} {found:?} in the file, the graph takes it for {dtype} \
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

    /// Elements smaller than a byte would have to be taken out of their bytes.
    #[error(
        "target `{}` takes {dtype} elements of `{}` apart or puts them together inside of bytes: \
         only whole bytes of them can be moved; cut and join along dims whose rows are whole bytes",
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

    /// More memory is needed than is allowed.
    #[error(
        "the plan needs {need} bytes of memory and may have {have}: {targets} are the targets \
         themselves; raise the budget, use fewer threads, or want less at once"
    )]
    Infeasible {
        /// The least that it can do with, in bytes.
        need: u64,
        /// The budget.
        have: u64,
        /// What targets take of the need.
        targets: u64,
    },
}
