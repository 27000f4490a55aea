//! Errors of ranks that save together.

use std::ops::Range;

use crate::Listed;
use crate::mapping::Report;

/// Why ranks cannot save a checkpoint together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RanksError {
    /// A rank failed. All ranks return this error; if several failed, it names the lowest one.
    #[error("rank {rank} failed to {step}: {cause}")]
    Failed {
        /// The rank.
        rank: usize,
        /// The step.
        step: &'static str,
        /// Its error.
        cause: String,
    },

    /// The ranks cannot exchange messages, usually because one has exited.
    #[error("cannot {step} with the other ranks: {cause}")]
    Transport {
        /// The step.
        step: &'static str,
        /// The transport's error.
        cause: String,
    },

    /// A message that is not one of this protocol.
    #[error("rank {rank} sent an invalid message ({problem}); run the same version on all ranks")]
    Message {
        /// The sender.
        rank: usize,
        /// The problem.
        problem: String,
    },

    /// The shards of the ranks do not form a tensor.
    #[error("`{}`: {problem}", tensor.escape_debug())]
    Shards {
        /// The tensor.
        tensor: String,
        /// The problem, and what to do.
        problem: String,
    },

    /// The ranks lay out different files.
    #[error(
        "rank {rank} lays out other files than rank 0; use the same folders, mappings and maximum \
         size of a file on all ranks"
    )]
    Layouts {
        /// The other rank.
        rank: usize,
    },

    /// The tensors cannot be stored under the mapping.
    #[error("the tensors cannot be stored as the mapping requires: {0}")]
    Unwritable(Report),

    /// A tensor cannot be read from the memory of the shards.
    #[error("`{}` cannot be stored: {cause}", tensor.escape_debug())]
    Tensor {
        /// The stored tensor, or the tensor of the model.
        tensor: String,
        /// The cause.
        cause: String,
    },

    /// A file does not have the bytes that a rank wrote.
    #[error(
        "{file} does not have the bytes that rank {rank} wrote in {range:?} ({}); check the file \
         system that the ranks share",
        Listed(tensors)
    )]
    Differs {
        /// The file.
        file: String,
        /// The block.
        range: Range<u64>,
        /// The rank.
        rank: usize,
        /// The tensors in the block.
        tensors: Vec<String>,
    },
}

impl RanksError {
    pub(super) fn tensor(name: &str, cause: impl ToString) -> RanksError {
        RanksError::Tensor { tensor: name.to_owned(), cause: cause.to_string() }
    }
}
