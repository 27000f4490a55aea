//! Why a folder is not a complete checkpoint.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use meshgrad_error::{Error, Kind};

use crate::names::Listed;

/// The version of the manifests that this crate writes and reads.
pub(crate) const MANIFEST_VERSION: u32 = 2;

/// A folder that is not a complete checkpoint: details of an [`Error`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incomplete {
    /// The folder.
    pub path: PathBuf,
    /// The problem.
    pub problem: IntegrityError,
}

impl fmt::Display for Incomplete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not a complete checkpoint: {}", self.path.display(), self.problem)
    }
}

/// Why a folder is not a complete checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum IntegrityError {
    /// The manifest is missing: the folder was not published by this program, or not completely.
    NoManifest,
    /// The manifest is not JSON of the expected form.
    BadManifest {
        /// The problem.
        message: String,
    },
    /// A newer program wrote the manifest.
    NewerVersion {
        /// The manifest's version.
        found: u32,
    },
    /// The digest of the manifest differs from its seal.
    BrokenSeal {
        /// The digest in the seal.
        sealed: String,
        /// The digest of the manifest.
        found: String,
    },
    /// Files are missing.
    MissingFiles {
        /// Their paths below the folder.
        files: Vec<String>,
    },
    /// A file that the manifest does not list.
    Unlisted {
        /// Its path below the folder.
        file: String,
    },
    /// A file has another size.
    WrongSize {
        /// Its path below the folder.
        file: String,
        /// Bytes in the manifest.
        expected: u64,
        /// Bytes of the file.
        found: u64,
    },
    /// A file has the right size but other content.
    WrongDigest {
        /// Its path below the folder.
        file: String,
        /// The number of the block in the file, from 0.
        block: usize,
        /// The bytes of the block.
        range: Range<u64>,
        /// The digest in the manifest.
        expected: String,
        /// The digest of the bytes.
        found: String,
    },
}

impl IntegrityError {
    /// The error for a folder, with [`Incomplete`] as details.
    pub fn of(self, folder: &Path) -> Error {
        let kind = match self {
            // A program that reads it may find it intact.
            IntegrityError::NewerVersion { .. } => Kind::Unsupported,
            _ => Kind::Damaged,
        };
        Error::with_details(kind, Incomplete { path: folder.to_owned(), problem: self })
    }
}

impl fmt::Display for IntegrityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IntegrityError::NoManifest => f.write_str("it has no manifest.json"),
            IntegrityError::BadManifest { message } => {
                write!(f, "its manifest.json is invalid: {message}")
            }
            IntegrityError::NewerVersion { found } => write!(
                f,
                "its manifest.json has version {found}, but this program reads \
                 {MANIFEST_VERSION}; use a newer meshgrad"
            ),
            IntegrityError::BrokenSeal { sealed, found } => write!(
                f,
                "its manifest.json was modified: it has digest {found}, but its seal is {sealed}"
            ),
            IntegrityError::MissingFiles { files } => {
                write!(f, "files are missing: {}", Listed(files))
            }
            IntegrityError::Unlisted { file } => {
                write!(f, "its manifest.json does not list {file}")
            }
            IntegrityError::WrongSize { file, expected, found } => {
                write!(f, "{file} has {found} bytes, but the manifest lists {expected}")
            }
            IntegrityError::WrongDigest { file, block, range, expected, found } => write!(
                f,
                "{file} is damaged: bytes {}..{} (block {block}) have digest {found}, but the \
                 manifest lists {expected}",
                range.start, range.end
            ),
        }
    }
}
