//! Errors of ranks that save together.

use std::ops::Range;

use crate::exec::MemoryError;
use crate::graph::GraphError;
use crate::mapping::Report;
use crate::{Digest, Dtype, Listed};

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

    /// The ranks save different folders.
    #[error(
        "rank 0 saves the folders {}, but rank {rank} saves {}; add the same folders on all ranks",
        Listed(first),
        Listed(other)
    )]
    Folders {
        /// The other rank.
        rank: usize,
        /// The folders of rank 0.
        first: Vec<String>,
        /// The folders of the other rank.
        other: Vec<String>,
    },

    /// The ranks lay out different files.
    #[error(
        "rank {rank} lays out other files than rank 0 (digests {other} and {first}); use the same \
         mapping and the same maximum size of a file on all ranks"
    )]
    Layouts {
        /// The other rank.
        rank: usize,
        /// The digest of rank 0.
        first: Digest,
        /// The digest of the other rank.
        other: Digest,
    },

    /// A tensor has different dtypes or shapes on two ranks.
    #[error(
        "`{}` is {} {:?} on rank {} but {} {:?} on rank {}; all ranks must hold shards of one tensor",
        tensor.escape_debug(), types[0].0, types[0].1, ranks[0], types[1].0, types[1].1, ranks[1]
    )]
    Types {
        /// The tensor.
        tensor: String,
        /// Two ranks.
        ranks: [usize; 2],
        /// Its dtype and global shape on both.
        types: Box<[(Dtype, Vec<u64>); 2]>,
    },

    /// A region that is not part of its tensor.
    #[error(
        "rank {rank} has {region} of `{}`, whose shape is {shape:?}; a region has ascending ranges \
         inside of each dim", tensor.escape_debug()
    )]
    Region {
        /// The tensor.
        tensor: String,
        /// Its global shape.
        shape: Vec<u64>,
        /// The rank.
        rank: usize,
        /// The region.
        region: String,
    },

    /// A rank states a tensor twice.
    #[error("rank {rank} has two shards of `{}`; a rank has one", tensor.escape_debug())]
    Twice {
        /// The tensor.
        tensor: String,
        /// The rank.
        rank: usize,
    },

    /// No rank has some elements of a tensor.
    #[error(
        "no rank has {region} of `{}`, whose shape is {shape:?}; save with all ranks of the tensor's \
         mesh", tensor.escape_debug()
    )]
    Missing {
        /// The tensor.
        tensor: String,
        /// Its global shape.
        shape: Vec<u64>,
        /// Elements that are missing.
        region: String,
    },

    /// Two ranks have different regions that overlap.
    #[error(
        "ranks {} and {} have overlapping parts of `{}`, {} and {}; use one sharding of a tensor on \
         all ranks", ranks[0], ranks[1], tensor.escape_debug(), regions[0], regions[1]
    )]
    Overlap {
        /// The tensor.
        tensor: String,
        /// The ranks.
        ranks: [usize; 2],
        /// Their regions.
        regions: [String; 2],
    },

    /// The tensors cannot be stored under the mapping.
    #[error("the tensors cannot be stored as the mapping requires: {0}")]
    Unwritable(Report),

    /// A stored tensor cannot be traced to the tensors of the model.
    #[error("`{}` cannot be stored: {error}", tensor.escape_debug())]
    Graph {
        /// The stored tensor, or the tensor of the model.
        tensor: String,
        /// The problem.
        error: GraphError,
    },

    /// A stored tensor cannot be copied from the memory of the shards.
    #[error("`{}` cannot be stored: {error}", tensor.escape_debug())]
    Memory {
        /// The stored tensor.
        tensor: String,
        /// The problem.
        error: MemoryError,
    },

    /// The bytes of a shard cannot be read.
    #[error("`{}` cannot be read: {cause}", tensor.escape_debug())]
    Shard {
        /// The tensor.
        tensor: String,
        /// The cause.
        cause: String,
    },

    /// A rank did not write all of its bytes, or wrote more.
    #[error(
        "rank {rank} wrote {written} bytes of {file} in {range:?}, but owns {expected} there ({})",
        Listed(tensors)
    )]
    Incomplete {
        /// The file.
        file: String,
        /// The block.
        range: Range<u64>,
        /// The rank.
        rank: usize,
        /// Bytes that the rank owns in the block.
        expected: u64,
        /// Bytes that the rank wrote.
        written: u64,
        /// The tensors in the block.
        tensors: Vec<String>,
    },

    /// A file does not have the bytes that a rank wrote.
    #[error(
        "{file} does not have the bytes that rank {rank} wrote in {range:?} (written {written}, found \
         {found}; {})",
        Listed(tensors)
    )]
    Differs {
        /// The file.
        file: String,
        /// The block.
        range: Range<u64>,
        /// The rank.
        rank: usize,
        /// The digest of what the rank wrote.
        written: Digest,
        /// The digest of what the file has.
        found: Digest,
        /// The tensors in the block.
        tensors: Vec<String>,
    },
}
