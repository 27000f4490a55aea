//! The token cache: all ids of a run in one memory-mapped file. The parts are the sources of the
//! training text, in order, and then the validation text. The file also has the start of each
//! document, so that documents do not depend on a separator.
//!
//! The header records what the ids were made from, so a stale file is detected and replaced. A file
//! is written to a temporary name, synced and renamed, so an incomplete one is never read.

mod header;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::Path;

use memmap2::Mmap;
use meshgrad_ckpt::io_error;
use meshgrad_error::{Error, Result};
use twox_hash::XxHash3_128;

use crate::rows::TokenStream;
use crate::run_folder::partial;
pub use header::CacheKey;
use header::{Extent, Header, total};

/// The ids of a part, and the size of its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part<'i> {
    /// The ids.
    pub ids: &'i [u32],
    /// The first id of each document, in ascending order. A document may have no ids.
    pub starts: &'i [usize],
    /// Bytes of text.
    pub text_bytes: u64,
    /// The trained ids; `None` if all are trained.
    pub trained: Option<Trained<'i>>,
}

/// The trained ids of a part, and the size of their text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trained<'i> {
    /// Whether the loss counts the prediction of each id.
    pub ids: &'i [bool],
    /// Bytes of text that is trained.
    pub text_bytes: u64,
}

impl Part<'_> {
    fn extent(&self) -> Extent {
        let (ids, text_bytes) = (self.ids.len() as u64, self.text_bytes);
        let (trained_ids, trained_bytes) = match self.trained {
            None => (ids, text_bytes),
            Some(trained) => {
                let count = trained.ids.iter().filter(|is_trained| **is_trained).count();
                (count as u64, trained.text_bytes)
            }
        };
        let documents = self.starts().count() as u64;
        Extent { ids, text_bytes, trained_ids, trained_bytes, documents }
    }

    /// The starts of the documents that have ids.
    fn starts(&self) -> impl Iterator<Item = usize> + '_ {
        let ends = self.starts.iter().skip(1).chain([&usize::MAX]);
        let with_ids = |(start, end): &(&usize, &usize)| start < end && **start < self.ids.len();
        self.starts.iter().zip(ends).filter(with_ids).map(|(start, _)| *start)
    }
}

/// The bytes of a block of [`TokenCache::digest`], and the most blocks.
const DIGEST_BLOCK: usize = 64 << 10;
const DIGEST_BLOCKS: usize = 256;

/// A memory-mapped token cache.
pub struct TokenCache {
    map: Mmap,
    header: Header,
}

impl TokenCache {
    /// Writes a cache of `sources` and `validation` to `path`, replacing any file there, and opens
    /// it. Ids take two bytes if all are below 65,536.
    ///
    /// # Errors
    /// When the file cannot be written or read.
    pub fn write(
        path: &Path,
        key: CacheKey,
        sources: &[Part<'_>],
        validation: Part<'_>,
    ) -> Result<Self> {
        let parts = [sources, &[validation]].concat();
        let largest = parts.iter().flat_map(|part| part.ids).max();
        let is_narrow = u16::try_from(largest.copied().unwrap_or(0)).is_ok();
        let header = Header {
            width: if is_narrow { 2 } else { 4 },
            key,
            has_mask: parts.iter().any(|part| part.trained.is_some()),
            parts: parts.iter().map(Part::extent).collect(),
        };

        let aside = partial(path);
        write_file(&aside, &header, &parts)
            .and_then(|()| std::fs::rename(&aside, path))
            .map_err(|cause| io_error("write the token cache", path, cause))?;

        let map = map(path).map_err(|cause| unreadable(path, cause))?;
        Ok(Self { map, header })
    }

    /// Opens the cache at `path`; `None` if it is missing, incomplete or was not made from `key`.
    ///
    /// # Errors
    /// When the file exists but cannot be read.
    pub fn open(path: &Path, key: CacheKey) -> Result<Option<Self>> {
        Ok(Self::open_any(path)?.filter(|cache| cache.header.key == key))
    }

    /// The key of the cache at `path`, also if an older version of meshgrad wrote it; `None` if it is
    /// missing or no cache.
    ///
    /// # Errors
    /// As [`TokenCache::open`].
    pub fn key(path: &Path) -> Result<Option<CacheKey>> {
        Ok(map_any(path)?.and_then(|map| Header::key_of(&map)))
    }

    fn open_any(path: &Path) -> Result<Option<Self>> {
        let Some(map) = map_any(path)? else {
            return Ok(None);
        };
        let header = Header::parse(&map);
        let is_complete = |header: &Header| header.file_bytes() == Some(map.len() as u64);
        Ok(header.filter(is_complete).map(|header| Self { map, header }))
    }

    /// What it was made from.
    pub(crate) fn own_key(&self) -> CacheKey {
        self.header.key
    }

    /// A digest of the file, of which at most 16 MiB are read, at equal distances.
    pub(crate) fn digest(&self) -> u128 {
        let blocks = self.map.chunks(DIGEST_BLOCK);
        let stride = blocks.len().div_ceil(DIGEST_BLOCKS).max(1);
        let mut hash = XxHash3_128::new();
        hash.write(&self.map.len().to_le_bytes());
        blocks.step_by(stride).for_each(|block| hash.write(block));
        hash.finish_128()
    }

    /// The training text, all sources in order.
    pub fn training(&self) -> Tokens<'_> {
        let sources = self.header.sources();
        self.part(0, sources)
    }

