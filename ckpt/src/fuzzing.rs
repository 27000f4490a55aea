//! Where bytes of strangers come in, for programs that try to break them: fuzzers and tests.
//!
//! The header of a file is [`crate::Header::parse`].

use crate::index::Index;
use crate::manifest::Manifest;

/// Whether these bytes are an index of safetensors files.
pub fn is_index(json: &[u8]) -> bool {
    Index::parse(json).is_ok()
}

/// Whether these bytes are a manifest of a checkpoint.
pub fn is_manifest(json: &[u8]) -> bool {
    Manifest::from_json(json).is_ok()
}
