//! Why a folder is no complete checkpoint.

use std::ops::Range;

use crate::names::Listed;

/// The version of the manifests that this crate writes and reads.
pub(crate) const MANIFEST_VERSION: u32 = 2;

/// Why a folder is no complete checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IntegrityError {
    /// There is no manifest: the folder was not published by this program, or not completely.
    #[error("it has no manifest.json")]
    NoManifest,
    /// The manifest is not JSON of the expected form.
    #[error("its manifest.json cannot be read: {message}")]
    BadManifest {
        /// What is wrong.
        message: String,
    },
    /// The manifest was made by a newer program.
    #[error(
        "its manifest.json has version {found}, this program reads {MANIFEST_VERSION}; use a newer one"
    )]
    NewerVersion {
        /// The manifest's version.
        found: u32,
    },
    /// The manifest does not have the digest that it ends with.
    #[error("its manifest.json was changed: it has digest {found}, its seal is {sealed}")]
    BrokenSeal {
        /// The digest in the manifest.
        sealed: String,
        /// The digest of the manifest.
        found: String,
    },
    /// Files are not there.
    #[error("files are missing: {}", Listed(files))]
    MissingFiles {
        /// Their paths below the folder.
        files: Vec<String>,
    },
    /// A file has another size.
    #[error("{file} has {found} bytes, its manifest says {expected}")]
    WrongSize {
        /// Its path below the folder.
        file: String,
        /// Bytes it should have.
        expected: u64,
        /// Bytes it has.
        found: u64,
    },
    /// A file has the right size and other content.
    #[error(
        "{file} is damaged: bytes {}..{} (block {block}) have digest {found}, its manifest says \
         {expected}", range.start, range.end
    )]
    WrongDigest {
        /// Its path below the folder.
        file: String,
        /// Which of its blocks, from 0.
        block: usize,
        /// The bytes of the block.
        range: Range<u64>,
        /// The digest it should have.
        expected: String,
        /// The digest it has.
        found: String,
    },
}
