//! The text of a run: named documents, their size and their digest. Tokens are handled elsewhere.

mod contents;
mod default_text;
mod files;
#[cfg(not(feature = "parquet"))]
#[path = "corpus/no_parquet.rs"]
mod parquet;
#[cfg(feature = "parquet")]
mod parquet;
mod records;
mod text;

use std::ops::Range;
use std::path::Path;

use meshgrad_ckpt::io_error;
use meshgrad_error::{Error, Result};
use twox_hash::XxHash3_128;

pub use default_text::{MAX_DEFAULT_BYTES, MAX_FILE_BYTES};

/// The role whose messages the loss counts.
pub const ASSISTANT: &str = "assistant";

/// A document: a file, or a record of a JSON Lines or Parquet file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// The path of a file; `CRATE/path` in the default text; `path:line` for records.
    pub name: String,
    /// Valid UTF-8; never empty. For a conversation, it is the contents of the messages, one per
    /// line.
    pub text: String,
    /// The messages of a conversation; empty for other text.
    pub turns: Vec<Turn>,
}

/// A message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    /// The writer, such as `user` or [`ASSISTANT`].
    pub role: String,
    /// The content, a range of the document's text.
    pub bytes: Range<usize>,
}

impl Document {
    /// A document that is not a conversation.
    pub fn new(name: String, text: String) -> Document {
        Document { name, text, turns: Vec::new() }
    }
}

/// All the text of a run, in a fixed order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Corpus {
    /// A short description for the header of a run.
    pub title: String,
    /// The documents.
    pub documents: Vec<Document>,
    /// XXH3-128 over every document's name and text, each preceded by its length, and over the
    /// messages of conversations.
    pub digest: u128,
    /// Invalid UTF-8 bytes that were replaced by U+FFFD.
    pub replaced_bytes: u64,
    /// Files that were skipped because they have no text.
    pub empty_files: u64,
}

impl Corpus {
    /// Reads files, folders (recursively, sorted by path) and globs, in the given order; the
    /// default text if `paths` is empty. A file that is named twice is read once.
    ///
    /// # Errors
    /// When a path cannot be read, or has no text.
    pub fn load(paths: &[String]) -> Result<Self> {
        if paths.is_empty() {
            return Ok(default_text::load());
        }
        let contents = files::read(paths)?;
        Ok(Self {
            replaced_bytes: contents.replaced_bytes,
            empty_files: contents.empty_files,
            ..Self::new(paths.join(" "), contents.documents)
        })
    }

    fn new(title: String, documents: Vec<Document>) -> Self {
        let digest = digest(&documents);
        Self { title, documents, digest, replaced_bytes: 0, empty_files: 0 }
    }

    /// Bytes of text, without names.
    pub fn bytes(&self) -> u64 {
        self.documents.iter().map(|document| document.text.len() as u64).sum()
    }
}

/// The error for a file or folder that cannot be read.
fn unreadable(path: &Path, cause: std::io::Error) -> Error {
    io_error("read", path, cause).context("data")
}

fn digest(documents: &[Document]) -> u128 {
    let mut hash = XxHash3_128::new();
    for document in documents {
        for part in [&document.name, &document.text] {
            hash.write(&(part.len() as u64).to_le_bytes());
            hash.write(part.as_bytes());
        }
        if !document.turns.is_empty() {
            // No name has this length, so a conversation is never mistaken for the next document.
            hash.write(&u64::MAX.to_le_bytes());
            hash.write(&(document.turns.len() as u64).to_le_bytes());
        }
        for turn in &document.turns {
            for number in [turn.role.len(), turn.bytes.start, turn.bytes.end] {
                hash.write(&(number as u64).to_le_bytes());
            }
            hash.write(turn.role.as_bytes());
        }
    }
    hash.finish_128()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(name: &str, text: &str) -> Document {
        Document::new(name.to_owned(), text.to_owned())
    }

    fn turn(role: &str, bytes: Range<usize>) -> Turn {
        let role = role.to_owned();
        Turn { role, bytes }
    }

    #[test]
    fn the_digest_depends_on_names_texts_boundaries_and_order() {
        let corpora = [
            vec![document("a", "xy"), document("b", "z")],
            vec![document("a", "x"), document("b", "yz")],
            vec![document("b", "z"), document("a", "xy")],
            vec![document("ax", "y"), document("b", "z")],
            vec![document("a", "xyz")],
            vec![],
        ];
        let turns = [
            vec![turn("user", 0..1), turn("assistant", 2..3)],
            vec![turn("tool", 0..1), turn("assistant", 2..3)],
            vec![turn("user", 0..0), turn("assistant", 1..3)],
            vec![turn("assistant", 0..3)],
        ];
        let conversations = turns.map(|turns| {
            let plain = document("a", "xyz");
            vec![Document { turns, ..plain }]
        });
        let corpora = [&corpora[..], &conversations[..]].concat();
        let digests: std::collections::BTreeSet<u128> =
            corpora.iter().map(|documents| digest(documents)).collect();
        assert_eq!(digests.len(), corpora.len());
    }
}
