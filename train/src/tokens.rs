//! The token cache: all ids of a run in one memory-mapped file, training part first.
//!
//! The header records what the ids were made from, so a stale file is detected and replaced. A file
//! is written to a temporary name, synced and renamed, so an incomplete one is never read.
//!
//! All numbers are little-endian:
//!
//! | bytes | content |
//! |---|---|
//! | 8 | `MGTOKENS` |
//! | 4 | format version |
//! | 4 | bytes per id, 2 or 4 |
//! | 16 + 16 | digest of the recipe (text, split, kind of tokenizer), digest of the tokenizer |
//! | 8 + 8 | ids, bytes of text in the training part |
//! | 8 + 8 | ids, bytes of text in the validation part |
//! | rest | ids |

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use memmap2::Mmap;

const MAGIC: [u8; 8] = *b"MGTOKENS";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 80;

/// An error of the token cache.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokensError {
    /// The file cannot be read.
    #[error("cannot read the token cache {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file cannot be written.
    #[error("cannot write the token cache {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// What a token cache was made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheKey {
    /// Digest of the text, its split and the kind of tokenizer.
    pub recipe: u128,
    /// Digest of the tokenizer itself.
    pub tokenizer: u128,
}

/// The ids of a part, and the size of its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part<'i> {
    /// The ids.
    pub ids: &'i [u32],
    /// Bytes of text.
    pub text_bytes: u64,
}

/// A memory-mapped token cache.
pub struct TokenCache {
    map: Mmap,
    header: Header,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Header {
    width: u32,
    key: CacheKey,
    training: Extent,
    validation: Extent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Extent {
    ids: u64,
    text_bytes: u64,
}

impl TokenCache {
    /// Writes a cache to `path`, replacing any file there, and opens it. Ids take two bytes if all
    /// are below 65,536.
    ///
    /// # Errors
    /// [`TokensError`]: names the file.
    pub fn write(
        path: &Path,
        key: CacheKey,
        training: Part<'_>,
        validation: Part<'_>,
    ) -> Result<Self, TokensError> {
        let largest = training
            .ids
            .iter()
            .chain(validation.ids)
            .max()
            .copied()
            .unwrap_or(0);
        let width = if u16::try_from(largest).is_ok() { 2 } else { 4 };
        let extent = |part: Part<'_>| Extent {
            ids: part.ids.len() as u64,
            text_bytes: part.text_bytes,
        };
        let header = Header {
            width,
            key,
            training: extent(training),
            validation: extent(validation),
        };

        let aside = path.with_extension("partial");
        write_file(&aside, header, [training.ids, validation.ids])
            .and_then(|()| std::fs::rename(&aside, path))
            .map_err(|source| TokensError::Write {
                path: path.to_owned(),
                source,
            })?;

        let read = |source| TokensError::Read {
            path: path.to_owned(),
            source,
        };
        let map = map(path).map_err(read)?;
        Ok(Self { map, header })
    }

    /// Opens the cache at `path`; `None` if it is missing, incomplete or was not made from `key`.
    ///
    /// # Errors
    /// [`TokensError::Read`] when the file exists but cannot be read.
    pub fn open(path: &Path, key: CacheKey) -> Result<Option<Self>, TokensError> {
        Ok(Self::open_any(path)?.filter(|cache| cache.header.key == key))
    }

    /// The key of the cache at `path`; `None` if it is missing or incomplete.
    ///
    /// # Errors
    /// As [`TokenCache::open`].
    pub fn key(path: &Path) -> Result<Option<CacheKey>, TokensError> {
        Ok(Self::open_any(path)?.map(|cache| cache.header.key))
    }

    fn open_any(path: &Path) -> Result<Option<Self>, TokensError> {
        let map = match map(path) {
            Ok(map) => map,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => {
                return Err(TokensError::Read {
                    path: path.to_owned(),
                    source,
                });
            }
        };

        let header = Header::parse(&map);
        let is_complete = |header: &Header| header.file_bytes() == Some(map.len() as u64);
        Ok(header
            .filter(is_complete)
            .map(|header| Self { map, header }))
    }

    /// The training part.
    pub fn training(&self) -> Tokens<'_> {
        self.part(0, self.header.training)
    }

