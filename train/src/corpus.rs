//! The text of a run: named documents, their size and their digest. Tokens are handled elsewhere.

mod default_text;
mod files;

use std::path::PathBuf;

use twox_hash::XxHash3_128;

pub use default_text::{MAX_DEFAULT_BYTES, MAX_FILE_BYTES};

/// Why text cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CorpusError {
    /// A file or folder that is missing or cannot be read.
    #[error("data.paths: cannot read {}: {source}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// An invalid glob.
    #[error("data.paths: `{pattern}` is not a glob: {message}")]
    BadGlob {
        /// The pattern.
        pattern: String,
        /// The problem.
        message: String,
    },
    /// A glob or folder without text files.
    #[error("data.paths: no text file in `{place}` (looked for {extensions})")]
    NoMatch {
        /// The glob or folder.
        place: String,
        /// The extensions that count as text.
        extensions: String,
    },
    /// An empty file.
    #[error("data.paths: {} is empty; name another file", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// A line of a JSON Lines file without text.
    #[error("data.paths: {}:{line}: {problem}", path.display())]
    BadLine {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The problem.
        problem: String,
    },
}

/// A document: a file, or a line of a JSON Lines file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// The path of a file; `CRATE/path` in the default text; `path:line` for JSON Lines.
    pub name: String,
    /// Valid UTF-8; never empty.
    pub text: String,
}

/// All the text of a run, in a fixed order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Corpus {
    /// A short description for the header of a run.
    pub title: String,
    /// The documents.
    pub documents: Vec<Document>,
    /// XXH3-128 over every document's name and text, each preceded by its length.
    pub digest: u128,
    /// Invalid UTF-8 bytes that were replaced by U+FFFD.
    pub replaced_bytes: u64,
}

impl Corpus {
    /// Reads `data.paths`: files, folders (recursively, sorted by path) and globs, in the given
    /// order; the default text if empty. A file that is named twice is read once.
    ///
    /// # Errors
    /// [`CorpusError`]: names the path.
    pub fn load(paths: &[String]) -> Result<Self, CorpusError> {
        if paths.is_empty() {
            return Ok(default_text::load());
        }
        let (documents, replaced_bytes) = files::read(paths)?;
        Ok(Self::new(paths.join(" "), documents, replaced_bytes))
    }

    fn new(title: String, documents: Vec<Document>, replaced_bytes: u64) -> Self {
        let digest = digest(&documents);
        Self {
            title,
            documents,
            digest,
            replaced_bytes,
        }
    }

    /// Bytes of text, without names.
    pub fn bytes(&self) -> u64 {
        self.documents
            .iter()
            .map(|document| document.text.len() as u64)
            .sum()
    }
}

fn digest(documents: &[Document]) -> u128 {
    let mut hash = XxHash3_128::new();
    for document in documents {
        for part in [&document.name, &document.text] {
            hash.write(&(part.len() as u64).to_le_bytes());
            hash.write(part.as_bytes());
        }
    }
    hash.finish_128()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(name: &str, text: &str) -> Document {
        Document {
            name: name.to_owned(),
            text: text.to_owned(),
        }
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
        let digests: std::collections::BTreeSet<u128> =
            corpora.iter().map(|documents| digest(documents)).collect();
        assert_eq!(digests.len(), corpora.len());
    }
}