    /// The positions of each source in the training text.
    pub fn sources(&self) -> Vec<Range<usize>> {
        let mut end = 0;
        let range = |part: &Extent| {
            let start = end;
            end += part.ids as usize;
            start..end
        };
        self.header.sources().iter().map(range).collect()
    }

    /// The validation text.
    pub fn validation(&self) -> Tokens<'_> {
        let sources = self.header.sources();
        self.part(total(sources).ids as usize, &self.header.parts[sources.len()..])
    }

    /// Consecutive parts, from id `first` on.
    fn part(&self, first: usize, parts: &[Extent]) -> Tokens<'_> {
        let extent = total(parts);
        let (width, all) = (self.header.width as usize, total(&self.header.parts).ids as usize);
        let ids = self.header.bytes();
        let start = ids + first * width;
        let (starts, mask) = self.map[ids + all * width..].split_at(all.div_ceil(8));
        Tokens {
            bytes: &self.map[start..start + extent.ids as usize * width],
            width,
            starts,
            mask: self.header.has_mask.then_some(mask),
            first,
            extent,
            has_documents: parts.iter().any(|part| part.documents > 1),
        }
    }
}

/// The ids of one part.
#[derive(Debug, Clone, Copy)]
pub struct Tokens<'c> {
    bytes: &'c [u8],
    width: usize,
    /// The starts of documents of the whole file.
    starts: &'c [u8],
    /// The mask of the whole file, if it has one.
    mask: Option<&'c [u8]>,
    /// The position of these ids in the file.
    first: usize,
    extent: Extent,
    has_documents: bool,
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
        self.extent.text_bytes
    }

    /// Number of ids whose prediction the loss counts.
    pub fn trained(&self) -> u64 {
        self.extent.trained_ids
    }

    /// Number of documents that have ids.
    pub fn document_count(&self) -> u64 {
        self.extent.documents
    }

    /// Whether a source has more than one document.
    pub fn has_documents(&self) -> bool {
        self.has_documents
    }

    /// Whether the loss counts the prediction of the id at `index`; true if all count. The first id of
    /// a document is never predicted.
    pub fn is_trained(&self, index: usize) -> bool {
        self.mask.is_none_or(|mask| bit(mask, self.first + index))
    }

    /// Whether a document starts with the id at `index`.
    pub fn is_start(&self, index: usize) -> bool {
        bit(self.starts, self.first + index)
    }

    /// Whether the loss counts only some of the ids.
    pub fn is_masked(&self) -> bool {
        self.mask.is_some() && self.extent.trained_ids < self.extent.ids
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
    /// tokenizers: the loss times the ids per byte. Only trained ids and their text count. The first
    /// id of a document, which is not predicted, has the mean loss here. NaN without text.
    pub fn bits_per_byte(&self, loss: f64) -> f64 {
        let (ids, bytes) = (self.extent.trained_ids, self.extent.trained_bytes);
        loss / std::f64::consts::LN_2 * ids as f64 / bytes as f64
    }
}

impl TokenStream for Tokens<'_> {
    fn id(&self, index: usize) -> Option<u32> {
        self.get(index)
    }

    fn is_trained(&self, index: usize) -> bool {
        self.is_trained(index)
    }

    fn is_start(&self, index: usize) -> bool {
        self.is_start(index)
    }
}

