//! The digests of blocks that ranks write together.

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::ops::Range;

use meshgrad_error::{Result, bail};
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use super::exchange::bad_message;
use super::folder::OwnedFolder;
use super::plan::{Plan, Staged};
use crate::blocks::{Block, Content};
use crate::error::io_error;
use crate::{Digest, Listed, PlannedFile, vfs};

/// A block: the number of a file, and of a block in it.
type BlockId = (usize, u64);

/// The bytes that a rank wrote to a block, in ascending order, as one digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Part {
    block: BlockId,
    pub(super) bytes: u64,
    xxh3: Digest,
}

/// Digests writes that ascend in each file, by block.
pub(super) struct PartHasher {
    block_bytes: u64,
    parts: BTreeMap<BlockId, (u64, XxHash3_64)>,
}

impl PartHasher {
    pub(super) fn new(block_bytes: u64) -> PartHasher {
        PartHasher { block_bytes, parts: BTreeMap::new() }
    }

    /// Adds bytes at an offset of a file.
    pub(super) fn update(&mut self, file: usize, mut offset: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let number = offset / self.block_bytes;
            let room = (number + 1) * self.block_bytes - offset;
            let (now, later) = bytes.split_at(room.min(bytes.len() as u64) as usize);
            let (count, hash) = self.parts.entry((file, number)).or_default();
            *count += now.len() as u64;
            hash.write(now);
            offset += now.len() as u64;
            bytes = later;
        }
    }

    pub(super) fn finish(self) -> Vec<Part> {
        let part = |(block, (bytes, hash)): (BlockId, (u64, XxHash3_64))| {
            let xxh3 = Digest(hash.finish());
            Part { block, bytes, xxh3 }
        };
        self.parts.into_iter().map(part).collect()
    }
}

/// A block of a file, with the parts that the ranks wrote.
pub(super) struct WrittenBlock<'p> {
    id: BlockId,
    range: Range<u64>,
    folder: &'p OwnedFolder,
    path: &'p str,
    planned: &'p PlannedFile,
    /// Each with its rank.
    parts: Vec<(usize, Part)>,
}

/// All blocks of all files, with the parts of ranks 0, 1, ... Equal on all ranks.
///
/// # Errors
/// For a block of which a rank wrote more or less than it owns.
pub(super) fn all_blocks<'p>(
    plan: &'p Plan,
    written: &[Vec<Part>],
) -> Result<Vec<WrittenBlock<'p>>> {
    let mut parts: BTreeMap<BlockId, Vec<(usize, Part)>> = BTreeMap::new();
    for (rank, of_rank) in written.iter().enumerate() {
        for part in of_rank {
            parts.entry(part.block).or_default().push((rank, *part));
        }
    }
    let mut blocks = Vec::new();
    for (number, (folder, path, planned)) in plan.files().enumerate() {
        let starts = (0..planned.bytes).step_by(plan.block_bytes as usize);
        for (start, at) in starts.zip(0..) {
            let id = (number, at);
            let block = WrittenBlock {
                id,
                range: start..planned.bytes.min(start.saturating_add(plan.block_bytes)),
                folder,
                path,
                planned,
                parts: parts.remove(&id).unwrap_or_default(),
            };
            block.check_size()?;
            blocks.push(block);
        }
    }
    Ok(blocks)
}

