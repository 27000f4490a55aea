//! Digests of the bytes that a rank writes to each block of a file.

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use crate::Digest;

/// A block: the number of a file, and of a block in it.
pub(super) type BlockId = (usize, u64);

/// The bytes that a rank wrote to a block, in ascending order, as one digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Part {
    pub(super) block: BlockId,
    pub(super) bytes: u64,
    pub(super) xxh3: Digest,
}

/// Digests writes that ascend in each file, file after file.
pub(super) struct PartHasher {
    block_bytes: u64,
    open: Option<(BlockId, u64, XxHash3_64)>,
    done: Vec<Part>,
}

impl PartHasher {
    pub(super) fn new(block_bytes: u64) -> PartHasher {
        PartHasher {
            block_bytes,
            open: None,
            done: Vec::new(),
        }
    }

    /// Adds bytes at an offset of a file.
    pub(super) fn update(&mut self, file: usize, mut offset: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let number = offset / self.block_bytes;
            let room = (number + 1) * self.block_bytes - offset;
            let (now, later) = bytes.split_at(room.min(bytes.len() as u64) as usize);
            self.write((file, number), now);
            offset += now.len() as u64;
            bytes = later;
        }
    }

    fn write(&mut self, block: BlockId, bytes: &[u8]) {
        if self.open.as_ref().is_some_and(|open| open.0 != block) {
            self.close();
        }
        let open = self
            .open
            .get_or_insert_with(|| (block, 0, XxHash3_64::new()));
        open.1 += bytes.len() as u64;
        open.2.write(bytes);
    }

    fn close(&mut self) {
        if let Some((block, bytes, hash)) = self.open.take() {
            let xxh3 = Digest(hash.finish());
            self.done.push(Part { block, bytes, xxh3 });
        }
    }

    pub(super) fn finish(mut self) -> Vec<Part> {
        self.close();
        self.done
    }
}

/// The parts of each block, each with its rank.
pub(super) type PartsOfBlocks = BTreeMap<BlockId, Vec<(usize, Part)>>;

/// Groups the parts of ranks 0, 1, ... by block.
pub(super) fn by_block(ranks: &[Vec<Part>]) -> PartsOfBlocks {
    let mut blocks = PartsOfBlocks::new();
    for (rank, parts) in ranks.iter().enumerate() {
        for part in parts {
            blocks.entry(part.block).or_default().push((rank, *part));
        }
    }
    blocks
}

/// The blocks of a file of `bytes` bytes.
pub(super) fn blocks_of(bytes: u64, block_bytes: u64) -> impl Iterator<Item = Range<u64>> {
    let starts = (0..bytes.div_ceil(block_bytes)).map(move |number| number * block_bytes);
    starts.map(move |start| start..bytes.min(start.saturating_add(block_bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A part's digest is that of its bytes in the block, however they are split into writes.
    #[test]
    fn parts_are_digested_by_block() {
        let bytes: Vec<u8> = (0..100u8).collect();
        for writes in [1, 3, 10, 100] {
            let mut hasher = PartHasher::new(30);
            for (at, some) in bytes.chunks(writes).enumerate() {
                // Every other byte of a file of 200 bytes, and then a whole file.
                let start = at * writes;
                for (byte, at) in some.iter().zip(start..) {
                    hasher.update(4, 2 * at as u64, &[*byte]);
                }
            }
            hasher.update(5, 7, &bytes);
            let parts = hasher.finish();
            let of_first: Vec<&[u8]> = bytes.chunks(15).collect();
            let of_second = [&bytes[..23], &bytes[23..53], &bytes[53..83], &bytes[83..]];
            let first = of_first
                .iter()
                .zip(0..)
                .map(|(it, block)| ((4, block), *it));
            let second = of_second
                .iter()
                .zip(0..)
                .map(|(it, block)| ((5, block), *it));
            let expected: Vec<Part> = first
                .chain(second)
                .map(|(block, of)| Part {
                    block,
                    bytes: of.len() as u64,
                    xxh3: Digest::of(of),
                })
                .collect();
            assert_eq!(parts, expected);
        }
    }
}