/// Whether bit `at` is set; false past the end.
fn bit(bits: &[u8], at: usize) -> bool {
    bits.get(at / 8).is_some_and(|byte| byte >> (at % 8) & 1 == 1)
}

fn write_file(path: &Path, header: &Header, parts: &[Part<'_>]) -> io::Result<()> {
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
    file.write_all(&header.to_bytes())?;
    for id in parts.iter().flat_map(|part| part.ids) {
        // Little-endian: the first two bytes are the id if it is below 65,536.
        file.write_all(&id.to_le_bytes()[..header.width as usize])?;
    }
    file.write_all(&bits(parts, |part, set| part.starts().for_each(set)))?;
    if header.has_mask {
        file.write_all(&bits(parts, |part, set| {
            let is_trained = |at: &usize| part.trained.is_none_or(|trained| trained.ids[*at]);
            (0..part.ids.len()).filter(is_trained).for_each(set);
        }))?;
    }
    file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
}

/// One bit per id of `parts`, of which `of_part` sets those of a part.
fn bits(parts: &[Part<'_>], of_part: impl Fn(&Part<'_>, &mut dyn FnMut(usize))) -> Vec<u8> {
    let ids: usize = parts.iter().map(|part| part.ids.len()).sum();
    let mut bits = vec![0; ids.div_ceil(8)];
    let mut first = 0;
    for part in parts {
        of_part(part, &mut |at| bits[(first + at) / 8] |= 1 << ((first + at) % 8));
        first += part.ids.len();
    }
    bits
}

fn unreadable(path: &Path, cause: io::Error) -> Error {
    io_error("read the token cache", path, cause)
}

/// The file at `path`; `None` if it is missing.
fn map_any(path: &Path) -> Result<Option<Mmap>> {
    match map(path) {
        Ok(map) => Ok(Some(map)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(unreadable(path, cause)),
    }
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

    use super::header::{HEADER_BYTES, PART_BYTES};
    use super::*;

    const KEY: CacheKey = CacheKey { recipe: 1 << 100, tokenizer: 7 };

    fn part(ids: &[u32]) -> Part<'_> {
        Part { ids, starts: &[0], text_bytes: 3 * ids.len() as u64, trained: None }
    }

    #[test]
    fn another_key_is_stale() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens.bin");
        assert!(TokenCache::open(&path, KEY).unwrap().is_none());

        TokenCache::write(&path, KEY, &[part(&[1, 2, 3])], part(&[4])).unwrap();
        assert_eq!(TokenCache::key(&path).unwrap(), Some(KEY));
        assert!(TokenCache::open(&path, KEY).unwrap().is_some());
        for other in [CacheKey { recipe: 1, ..KEY }, CacheKey { tokenizer: 8, ..KEY }] {
            assert!(TokenCache::open(&path, other).unwrap().is_none());
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file remains");
    }

    /// Any prefix of a file, and any change of its header except to the bytes of text, is rejected
    /// without a panic.
    #[test]
    fn incomplete_and_foreign_files_are_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens.bin");
        drop(TokenCache::write(&path, KEY, &[part(&[1, 2, 3])], part(&[4])).unwrap());
        let whole = fs::read(&path).unwrap();

        for length in 0..whole.len() {
            let prefix = folder.path().join(format!("prefix-{length}"));
            fs::write(&prefix, &whole[..length]).unwrap();
            assert!(TokenCache::open(&prefix, KEY).unwrap().is_none(), "{length} bytes");
        }
        // Changes each byte of the header, except the numbers of bytes of text.
        let (training, validation) = (HEADER_BYTES, HEADER_BYTES + PART_BYTES);
        let counts = |part: usize| (part + 16..part + 24).chain(part + 32..part + 40);
        let of_part = |part: usize| (part..part + 8).chain(counts(part));
        for at in (0..training).chain(of_part(training)).chain(of_part(validation)) {
            let changed = folder.path().join(format!("changed-{at}"));
            let mut bytes = whole.clone();
            bytes[at] ^= 0x80;
            fs::write(&changed, bytes).unwrap();
            assert!(TokenCache::open(&changed, KEY).unwrap().is_none(), "byte {at}");
        }
    }

    #[test]
    fn an_unwritable_path_is_named() {
        let error =
            TokenCache::write(Path::new("no/folder/tokens.bin"), KEY, &[part(&[])], part(&[]));
        let error = error.err().unwrap().to_string();
        assert!(error.contains("no/folder/tokens.bin"), "{error}");
    }

    #[test]
    fn bits_per_byte_of_a_uniform_byte_model_is_eight() {
        let folder = tempfile::tempdir().unwrap();
        let ids: Vec<u32> = (0..100).collect();
        let whole = Part { text_bytes: 100, ..part(&ids) };
        let odd: Vec<bool> = ids.iter().map(|id| id % 2 == 1).collect();
        let trained = Some(Trained { ids: &odd, text_bytes: 50 });
        for validation in [whole, Part { trained, ..whole }] {
            let path = folder.path().join("t");
            let cache = TokenCache::write(&path, KEY, &[part(&[])], validation).unwrap();
            assert!((cache.validation().bits_per_byte(256f64.ln()) - 8.0).abs() < 1e-12);
            assert!(cache.training().is_empty());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Ids of two and of four bytes, in any number of sources, are read as they were written,
        /// and so are the mask of trained ids and the starts of documents, of which some are empty.
        #[test]
        fn ids_round_trip(
            sources in prop::collection::vec(
                prop::collection::vec((0u32..70_000, any::<bool>()), 0..50), 1..4,
            ),
            validation in prop::collection::vec((0u32..40_000, any::<bool>()), 0..50),
            cuts in prop::collection::vec(0usize..60, 0..5),
            is_masked: bool,
        ) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("tokens.bin");
            let apart = |part: &Vec<(u32, bool)>| -> (Vec<u32>, Vec<bool>) {
                part.iter().map(|(id, trained)| (*id, *trained || !is_masked)).unzip()
            };
            let parts: Vec<_> = sources.iter().chain([&validation]).map(apart).collect();
            let starts_of = |ids: &Vec<u32>| {
                let mut starts = cuts.clone();
                starts.push(0);
                starts.sort_unstable();
                starts.iter().map(|start| (*start).min(ids.len())).collect()
            };
            let starts: Vec<Vec<usize>> = parts.iter().map(|(ids, _)| starts_of(ids)).collect();
            let written: Vec<Part<'_>> = parts
                .iter()
                .zip(&starts)
                .map(|((ids, trained), starts)| Part {
                    starts,
                    trained: is_masked.then_some(Trained { ids: trained, text_bytes: 1 }),
                    ..part(ids)
                })
                .collect();
            let (last, first) = written.split_last().unwrap();
            TokenCache::write(&path, KEY, first, *last).unwrap();

            let cache = TokenCache::open(&path, KEY).unwrap().unwrap();
            let read = |tokens: Tokens<'_>| -> (Vec<u32>, Vec<bool>) {
                let trained = (0..tokens.len()).map(|at| tokens.is_trained(at));
                (tokens.iter().collect(), trained.collect())
            };
            let is_start = |starts: &[usize], at: usize| starts.contains(&at);
            let mut documents = 0;
            for (range, starts) in cache.sources().into_iter().zip(&starts) {
                for at in range.clone() {
                    let expected = is_start(starts, at - range.start);
                    prop_assert_eq!(cache.training().is_start(at), expected);
                    documents += u64::from(expected);
                }
            }
            prop_assert_eq!(cache.training().document_count(), documents);
            for at in 0..validation.len() {
                let expected = is_start(&starts[sources.len()], at);
                prop_assert_eq!(cache.validation().is_start(at), expected);
            }
            let (training, ranges) = (read(cache.training()), cache.sources());
            prop_assert_eq!(ranges.len(), sources.len());
            for (range, (ids, trained)) in ranges.into_iter().zip(&parts) {
                prop_assert_eq!(&training.0[range.clone()], &ids[..]);
                prop_assert_eq!(&training.1[range], &trained[..]);
            }
            prop_assert_eq!(&read(cache.validation()), parts.last().unwrap());
            prop_assert_eq!(cache.training().text_bytes(), 3 * training.0.len() as u64);
            let trained = training.1.iter().filter(|trained| **trained).count();
            prop_assert_eq!(cache.training().trained(), trained as u64);
            prop_assert_eq!(cache.validation().get(validation.len()), None);
        }
    }
}