impl WrittenBlock<'_> {
    fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Whether several ranks wrote it, so that none has its digest.
    fn is_shared(&self) -> bool {
        self.parts.len() != 1
    }

    fn check_size(&self) -> Result<()> {
        let written: u64 = self.parts.iter().map(|(_, part)| part.bytes).sum();
        match written == self.len() {
            true => Ok(()),
            false => {
                let rank = self.parts.first().map_or(0, |(rank, _)| *rank);
                let problem = format!("{written} bytes of {} in {:?}", self.path, self.range);
                Err(bad_message(rank, problem))
            }
        }
    }

    /// Compares the block in the file with the digests of its parts and returns its digest.
    fn read(&self, staged: &Staged<'_>, buffer: &mut Vec<u8>) -> Result<Part> {
        let path = staged.folder.join(self.path);
        buffer.clear();
        buffer.resize(self.len() as usize, 0);
        let file = staged.vfs.open(&path);
        let read = file.and_then(|file| vfs::read_full_at(&*file, buffer, self.range.start));
        read.map_err(|error| io_error("read", &path, error))?; // the digests show what is missing
        self.check_parts(buffer)?;
        Ok(Part { block: self.id, bytes: self.len(), xxh3: Digest::of(buffer) })
    }

    fn check_parts(&self, bytes: &[u8]) -> Result<()> {
        let mut owned: BTreeMap<usize, XxHash3_64> = BTreeMap::new();
        for (range, owner) in self.folder.owners_of(self.planned, &self.range)? {
            let [start, end] = [range.start, range.end].map(|at| (at - self.range.start) as usize);
            owned.entry(owner).or_default().write(&bytes[start..end]);
        }
        let found = |rank| owned.get(&rank).map(|hash| Digest(hash.finish()));
        let mut parts = self.parts.iter();
        match parts.find(|(rank, part)| found(*rank) != Some(part.xxh3)) {
            None => Ok(()),
            Some((rank, _)) => bail!(
                Malformed,
                "{} does not have the bytes that rank {rank} wrote in {:?} ({}); check the file \
                 system that the ranks share",
                self.path,
                self.range,
                Listed(&self.tensors())
            ),
        }
    }

    /// The tensors that have bytes in the block.
    fn tensors(&self) -> Vec<&str> {
        let tensors = self.planned.tensors.iter().filter(|tensor| {
            tensor.range.start < self.range.end && self.range.start < tensor.range.end
        });
        tensors.map(|tensor| tensor.name.as_str()).collect()
    }
}

/// Reads this rank's share of the blocks that several ranks wrote: every n-th of them.
///
/// # Errors
/// When a block does not have the bytes that were written, or cannot be read.
pub(super) fn read_shared(
    blocks: &[WrittenBlock<'_>],
    staged: &Staged<'_>,
    world_size: usize,
) -> Result<Vec<Part>> {
    let shared = blocks.iter().filter(|block| block.is_shared());
    let mut buffer = Vec::new();
    let mine = shared.skip(staged.rank).step_by(world_size);
    mine.map(|block| block.read(staged, &mut buffer)).collect()
}

/// The content of each file, in order. `read` has the blocks that [`read_shared`] returned on the
/// ranks.
///
/// # Errors
/// When a block is missing.
pub(super) fn contents(
    blocks: &[WrittenBlock<'_>],
    read: &[Vec<Part>],
) -> Result<Vec<(String, Content)>> {
    let read: BTreeMap<BlockId, &Part> = read.iter().flatten().map(|it| (it.block, it)).collect();
    let mut files: Vec<(String, Content)> = Vec::new();
    for block in blocks {
        let part = match &block.parts[..] {
            [(_, only)] => Some(only),
            _ => read.get(&block.id).copied(),
        };
        let part = part.ok_or_else(|| {
            let problem = format!("no digest of {} in {:?}", block.path, block.range);
            bad_message(block.parts[0].0, problem)
        })?;
        if block.range.start == 0 {
            let (bytes, blocks) = (block.planned.bytes, Vec::new());
            files.push((block.path.to_owned(), Content { bytes, blocks }));
        }
        if let Some((_, content)) = files.last_mut() {
            content.blocks.push(Block {
                offset: block.range.start,
                bytes: block.len(),
                xxh3: part.xxh3,
            });
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A part's digest is that of its bytes in the block, however they are split into writes.
    #[test]
    fn parts_are_digested_by_block() {
        let bytes: Vec<u8> = (0..100u8).collect();
        let blocks = [&bytes[..23], &bytes[23..53], &bytes[53..83], &bytes[83..]];
        let part = |(of, at): (&[u8], u64)| Part {
            block: (5, at),
            bytes: of.len() as u64,
            xxh3: Digest::of(of),
        };
        let expected: Vec<Part> = blocks.into_iter().zip(0..).map(part).collect();
        for writes in [1, 3, 10, 100] {
            let mut hasher = PartHasher::new(30);
            for (at, some) in bytes.chunks(writes).enumerate() {
                hasher.update(5, (7 + at * writes) as u64, some);
            }
            assert_eq!(hasher.finish(), expected);
        }
    }
}
