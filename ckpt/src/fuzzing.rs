//! Entry points for untrusted bytes, for fuzzers and tests.
//!
//! The entry point for headers is [`crate::Header::parse`].

use crate::index::Index;
use crate::manifest::Manifest;

/// Whether these bytes are a valid index of safetensors files.
pub fn is_index(json: &[u8]) -> bool {
    Index::parse(json).is_ok()
}

/// Whether these bytes are a valid checkpoint manifest.
pub fn is_manifest(json: &[u8]) -> bool {
    Manifest::from_json(json).is_ok()
}
