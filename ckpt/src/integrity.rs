//! Why a folder is not a complete checkpoint.

use std::ops::Range;

use crate::names::Listed;

/// The version of the manifests that this crate writes and reads.
pub(crate) const MANIFEST_VERSION: u32 = 2;

/// Why a folder is not a complete checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IntegrityError {
    /// The manifest is missing: the folder was not published by this program, or not completely.
    #[error("it has no manifest.json")]
    NoManifest,
    /// The manifest is not JSON of the expected form.
    #[error("its manifest.json is invalid: {message}")]
    BadManifest {
        /// The problem.
        message: String,
    },
    /// A newer program wrote the manifest.
    #[error(
        "its manifest.json has version {found}, but this program reads {MANIFEST_VERSION}; use a newer meshgrad"
    )]
    NewerVersion {
        /// The manifest's version.
        found: u32,
    },
    /// The digest of the manifest differs from its seal.
    #[error("its manifest.json was modified: it has digest {found}, but its seal is {sealed}")]
    BrokenSeal {
        /// The digest in the seal.
        sealed: String,
        /// The digest of the manifest.
        found: String,
    },
    /// Files are missing.
    #[error("files are missing: {}", Listed(files))]
    MissingFiles {
        /// Their paths below the folder.
        files: Vec<String>,
    },
    /// A file that the manifest does not list.
    #[error("its manifest.json does not list {file}")]
    Unlisted {
        /// Its path below the folder.
        file: String,
    },
    /// A file has another size.
    #[error("{file} has {found} bytes, but the manifest lists {expected}")]
    WrongSize {
        /// Its path below the folder.
        file: String,
        /// Bytes in the manifest.
        expected: u64,
        /// Bytes of the file.
        found: u64,
    },
    /// A file has the right size but other content.
    #[error(
        "{file} is damaged: bytes {}..{} (block {block}) have digest {found}, but the manifest lists \
         {expected}", range.start, range.end
    )]
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
