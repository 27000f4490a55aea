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

mod blocks;
mod exchange;
mod folder;
mod owners;
mod plan;
mod regions;
mod runs;
mod shard;
mod snapshot;
mod write;

use std::fmt;

pub use exchange::Ranks;
pub use shard::Shard;
pub use snapshot::{Saved, ShardedSnapshot};

use meshgrad_error::{Error, error};

use crate::exec::TensorBytes;

/// A cause of a failure, from a transport or from the memory of a tensor.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Reads the bytes of this rank's shard of a tensor.
type ReadShard<'m> = Box<dyn Fn(&str) -> Result<TensorBytes<'m>, Cause> + Send + 'm>;

/// The error for a stored tensor, or a tensor of the model, that cannot be read from the memory of
/// the shards.
fn not_stored(tensor: &str, cause: impl fmt::Display) -> Error {
    error!(Invalid, "`{}` cannot be stored: {cause}", tensor.escape_debug())
}
