//! Merging small blocks into larger ones.
//!
//! Ranks that split a tensor by columns write a short range of bytes per row, with a block for
//! each: millions in a large model, more than a manifest should list. Digests cannot be combined,
//! so such a file is read once more before it is sealed.

use std::hash::Hasher;
use std::io;
use std::path::Path;

use meshgrad_error::{Result, error};
use twox_hash::XxHash3_64;

use crate::blocks::{Block, BlockHasher, Digest};
use crate::error::io_error;
use crate::vfs::{self, Vfs, VfsFile};

/// Up to this many blocks are never merged.
const FEW: u64 = 1024;

/// Above that, blocks should have at least this many bytes on average.
const AVERAGE: u64 = 64 << 10;

const WINDOW: usize = 1 << 20;

/// A block whose bytes differ from those that were written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mismatch {
    block: Block,
    found: Digest,
}

/// Whether a file has so many small blocks that it should be read to merge them.
pub(crate) fn are_small(blocks: &[Block], file_bytes: u64) -> bool {
    blocks.len() as u64 > FEW + file_bytes / AVERAGE
}

/// Merges the small blocks of a file below a folder into blocks of at most `limit` bytes.
///
/// # Errors
/// When the bytes differ from those that were written, or cannot be read.
pub(crate) fn merge_in_folder(
    vfs: &dyn Vfs,
    folder: &Path,
    path: &str,
    small: &[Block],
    limit: u64,
) -> Result<Vec<Block>> {
    let full = folder.join(path);
    let merged = vfs.open_below(folder, path);
    let merged = merged.and_then(|file| merge(&*file, small, limit));
    let merged = merged.map_err(|error| io_error("read", &full, error))?;
    merged.map_err(|Mismatch { block, found }| {
        error!(
            Malformed,
            "bytes {}..{} of {} have digest {found}, but digest {} was written; another program \
             modified the file, or the disk is faulty",
            block.offset,
            block.end(),
            full.display(),
            block.xxh3
        )
    })
}

/// Merges the small blocks of a file into blocks of at most `limit` bytes. Also compares the file
/// with its small blocks, which are consecutive from 0 to its end.
fn merge(
    file: &dyn VfsFile,
    small: &[Block],
    limit: u64,
) -> io::Result<std::result::Result<Vec<Block>, Mismatch>> {
    let (mut hasher, mut merged) = (BlockHasher::new(0, limit), Vec::new());
    let mut window = vec![0; WINDOW];
    let mut ahead = 0..0;

    for &block in small {
        let mut hash = XxHash3_64::new();
        let mut missing = block.bytes;
        while missing > 0 {
            if ahead.is_empty() {
                ahead = 0..vfs::read_full_at(file, &mut window, hasher.end())?;
                if ahead.is_empty() {
                    break;
                }
            }
            let taken = missing.min(ahead.len() as u64) as usize;
            let bytes = &window[ahead.start..ahead.start + taken];
            hash.write(bytes);
            hasher.update(bytes, &mut merged);
            ahead.start += taken;
            missing -= taken as u64;
        }

        let found = Digest(hash.finish());
        if found != block.xxh3 {
            return Ok(Err(Mismatch { block, found }));
        }
    }
    hasher.flush(&mut merged);
    Ok(Ok(merged))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs::RealFs;
    use meshgrad_ckpt_crash::SplitMix64;

    fn blocks(bytes: &[u8], mut size: impl FnMut() -> usize) -> Vec<Block> {
        let (mut blocks, mut offset) = (Vec::new(), 0);
        while offset < bytes.len() {
            let end = (offset + size()).min(bytes.len());
            blocks.push(Block {
                offset: offset as u64,
                bytes: (end - offset) as u64,
                xxh3: Digest::of(&bytes[offset..end]),
            });
            offset = end;
        }
        blocks
    }

    /// For blocks of any sizes, the merged ones match the bytes, and any modification is detected
    /// in its block.
    #[test]
    fn merged_blocks_match_the_bytes() {
        let bytes: Vec<u8> = (0..(2 * WINDOW + 77) as u64)
            .map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
            .collect();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        std::fs::write(&path, &bytes).unwrap();
        let file = RealFs.open(&path).unwrap();

        let mut draws = SplitMix64::new(1);
        for (most, limit) in [(3000, 1 << 20), (WINDOW as u64, 1000), (400_000, 16 << 20)] {
            let small = blocks(&bytes, || 1 + draws.below(most) as usize);
            let merged = merge(&*file, &small, limit).unwrap().unwrap();
            assert_eq!(merged, blocks(&bytes, || limit as usize));

            let mut other = small.clone();
            let at = draws.below(small.len() as u64) as usize;
            other[at].xxh3.0 ^= 1;
            let mismatch = merge(&*file, &other, limit).unwrap().unwrap_err();
            assert_eq!((mismatch.block, mismatch.found), (other[at], small[at].xxh3));
        }

        let mut longer = blocks(&bytes, || 5000);
        longer.push(Block { offset: bytes.len() as u64, bytes: 9, xxh3: Digest::of(&[0; 9]) });
        let mismatch = merge(&*file, &longer, 1000).unwrap().unwrap_err();
        assert_eq!(mismatch.block, longer[longer.len() - 1]);
    }
}
