//! Digests of files by block: they locate damage and let many writers share a file.

use std::fmt;
use std::hash::Hasher;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use twox_hash::XxHash3_64;

/// The most bytes that one digest covers: 16 MiB.
pub const MAX_BLOCK_BYTES: u64 = 16 << 20;

/// A 64-bit xxh3 digest, written as 16 hexadecimal digits. It detects damage, not forgery.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub u64);

impl Digest {
    /// Computes the digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Digest {
        Digest(XxHash3_64::oneshot(bytes))
    }

    /// Parses a digest. Accepts only the displayed form: no sign, no capitals, no missing zeros.
    pub(crate) fn parse(text: &str) -> Option<Digest> {
        let digest = Digest(u64::from_str_radix(text, 16).ok()?);
        (digest.to_string() == text).then_some(digest)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Digest, D::Error> {
        let text = String::deserialize(deserializer)?;
        Digest::parse(&text)
            .ok_or_else(|| de::Error::custom(format!("{text:?} is not 16 hexadecimal digits")))
    }
}

/// A contiguous part of a file and its digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Block {
    /// First byte, from the file's start.
    pub offset: u64,
    /// Length in bytes; at most [`MAX_BLOCK_BYTES`].
    pub bytes: u64,
    /// Their digest.
    pub xxh3: Digest,
}

impl Block {
    /// The offset after the last byte, saturating.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.bytes)
    }
}

/// A file's bytes as consecutive blocks from 0 to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) bytes: u64,
    pub(crate) blocks: Vec<Block>,
}

/// Splits consecutive bytes into blocks, from any offset, and digests them.
#[derive(Clone)]
pub(crate) struct BlockHasher {
    offset: u64,
    bytes: u64,
    limit: u64,
    hash: XxHash3_64,
}

impl BlockHasher {
    /// Starts at `offset`. Each block has `limit` bytes; the last one may have fewer.
    pub(crate) fn new(offset: u64, limit: u64) -> BlockHasher {
        BlockHasher { offset, bytes: 0, limit, hash: XxHash3_64::new() }
    }

    /// The offset after the last byte so far.
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.bytes
    }

    /// Adds the next bytes and appends complete blocks to `done`.
    pub(crate) fn update(&mut self, mut bytes: &[u8], done: &mut Vec<Block>) {
        while !bytes.is_empty() {
            let room = (self.limit - self.bytes).min(bytes.len() as u64) as usize;
            let (now, later) = bytes.split_at(room);
            self.hash.write(now);
            self.bytes += room as u64;
            bytes = later;

            if self.bytes == self.limit {
                self.flush(done);
            }
        }
    }

    /// Appends the unfinished block, if there is one.
    pub(crate) fn flush(&mut self, done: &mut Vec<Block>) {
        if self.bytes > 0 {
            done.push(Block {
                offset: self.offset,
                bytes: self.bytes,
                xxh3: Digest(self.hash.finish()),
            });
            self.offset += self.bytes;
            self.bytes = 0;
            self.hash = XxHash3_64::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks depend on the bytes, not on the sizes of the updates.
    #[test]
    fn blocks_depend_only_on_the_bytes() {
        let bytes: Vec<u8> = (0..1000u32).map(|at| (at * 7 + at / 251) as u8).collect();
        for limit in [1, 64, 333, 1000, 5000] {
            let expected: Vec<_> = bytes.chunks(limit).map(Digest::of).collect();

            for chunk in [1, 10, 333, 1000] {
                let (mut hasher, mut blocks) = (BlockHasher::new(70, limit as u64), Vec::new());
                for chunk in bytes.chunks(chunk) {
                    hasher.update(chunk, &mut blocks);
                }
                assert_eq!(hasher.end(), 1070);
                hasher.flush(&mut blocks);

                let digests: Vec<_> = blocks.iter().map(|block| block.xxh3).collect();
                assert_eq!(digests, expected);
                assert!(blocks.windows(2).all(|pair| pair[0].end() == pair[1].offset));
                assert_eq!((blocks[0].offset, blocks[blocks.len() - 1].end()), (70, 1070));
            }
        }
    }

    #[test]
    fn digests_have_one_written_form() {
        let digest = Digest(0xabc);
        let json = serde_json::to_string(&digest).unwrap();
        assert_eq!(json, "\"0000000000000abc\"");
        assert_eq!(serde_json::from_str::<Digest>(&json).unwrap(), digest);

        for other in ["\"abc\"", "\"0000000000000ABC\"", "\"+000000000000abc\"", "2748"] {
            assert!(serde_json::from_str::<Digest>(other).is_err(), "{other}");
        }
    }
}
