//! The header of a token cache.
//!
//! All numbers are little-endian:
//!
//! | bytes | content |
//! |---|---|
//! | 8 | `MGTOKENS` |
//! | 4 | format version |
//! | 4 | bytes per id, 2 or 4 |
//! | 16 + 16 | digest of the recipe (text, split, kind of tokenizer), digest of the tokenizer |
//! | 4 | parts |
//! | 4 | 1 if there is a mask, otherwise 0 |
//! | parts x 40 | ids, bytes of text; ids and bytes of text that are trained; documents |
//! | | ids of all parts |
//! | | one bit per id, 1 if a document starts with it, lowest bit first |
//! | | the mask: one bit per id, 1 if it is trained. Without a mask all ids are |

use serde::{Deserialize, Serialize};

const MAGIC: [u8; 8] = *b"MGTOKENS";
const VERSION: u32 = 3;
/// The oldest version whose key is at the same place. It had no starts of documents.
const OLDEST: u32 = 2;
/// Bytes of the header before the parts, and of a part.
pub(super) const HEADER_BYTES: usize = 56;
pub(super) const PART_BYTES: usize = 40;

/// What a token cache was made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheKey {
    /// Digest of the text, its split and the kind of tokenizer.
    pub recipe: u128,
    /// Digest of the tokenizer itself.
    pub tokenizer: u128,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) width: u32,
    pub(super) key: CacheKey,
    pub(super) has_mask: bool,
    /// The sources, then validation; never empty.
    pub(super) parts: Vec<Extent>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) ids: u64,
    pub(super) text_bytes: u64,
    pub(super) trained_ids: u64,
    pub(super) trained_bytes: u64,
    pub(super) documents: u64,
}

impl Extent {
    /// Whether the numbers can be those of a part.
    fn is_possible(self) -> bool {
        self.trained_ids <= self.ids && self.documents <= self.ids
    }
}

impl Header {
    pub(super) fn sources(&self) -> &[Extent] {
        self.parts.split_last().map_or(&[], |(_, sources)| sources)
    }

    /// The size of the header.
    pub(super) fn bytes(&self) -> usize {
        HEADER_BYTES + self.parts.len() * PART_BYTES
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.bytes());
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(self.width.to_le_bytes());
        bytes.extend(self.key.recipe.to_le_bytes());
        bytes.extend(self.key.tokenizer.to_le_bytes());
        bytes.extend((self.parts.len() as u32).to_le_bytes());
        bytes.extend(u32::from(self.has_mask).to_le_bytes());
        for part in &self.parts {
            let Extent { ids, text_bytes, trained_ids, trained_bytes, documents } = *part;
            let words = [ids, text_bytes, trained_ids, trained_bytes, documents];
            bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        }
        bytes
    }

    /// What the file was made from, also if it has an older version; `None` for another format.
    pub(super) fn key_of(bytes: &[u8]) -> Option<CacheKey> {
        let u128_at =
            |at: usize| Some(u128::from_le_bytes(bytes.get(at..at + 16)?.try_into().ok()?));
        let is_known = bytes.get(0..8)? == MAGIC
            && u32_at(bytes, 8).is_some_and(|version| (OLDEST..=VERSION).contains(&version));
        is_known.then_some(CacheKey { recipe: u128_at(16)?, tokenizer: u128_at(32)? })
    }

    /// `None` for another format or version, or an incomplete header.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let u32_at = |at: usize| u32_at(bytes, at);
        let u64_at = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));

        let key = Self::key_of(bytes).filter(|_| u32_at(8) == Some(VERSION))?;
        let width = u32_at(12).filter(|width| matches!(width, 2 | 4))?;
        let parts = u32_at(48).filter(|parts| *parts > 0)? as usize;
        let has_mask = u32_at(52).filter(|mask| matches!(mask, 0 | 1))? == 1;
        let table = bytes.get(HEADER_BYTES..)?;
        let table = table.get(..parts.checked_mul(PART_BYTES)?)?;
        let part = |at: usize| {
            let word = |index: usize| u64_at(HEADER_BYTES + at * PART_BYTES + index * 8);
            let part = Extent {
                ids: word(0)?,
                text_bytes: word(1)?,
                trained_ids: word(2)?,
                trained_bytes: word(3)?,
                documents: word(4)?,
            };
            part.is_possible().then_some(part)
        };
        let parts = (0..table.len() / PART_BYTES).map(part);
        Some(Self { width, key, has_mask, parts: parts.collect::<Option<_>>()? })
    }

    /// The size of the file; `None` if it does not fit a number.
    pub(super) fn file_bytes(&self) -> Option<u64> {
        let ids = self.parts.iter().try_fold(0u64, |sum, part| sum.checked_add(part.ids))?;
        let bits = ids.div_ceil(8).checked_mul(if self.has_mask { 2 } else { 1 })?;
        ids.checked_mul(u64::from(self.width))?.checked_add(bits)?.checked_add(self.bytes() as u64)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// The sums over `parts`.
pub(super) fn total(parts: &[Extent]) -> Extent {
    let sum = |of: fn(&Extent) -> u64| parts.iter().map(of).sum();
    Extent {
        ids: sum(|part| part.ids),
        text_bytes: sum(|part| part.text_bytes),
        trained_ids: sum(|part| part.trained_ids),
        trained_bytes: sum(|part| part.trained_bytes),
        documents: sum(|part| part.documents),
    }
}