    /// The validation part.
    pub fn validation(&self) -> Tokens<'_> {
        self.part(self.header.training.ids as usize, self.header.validation)
    }

    fn part(&self, first: usize, extent: Extent) -> Tokens<'_> {
        let width = self.header.width as usize;
        let start = HEADER_BYTES + first * width;
        let bytes = &self.map[start..start + extent.ids as usize * width];
        Tokens {
            bytes,
            width,
            text_bytes: extent.text_bytes,
        }
    }
}

/// The ids of one part.
#[derive(Debug, Clone, Copy)]
pub struct Tokens<'c> {
    bytes: &'c [u8],
    width: usize,
    text_bytes: u64,
}

impl Tokens<'_> {
    /// Number of ids.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.width
    }

    /// Whether there are no ids.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Bytes of the text; separators do not count.
    pub fn text_bytes(&self) -> u64 {
        self.text_bytes
    }

    /// The id at `index`; `None` past the end.
    pub fn get(&self, index: usize) -> Option<u32> {
        let start = index.checked_mul(self.width)?;
        match *self.bytes.get(start..start.checked_add(self.width)?)? {
            [a, b] => Some(u32::from(u16::from_le_bytes([a, b]))),
            [a, b, c, d] => Some(u32::from_le_bytes([a, b, c, d])),
            _ => None,
        }
    }

    /// All ids in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    /// Converts a mean loss in nats per token to bits per byte of text, which is comparable between
    /// tokenizers. NaN without text.
    pub fn bits_per_byte(&self, loss: f64) -> f64 {
        loss / std::f64::consts::LN_2 * self.len() as f64 / self.text_bytes as f64
    }
}

impl Header {
    fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let words = [
            self.training.ids,
            self.training.text_bytes,
            self.validation.ids,
            self.validation.text_bytes,
        ];

        let mut bytes = [0; HEADER_BYTES];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.width.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.key.recipe.to_le_bytes());
        bytes[32..48].copy_from_slice(&self.key.tokenizer.to_le_bytes());
        for (slot, word) in bytes[48..].chunks_exact_mut(8).zip(words) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// `None` for another format or version, or an incomplete header.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let u32_at = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let u64_at = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let u128_at = |at: usize| {
            Some(u128::from_le_bytes(
                bytes.get(at..at + 16)?.try_into().ok()?,
            ))
        };

        let is_token_cache = bytes.get(0..8)? == MAGIC && u32_at(8)? == VERSION;
        let width = u32_at(12).filter(|width| matches!(width, 2 | 4))?;
        let header = Self {
            width,
            key: CacheKey {
                recipe: u128_at(16)?,
                tokenizer: u128_at(32)?,
            },
            training: Extent {
                ids: u64_at(48)?,
                text_bytes: u64_at(56)?,
            },
            validation: Extent {
                ids: u64_at(64)?,
                text_bytes: u64_at(72)?,
            },
        };
        is_token_cache.then_some(header)
    }

    fn file_bytes(&self) -> Option<u64> {
        let ids = self.training.ids.checked_add(self.validation.ids)?;
        ids.checked_mul(u64::from(self.width))?
            .checked_add(HEADER_BYTES as u64)
    }
}

fn write_file(path: &Path, header: Header, parts: [&[u32]; 2]) -> io::Result<()> {
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
    file.write_all(&header.to_bytes())?;
    for id in parts.into_iter().flatten() {
        // Little-endian: the first two bytes are the id if it is below 65,536.
        file.write_all(&id.to_le_bytes()[..header.width as usize])?;
    }
    file.into_inner()
        .map_err(io::IntoInnerError::into_error)?
        .sync_all()
}

