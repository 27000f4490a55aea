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
use std::path::PathBuf;

use twox_hash::XxHash3_128;

pub use default_text::{MAX_DEFAULT_BYTES, MAX_FILE_BYTES};

/// Why text cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CorpusError {
    /// A file or folder that is missing or cannot be read.
    #[error("data: cannot read {}: {source}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// An invalid glob.
    #[error("data: `{pattern}` is not a glob: {message}")]
    BadGlob {
        /// The pattern.
        pattern: String,
        /// The problem.
        message: String,
    },
    /// A glob or folder without text files.
    #[error("data: no text file in `{place}` (looked for {extensions})")]
    NoMatch {
        /// The glob or folder.
        place: String,
        /// The extensions that count as text.
        extensions: String,
    },
    /// No file has text.
    #[error("data: no text in `{paths}`: {}; name another file", all_empty(*files))]
    Empty {
        /// The paths, as given.
        paths: String,
        /// The number of files.
        files: u64,
    },
    /// A file that is not text.
    #[error("data: {} is not text: {problem}", path.display())]
    Binary {
        /// The file.
        path: PathBuf,
        /// How it was recognized, and what to do.
        problem: String,
    },
    /// A Parquet file that cannot be read, or has no text.
    #[error("data: {}: {problem}", path.display())]
    Parquet {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// A line of a JSON Lines file without text.
    #[error("data: {}:{line}: {problem}", path.display())]
    BadLine {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The problem.
        problem: String,
    },
}

fn all_empty(files: u64) -> String {
    match files {
        1 => "the only file is empty".to_owned(),
        files => format!("all {files} files are empty"),
    }
}

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
    /// [`CorpusError`]: names the path.
    pub fn load(paths: &[String]) -> Result<Self, CorpusError> {
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
