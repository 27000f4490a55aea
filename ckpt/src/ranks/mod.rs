//! Ranks that save one checkpoint together, each with its shards of the tensors.
//!
//! ```text
//!   plan      each rank states its shards       all ranks compute the same files and owners
//!   create    rank 0 stages the folder and allocates all files
//!   write     each rank writes, digests and syncs the bytes that it owns
//!   verify    blocks that several ranks wrote are read again, each by one rank
//!   publish   rank 0 seals the folder and renames it
//! ```
//!
//! After each step all ranks exchange their results. If a rank fails, all return an error that
//! names it, and nothing is published. The files and the manifest are byte for byte those that one
//! rank writes for the whole tensors, on any mesh.
//!
//! - **Owners.** A region that several ranks hold is written by one of them, chosen so that the
//!   ranks write about equally many bytes. A region that no rank holds is an error.
//! - **Memory.** A rank traces each stored tensor through the mapping in chunks of 1 MiB and
//!   writes the ranges of a chunk that come from its own shards. It never has a tensor of which it
//!   only has a part.
//! - **Digests.** A manifest lists the digests of blocks of 16 MiB from the start of each file. Each
//!   rank digests the bytes that it writes to each block, in order. If it wrote the whole block,
//!   this is the digest of the block. Digests of parts cannot be combined, so other blocks are read
//!   once more: the reader compares the bytes of each rank with that rank's digest, and digests the
//!   block.
//!
//! This module knows tensors as bytes and ranks as [`Ranks`]; it does not import communicators.

mod agree;
mod error;
mod folder;
mod gather_fn;
mod owners;
mod parts;
mod plan;
mod runs;
mod shard;
mod snapshot;
mod threads;
mod verify;
mod write;

pub use error::RanksError;
pub use gather_fn::GatherFn;
pub use shard::Shard;
pub use snapshot::{Saved, ShardedSnapshot};
pub use threads::ThreadRanks;

/// A cause of a failure, from a transport or from the memory of a tensor.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// The ranks that save together, as seen by one of them.
pub trait Ranks {
    /// Its number, from 0.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn world_size(&self) -> usize;

    /// Sends `mine` to all ranks and returns the messages of ranks 0, 1, ... Ranks may arrive far
    /// apart: while one waits, another may still write its share of the checkpoint.
    ///
    /// # Errors
    /// When a rank has failed or exited. The error should name it.
    fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Cause>;
}

/// The bytes of a rank's shards: dense, row-major, in host memory.
pub trait ShardMemory {
    /// Makes the bytes of a tensor's shard available. Called once per tensor, before its first use.
    ///
    /// # Errors
    /// When they cannot be read.
    fn open(&mut self, tensor: &str) -> Result<(), Cause>;

    /// The bytes of an open shard.
    fn bytes(&self, tensor: &str) -> Option<&[u8]>;

    /// Called after the last use of a tensor.
    fn close(&mut self, tensor: &str);
}
