//! Text to ids and back: bytes, a byte-level BPE trained here, or any `tokenizer.json`.
//!
//! All but the byte tokenizer need the feature `tokenizers`.
//!
//! The spelling of a special token inside a document is encoded as plain text, not as that token.

mod boundaries;
#[cfg(feature = "tokenizers")]
mod library;
#[cfg(not(feature = "tokenizers"))]
#[path = "tokenizer/no_library.rs"]
mod library;
mod stream;

use std::collections::HashMap;
use std::path::Path;

use meshgrad_ckpt::io_error;
use meshgrad_error::{Error, Result, error};
use rayon::prelude::*;
use twox_hash::XxHash3_128;

use crate::run_folder::try_replace;
use boundaries::{next_chunk, next_word, training_sample};
use library::Library;
pub use stream::DecodeStream;

/// The special token of tokenizers trained here. It follows every document.
pub const END_OF_TEXT: &str = "<|endoftext|>";

/// A BPE is trained on at most about this many bytes. More text takes longer and hardly changes the
/// merges.
pub const TRAINING_SAMPLE_BYTES: usize = 4 << 20;

/// Names of the document separator in known tokenizers; the first that exists is used.
const SEPARATORS: [&str; 6] = [END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[SEP]"];

/// The `tokenizer.json` of the byte tokenizer: a byte-level BPE without merges, which gives the
/// same ids.
const BYTE_JSON: &str = include_str!("tokenizer/byte.json");

/// Ids of the byte tokenizer: 256 bytes and the end of text.
const BYTE_VOCABULARY: u32 = 257;

/// The error of the library.
fn failed(message: String) -> Error {
    error!(System, "the tokenizer failed: {message}")
}

/// A tokenizer; cheap to use from many threads.
pub struct Tokenizer {
    kind: Kind,
    separator: Option<u32>,
    splits_at_words: bool,
}

enum Kind {
    Bytes,
    Library(Library),
}

impl Tokenizer {
    /// One id per byte, and 256 for the end of a document.
    pub fn byte() -> Self {
        Self { kind: Kind::Bytes, separator: Some(256), splits_at_words: false }
    }

    /// Trains a byte-level BPE with `size` ids, including 256 bytes and [`END_OF_TEXT`], on
    /// `texts`, or on a sample of [`TRAINING_SAMPLE_BYTES`] if they are longer. Deterministic. A
    /// short text may give fewer ids.
    ///
    /// # Errors
    /// When `size` is below 257 or there is no text.
    pub fn train_bpe(texts: &[&str], size: usize) -> Result<Self> {
        let bytes: usize = texts.iter().map(|text| text.len()).sum();
        let error = |message: String| {
            error!(
                Invalid,
                "cannot train a BPE of {size} tokens on {bytes} bytes of text: {message}"
            )
        };
        if size < BYTE_VOCABULARY as usize {
            return Err(error(format!("at least {BYTE_VOCABULARY} tokens are needed")));
        }
        if bytes == 0 {
            return Err(error("the text is empty".to_owned()));
        }

        let sample = training_sample(texts, TRAINING_SAMPLE_BYTES);
        let library = Library::train_bpe(sample, size, END_OF_TEXT).map_err(error)?;
        Ok(Self::from_library(library))
    }

    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// When it cannot be read as a tokenizer.
    pub fn from_file(path: &Path) -> Result<Self> {
        const READ: &str = "read the tokenizer";

        let json = std::fs::read(path).map_err(|cause| io_error(READ, path, cause))?;
        if json == BYTE_JSON.as_bytes() {
            return Ok(Self::byte());
        }
        let library = Library::from_json(&json);
        let library = library
            .map_err(|problem| error!(Invalid, "cannot {READ} {}: {problem}", path.display()))?;
        Ok(Self::from_library(library))
    }

    fn from_library(library: Library) -> Self {
        Self {
            separator: SEPARATORS.iter().find_map(|name| library.id(name)),
            splits_at_words: library.splits_at_words(),
            kind: Kind::Library(library),
        }
    }

    /// The `tokenizer.json` of this tokenizer, for other programs. The byte tokenizer is written as
    /// a byte-level BPE without merges, which gives the same ids.
    ///
    /// # Errors
    /// When the library fails.
    pub fn to_json(&self) -> Result<String> {
        match &self.kind {
            Kind::Bytes => Ok(BYTE_JSON.to_owned()),
            Kind::Library(library) => library.to_json().map_err(failed),
        }
    }

    /// Writes [`Tokenizer::to_json`] to a file: to a temporary file, which is synced and renamed.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn save(&self, path: &Path) -> Result<()> {
        let written = try_replace(path, self.to_json()?.as_bytes());
        written.map_err(|cause| io_error("write the tokenizer", path, cause))
    }

    /// The size of the vocabulary; every id is below it.
    pub fn vocab_size(&self) -> usize {
        let Kind::Library(library) = &self.kind else {
            return BYTE_VOCABULARY as usize;
        };
        // Ids may have gaps, so the count is not enough.
        library.largest_id().map_or(0, |id| id as usize + 1)
    }

    /// The id that follows every document and ends generation; `None` if the tokenizer has none.
    pub fn separator(&self) -> Option<u32> {
        self.separator
    }

    /// The id that ends a message in ChatML; `None` if the tokenizer has none.
    pub fn end_of_message(&self) -> Option<u32> {
        self.id("<|im_end|>")
    }

    /// Whether generation ends at `id`: the separator, or the end of a message in ChatML.
    pub fn ends_text(&self, id: u32) -> bool {
        [self.separator, self.end_of_message()].contains(&Some(id))
    }

    /// The id of a token, such as a special one; `None` if there is no such token. The byte
    /// tokenizer has no names.
    pub fn id(&self, token: &str) -> Option<u32> {
        match &self.kind {
            Kind::Bytes => None,
            Kind::Library(library) => library.id(token),
        }
    }

    /// XXH3-128 of [`Tokenizer::to_json`].
    ///
    /// # Errors
    /// As [`Tokenizer::to_json`].
    pub fn digest(&self) -> Result<u128> {
        Ok(XxHash3_128::oneshot(self.to_json()?.as_bytes()))
    }

    /// The ids of a text, without special tokens.
    ///
    /// # Errors
    /// When the library fails.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        match &self.kind {
            Kind::Bytes => Ok(text.bytes().map(u32::from).collect()),
            Kind::Library(library) => library.encode(text).map_err(failed),
        }
    }

    /// The ids of all texts, each followed by the separator, and where each text starts. Runs on the
    /// current rayon pool; the ids do not depend on the number of threads.
    ///
    /// # Errors
    /// When the library fails.
    pub fn encode_documents(&self, texts: &[&str]) -> Result<(Vec<u32>, Vec<usize>)> {
        let next = if self.splits_at_words { next_word } else { next_chunk };

        // Text is repetitive, so each distinct piece is encoded once.
        let mut index_of = HashMap::new();
        let mut distinct = Vec::new();
        let mut order = Vec::new();
        for text in texts {
            let mut rest = *text;
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(next(rest));
                rest = after;
                order.push(Some(*index_of.entry(piece).or_insert_with(|| {
                    distinct.push(piece);
                    distinct.len() - 1
                })));
            }
            order.push(None);
        }

        let encoded: Vec<Vec<u32>> =
            distinct.par_iter().map(|piece| self.encode(piece)).collect::<Result<_>>()?;

        let (mut ids, mut starts, mut start) = (Vec::new(), Vec::with_capacity(texts.len()), 0);
        for piece in order {
            match piece {
                Some(index) => ids.extend(&encoded[index]),
                None => {
                    ids.extend(self.separator);
                    starts.push(start);
                    start = ids.len();
                }
            }
        }
        Ok((ids, starts))
    }

    /// The text of ids. Special and unknown ids are skipped; invalid UTF-8 becomes U+FFFD.
    ///
    /// # Errors
    /// When the library fails.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        match &self.kind {
            Kind::Bytes => {
                let bytes: Vec<u8> = ids.iter().filter_map(|&id| u8::try_from(id).ok()).collect();
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            }
            Kind::Library(library) => library.decode(ids).map_err(failed),
        }
    }
}