fn map(path: &Path) -> io::Result<Mmap> {
    let file = File::open(path)?;
    // SAFETY: the map is sound as long as the file does not change. This module never writes to an
    // existing cache: it renames a new file over it, which leaves the mapped one unchanged. The run
    // folder is locked against other processes.
    unsafe { Mmap::map(&file) }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;

    const KEY: CacheKey = CacheKey {
        recipe: 1 << 100,
        tokenizer: 7,
    };

    fn part(ids: &[u32]) -> Part<'_> {
        Part {
            ids,
            text_bytes: 3 * ids.len() as u64,
        }
    }

    #[test]
    fn another_key_is_stale() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens.bin");
        assert!(TokenCache::open(&path, KEY).unwrap().is_none());

        TokenCache::write(&path, KEY, part(&[1, 2, 3]), part(&[4])).unwrap();
        assert_eq!(TokenCache::key(&path).unwrap(), Some(KEY));
        assert!(TokenCache::open(&path, KEY).unwrap().is_some());
        for other in [
            CacheKey { recipe: 1, ..KEY },
            CacheKey {
                tokenizer: 8,
                ..KEY
            },
        ] {
            assert!(TokenCache::open(&path, other).unwrap().is_none());
        }
        assert_eq!(
            fs::read_dir(folder.path()).unwrap().count(),
            1,
            "no temporary file remains"
        );
    }

    /// Any prefix of a file, and any change of its header, is rejected without a panic.
    #[test]
    fn incomplete_and_foreign_files_are_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens.bin");
        drop(TokenCache::write(&path, KEY, part(&[1, 2, 3]), part(&[4])).unwrap());
        let whole = fs::read(&path).unwrap();

        for length in 0..whole.len() {
            let prefix = folder.path().join(format!("prefix-{length}"));
            fs::write(&prefix, &whole[..length]).unwrap();
            assert!(
                TokenCache::open(&prefix, KEY).unwrap().is_none(),
                "{length} bytes"
            );
        }
        for at in (0..56).chain(64..72) {
            let changed = folder.path().join(format!("changed-{at}"));
            let mut bytes = whole.clone();
            bytes[at] ^= 0x80;
            fs::write(&changed, bytes).unwrap();
            assert!(
                TokenCache::open(&changed, KEY).unwrap().is_none(),
                "byte {at}"
            );
        }
    }

    #[test]
    fn an_unwritable_path_is_named() {
        let error = TokenCache::write(Path::new("no/folder/tokens.bin"), KEY, part(&[]), part(&[]));
        let error = error.err().unwrap().to_string();
        assert!(error.contains("no/folder/tokens.bin"), "{error}");
    }

    #[test]
    fn bits_per_byte_of_a_uniform_byte_model_is_eight() {
        let folder = tempfile::tempdir().unwrap();
        let ids: Vec<u32> = (0..100).collect();
        let validation = Part {
            ids: &ids,
            text_bytes: 100,
        };
        let cache =
            TokenCache::write(&folder.path().join("t"), KEY, part(&[]), validation).unwrap();
        assert!((cache.validation().bits_per_byte(256f64.ln()) - 8.0).abs() < 1e-12);
        assert!(cache.training().is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Ids of two and of four bytes are read as they were written.
        #[test]
        fn ids_round_trip(
            training in prop::collection::vec(0u32..70_000, 0..50),
            validation in prop::collection::vec(0u32..40_000, 0..50),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("tokens.bin");
            TokenCache::write(&path, KEY, part(&training), part(&validation)).unwrap();

            let cache = TokenCache::open(&path, KEY).unwrap().unwrap();
            prop_assert_eq!(cache.training().iter().collect::<Vec<_>>(), training.clone());
            prop_assert_eq!(cache.validation().iter().collect::<Vec<_>>(), validation.clone());
            prop_assert_eq!(cache.training().text_bytes(), 3 * training.len() as u64);
            prop_assert_eq!(cache.validation().get(validation.len()), None);
        }
    }
}
