//! The documents of files, and counts of what was replaced or skipped.

use super::Document;

#[derive(Default)]
pub(super) struct Contents {
    pub(super) documents: Vec<Document>,
    /// Invalid UTF-8 bytes that were replaced.
    pub(super) replaced_bytes: u64,
    /// Files without a document.
    pub(super) empty_files: u64,
}