#[cfg(all(test, feature = "tokenizers"))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = include_str!("tokenizer.rs");

    fn small() -> Tokenizer {
        Tokenizer::train_bpe(&[TEXT], 400).unwrap()
    }

    #[test]
    fn training_is_deterministic_and_gives_the_requested_size() {
        let one = small();
        assert_eq!(one.vocab_size(), 400);
        assert_eq!(one.separator(), Some(0));
        assert_eq!(one.to_json().unwrap(), small().to_json().unwrap());
    }

    #[test]
    fn a_saved_tokenizer_gives_the_same_ids() {
        let folder = tempfile::tempdir().unwrap();
        for tokenizer in [small(), Tokenizer::byte()] {
            let path = folder.path().join("tokenizer.json");
            tokenizer.save(&path).unwrap();
            let json = std::fs::read(&path).unwrap();
            let read = Tokenizer::from_library(Library::from_json(&json).unwrap());

            let text = format!("{TEXT}\u{0}\u{7f}\u{ad}caf\u{e9} \u{1f980}{END_OF_TEXT}\n\n  ");
            assert_eq!(read.encode(&text).unwrap(), tokenizer.encode(&text).unwrap());
            assert_eq!(read.vocab_size(), tokenizer.vocab_size());
            assert_eq!(read.separator(), tokenizer.separator());
            assert_eq!(read.digest().unwrap(), tokenizer.digest().unwrap());
        }
    }

    #[test]
    fn the_spelling_of_a_special_token_is_plain_text() {
        for tokenizer in [small(), Tokenizer::byte()] {
            let ids = tokenizer.encode(END_OF_TEXT).unwrap();
            assert!(!ids.contains(&tokenizer.separator().unwrap()));
            assert_eq!(tokenizer.decode(&ids).unwrap(), END_OF_TEXT);
        }
    }

    #[test]
    fn splitting_documents_into_chunks_changes_no_id() {
        let long = TEXT.repeat(5);
        for tokenizer in [small(), Tokenizer::byte()] {
            let separator = tokenizer.separator().unwrap();
            let whole = tokenizer.encode(&long).unwrap();
            let expected =
                [&whole[..], &[separator], &tokenizer.encode("x").unwrap(), &[separator]];

            assert!(next_chunk(&long) < long.len());
            assert_eq!(tokenizer.encode_documents(&[&long, "x"]).unwrap().0, expected.concat());
        }
    }

    #[test]
    fn splitting_at_lines_changes_no_id() {
        let tokenizer = Tokenizer { splits_at_words: false, separator: None, ..small() };
        let lines = "let a;\n\n\nlet b;\n".repeat(2000);
        for shift in 0..17 {
            let text = format!("{}{lines}", "x".repeat(shift));
            let whole = tokenizer.encode(&text).unwrap();
            assert_eq!(tokenizer.encode_documents(&[&text]).unwrap().0, whole, "shift {shift}");
        }
    }

    #[test]
    fn the_training_sample_has_about_the_requested_size() {
        let texts = vec![TEXT; 100];
        let total = TEXT.len() * texts.len();
        let size =
            |limit| training_sample(&texts, limit).iter().map(|text| text.len()).sum::<usize>();

        assert_eq!(size(total), total);
        let half = size(total / 2);
        assert!((total / 4..total * 3 / 4).contains(&half), "{half} of {total}");
    }

    #[test]
    fn invalid_tokenizers_are_errors() {
        assert!(Tokenizer::train_bpe(&["text"], 256).is_err());
        assert!(Tokenizer::train_bpe(&[], 300).is_err());
        assert!(Tokenizer::train_bpe(&["text text"], 100_000).unwrap().vocab_size() >= 257);

        let error = Tokenizer::from_file(Path::new("no/tokenizer.json")).err().unwrap().to_string();
        assert!(error.contains("no/tokenizer.json"), "{error}");
    }

    fn streamed(tokenizer: &Tokenizer, ids: &[u32]) -> String {
        let mut stream = tokenizer.stream();
        let mut text = String::new();
        for &id in ids {
            text.push_str(&stream.push(id).unwrap());
        }
        text + &stream.finish().unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn decoding_inverts_encoding_whole_and_streamed(text in "(\\PC|[\\n\\t a-z]){0,60}") {
            let bpe = Tokenizer::train_bpe(&["a bad cafe\n"], 270).unwrap();
            for tokenizer in [bpe, Tokenizer::byte()] {
                let ids = tokenizer.encode(&text).unwrap();
                prop_assert_eq!(&tokenizer.decode(&ids).unwrap(), &text);
                prop_assert_eq!(&streamed(&tokenizer, &ids), &text);
            }
        }

        /// Splitting at words changes no id, for text full of characters that the pre-tokenizer
        /// treats specially.
        #[test]
        fn splitting_at_words_changes_no_id(
            text in "([ \\n\\t'a-c.,_0-1]|'s|'ll|\u{e9}|\u{a0}|\u{2028}|\u{1f980}){0,80}",
        ) {
            let training = "a 'bab cc'll  \n\n  b's a.,b_ 0'a 's ..' ' b\t'sa".repeat(9);
            let bpe = Tokenizer::train_bpe(&[&training], 300).unwrap();
            assert!(bpe.splits_at_words);
            let whole = [bpe.encode(&text).unwrap(), vec![bpe.separator().unwrap()]].concat();
            prop_assert_eq!(bpe.encode_documents(&[&text]).unwrap().0, whole);
        }

        /// Streamed decoding equals decoding all ids together, even for ids that are not valid
        /// text.
        #[test]
        fn a_stream_gives_the_same_text_for_any_ids(
            ids in prop::collection::vec(prop_oneof![0u32..300, 0x80u32..0xff], 0..40),
        ) {
            let bpe = Tokenizer::train_bpe(&["a bad cafe\n"], 270).unwrap();
            for tokenizer in [bpe, Tokenizer::byte()] {
                prop_assert_eq!(streamed(&tokenizer, &ids), tokenizer.decode(&ids).unwrap());
            }
        }
    }
}
