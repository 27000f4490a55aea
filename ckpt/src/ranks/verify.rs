//! Checks that the ranks wrote everything, and reads the blocks that several ranks wrote.

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::ops::Range;
use std::path::PathBuf;

use twox_hash::XxHash3_64;

use super::RanksError;
use super::folder::OwnedFolder;
use super::parts::{BlockId, Part, PartsOfBlocks, blocks_of};
use super::plan::Plan;
use super::write::Staged;
use crate::blocks::{Block, Content};
use crate::vfs;
use crate::{Digest, Error, PlannedFile, Result};

/// A block of a file, with the parts that the ranks wrote.
pub(super) struct WrittenBlock<'p> {
    id: BlockId,
    range: Range<u64>,
    folder: &'p OwnedFolder,
    path: &'p str,
    planned: &'p PlannedFile,
    parts: &'p [(usize, Part)],
}

/// All blocks of all files. Equal on all ranks.
///
/// # Errors
/// [`RanksError::Incomplete`]; [`RanksError::Message`] for a block that does not exist.
pub(super) fn all_blocks<'p>(
    plan: &'p Plan,
    parts: &'p PartsOfBlocks,
) -> Result<Vec<WrittenBlock<'p>>, RanksError> {
    let mut blocks = Vec::new();
    for (number, (folder, path, planned)) in plan.files().enumerate() {
        for (range, at) in blocks_of(planned.bytes, plan.block_bytes).zip(0..) {
            let id = (number, at);
            let block = WrittenBlock {
                id,
                range,
                folder,
                path,
                planned,
                parts: parts.get(&id).map_or(&[], Vec::as_slice),
            };
            block.check_complete()?;
            blocks.push(block);
        }
    }
    let exists = |id: &BlockId| blocks.binary_search_by_key(id, |block| block.id).is_ok();
    if let Some((id, parts)) = parts.iter().find(|(id, _)| !exists(id)) {
        return Err(RanksError::Message {
            rank: parts[0].0,
            problem: format!("file {} has no block {}", id.0, id.1),
        });
    }
    Ok(blocks)
}

impl WrittenBlock<'_> {
    fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Whether one rank wrote all of it, so that its digest is that of the block.
    fn is_of_one_rank(&self) -> bool {
        matches!(self.parts, [(_, part)] if part.bytes == self.len())
    }

    fn check_complete(&self) -> Result<(), RanksError> {
        let written: u64 = self.parts.iter().map(|(_, part)| part.bytes).sum();
        if written == self.len() {
            return Ok(());
        }
        // Ranks that wrote something, and ranks that own something.
        let mut bytes: BTreeMap<usize, [u64; 2]> = BTreeMap::new();
        for (rank, part) in self.parts {
            bytes.entry(*rank).or_default()[0] += part.bytes;
        }
        for (range, owner) in self.folder.owners_of(self.planned, &self.range)? {
            bytes.entry(owner).or_default()[1] += range.end - range.start;
        }
        let wrong = bytes
            .into_iter()
            .find(|(_, [written, owned])| written != owned);
        let (rank, [written, expected]) = wrong.unwrap_or_default(); // the sums differ
        Err(RanksError::Incomplete {
            file: self.path.to_owned(),
            range: self.range.clone(),
            rank,
            expected,
            written,
            tensors: self.tensors(),
        })
    }

    /// Compares the block in the file with the digests of its parts and returns its digest.
    fn read(&self, staged: &Staged<'_>, buffer: &mut Vec<u8>) -> Result<Part> {
        let path = staged.folder.join(self.path);
        buffer.resize(self.len() as usize, 0);
        let file = staged.vfs.open(&path);
        let read = file.and_then(|file| vfs::read_full_at(&*file, buffer, self.range.start));
        let read = read.map_err(|error| Error::io("read", &path, error))? as u64;
        if read != self.len() {
            return Err(self.too_short(path, read));
        }
        self.check_parts(buffer)?;
        Ok(Part {
            block: self.id,
            bytes: self.len(),
            xxh3: Digest::of(buffer),
        })
    }

    fn too_short(&self, path: PathBuf, read: u64) -> Error {
        Error::ChangedWhileStaged {
            path,
            written: self.planned.bytes,
            found: self.range.start + read,
        }
    }

    fn check_parts(&self, bytes: &[u8]) -> Result<(), RanksError> {
        let mut owned: BTreeMap<usize, XxHash3_64> = BTreeMap::new();
        for (range, owner) in self.folder.owners_of(self.planned, &self.range)? {
            let [start, end] = [range.start, range.end].map(|at| (at - self.range.start) as usize);
            owned.entry(owner).or_default().write(&bytes[start..end]);
        }
        for (rank, part) in self.parts {
            let found = owned
                .get(rank)
                .map_or(Digest::of(&[]), |hash| Digest(hash.finish()));
            if found != part.xxh3 {
                return Err(RanksError::Differs {
                    file: self.path.to_owned(),
                    range: self.range.clone(),
                    rank: *rank,
                    written: part.xxh3,
                    found,
                    tensors: self.tensors(),
                });
            }
        }
        Ok(())
    }

    /// The tensors that have bytes in the block.
    fn tensors(&self) -> Vec<String> {
        let tensors = self.planned.tensors.iter().filter(|tensor| {
            tensor.range.start < self.range.end && self.range.start < tensor.range.end
        });
        tensors.map(|tensor| tensor.name.clone()).collect()
    }
}

/// Reads this rank's share of the blocks that several ranks wrote: every n-th of them.
///
/// # Errors
/// [`RanksError::Differs`]; [`Error::ChangedWhileStaged`], [`Error::Io`].
pub(super) fn read_shared(
    blocks: &[WrittenBlock<'_>],
    staged: &Staged<'_>,
    world_size: usize,
) -> Result<Vec<Part>> {
    let shared = blocks.iter().filter(|block| !block.is_of_one_rank());
    let mut buffer = Vec::new();
    let mine = shared.skip(staged.rank).step_by(world_size.max(1));
    mine.map(|block| block.read(staged, &mut buffer)).collect()
}

/// The content of each file, in order. `read` has the blocks that [`read_shared`] returned on the
/// ranks.
///
/// # Errors
/// [`RanksError::Message`] when a block is missing.
pub(super) fn contents(
    blocks: &[WrittenBlock<'_>],
    read: &PartsOfBlocks,
) -> Result<Vec<(String, Content)>, RanksError> {
    let mut files: Vec<(String, Content)> = Vec::new();
    for block in blocks {
        let part = match block.is_of_one_rank() {
            true => block.parts.first(),
            false => read.get(&block.id).and_then(|parts| parts.first()),
        };
        let Some((_, part)) = part else {
            return Err(RanksError::Message {
                rank: 0,
                problem: format!("no rank has read {} in {:?}", block.path, block.range),
            });
        };
        if block.id.1 == 0 {
            let bytes = block.planned.bytes;
            let content = Content {
                bytes,
                blocks: Vec::new(),
            };
            files.push((block.path.to_owned(), content));
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
