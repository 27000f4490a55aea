//! A source whose bytes are compared with the digests of a manifest before they are used.
//!
//! Digests cover blocks of a file. The first read that touches a block digests the whole block, so
//! each block is digested once. Its bytes are read a second time unless the read covers them all;
//! a change between the two reads is detected as for any source.

use std::hash::Hasher;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use meshgrad_error::Result;
use twox_hash::XxHash3_64;

use super::backend::Source;
use crate::blocks::{Block, Digest};
use crate::integrity::IntegrityError;

/// Bytes that are read at once to digest the rest of a block.
const WINDOW: u64 = 1 << 20;

#[derive(Debug)]
pub(super) struct Sealed {
    inner: Box<dyn Source>,
    /// The checkpoint, and the file's path below it.
    folder: PathBuf,
    name: String,
    /// Consecutive blocks from 0 to the end of the file.
    blocks: Vec<Block>,
    checked: Vec<AtomicBool>,
}

impl Sealed {
    pub(super) fn new(
        inner: Box<dyn Source>,
        folder: &Path,
        name: &str,
        blocks: &[Block],
    ) -> Sealed {
        Sealed {
            inner,
            folder: folder.to_owned(),
            name: name.to_owned(),
            blocks: blocks.to_vec(),
            checked: blocks.iter().map(|_| AtomicBool::new(false)).collect(),
        }
    }

    /// The numbers of the blocks that a range touches.
    fn touched(&self, start: u64, end: u64) -> std::ops::Range<usize> {
        let first = self.blocks.partition_point(|block| block.end() <= start);
        let last = self.blocks.partition_point(|block| block.offset < end);
        match start < end {
            true => first..last,
            false => 0..0,
        }
    }

    /// Compares a block with its digest. `data` are the bytes at `offset` of the file.
    fn check(&self, number: usize, offset: u64, data: &[u8]) -> Result<()> {
        let block = self.blocks[number];
        let end = offset + data.len() as u64;
        let found = if offset <= block.offset && block.end() <= end {
            let start = (block.offset - offset) as usize;
            Digest::of(&data[start..start + block.bytes as usize])
        } else {
            self.digest(block)?
        };
        if found == block.xxh3 {
            self.checked[number].store(true, Ordering::Relaxed);
            return Ok(());
        }
        let damage = IntegrityError::WrongDigest {
            file: self.name.clone(),
            block: number,
            range: block.offset..block.end(),
            expected: block.xxh3.to_string(),
            found: found.to_string(),
        };
        Err(damage.of(&self.folder))
    }

    /// Reads and digests a block.
    fn digest(&self, block: Block) -> Result<Digest> {
        let mut window = vec![0; block.bytes.min(WINDOW) as usize];
        let mut hash = XxHash3_64::new();
        let mut offset = block.offset;
        while offset < block.end() {
            let part = &mut window[..(block.end() - offset).min(WINDOW) as usize];
            self.inner.read_at(offset, part)?;
            hash.write(part);
            offset += part.len() as u64;
        }
        Ok(Digest(hash.finish()))
    }
}

impl Source for Sealed {
    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn byte_len(&self) -> u64 {
        self.inner.byte_len()
    }

    fn read_at(&self, offset: u64, data: &mut [u8]) -> Result<()> {
        self.inner.read_at(offset, data)?;
        for number in self.touched(offset, offset + data.len() as u64) {
            if !self.checked[number].load(Ordering::Relaxed) {
                self.check(number, offset, data)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::BlockHasher;
    use meshgrad_ckpt_crash::SplitMix64;

    /// Bytes in memory.
    #[derive(Debug)]
    struct Memory(Vec<u8>);

    impl Source for Memory {
        fn path(&self) -> &Path {
            Path::new("memory")
        }

        fn byte_len(&self) -> u64 {
            self.0.len() as u64
        }

        fn read_at(&self, offset: u64, data: &mut [u8]) -> Result<()> {
            data.copy_from_slice(&self.0[offset as usize..][..data.len()]);
            Ok(())
        }
    }

    fn blocks(bytes: &[u8], limit: u64) -> Vec<Block> {
        let (mut hasher, mut blocks) = (BlockHasher::new(0, limit), Vec::new());
        hasher.update(bytes, &mut blocks);
        hasher.flush(&mut blocks);
        blocks
    }

    /// A read fails exactly if it touches a damaged block, whatever was read before.
    #[test]
    fn a_read_fails_exactly_if_it_touches_damage() {
        let (mut failed, mut passed) = (0, 0);
        for seed in 0..200 {
            let mut rng = SplitMix64::new(seed);
            let length = 1 + rng.below(300);
            let mut bytes: Vec<u8> = (0..length).map(|_| rng.below(256) as u8).collect();
            let limit = 1 + rng.below(80);
            let blocks = blocks(&bytes, limit);
            let damaged = rng.below(length);
            bytes[damaged as usize] ^= 1 << rng.below(8);
            let memory = Box::new(Memory(bytes.clone()));
            let sealed = Sealed::new(memory, Path::new("folder"), "file", &blocks);

            for _ in 0..20 {
                let start = rng.below(length);
                let end = start + rng.below(length - start + 1);
                let mut data = vec![0; (end - start) as usize];
                let read = sealed.read_at(start, &mut data);
                let block = damaged / limit * limit..(damaged / limit + 1) * limit;
                let touches = start < end && start < block.end && block.start < end;
                assert_eq!(read.is_err(), touches, "{seed}: {start}..{end} of {blocks:?}");
                if let Err(error) = read {
                    assert!(error.to_string().contains("file is damaged: bytes"), "{error}");
                    failed += 1;
                    continue;
                }
                assert_eq!(data, bytes[start as usize..end as usize]);
                passed += 1;
            }
        }
        assert!(failed > 100 && passed > 100, "{failed}, {passed}");
    }
}
