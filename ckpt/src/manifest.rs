//! The manifest: the last file of a checkpoint, which marks it as complete.
//!
//! ```text
//! {
//!   "format": "meshgrad-checkpoint",
//!   "version": 2,
//!   "about": {"step":123},
//!   "files": [
//!     {"path":"config.json","bytes":2,"blocks":[[2,"96a0a8b0f1f5ff4d"]]},
//!     {"path":"model.safetensors","bytes":20000000,"blocks":[[16777216,"..."],[3222784,"..."]]}
//!   ],
//!   "seal": "5c1e6f4a0b7d9e32"
//! }
//! ```
//!
//! It lists every other file with its size and the digests of its blocks, which are consecutive
//! from the file's start. The seal is the digest of all text above its line, so no other formatting
//! of the same manifest is valid. Digests detect damage, not forgery.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::blocks::{Block, Content, Digest, MAX_BLOCK_BYTES};
use crate::integrity::{IntegrityError, MANIFEST_VERSION};
use crate::names::check_relative_path;

/// The manifest's file name.
pub(crate) const MANIFEST_FILE: &str = "manifest.json";

/// A larger manifest is treated as damaged.
pub(crate) const MAX_MANIFEST_BYTES: u64 = 100_000_000;

const FORMAT: &str = "meshgrad-checkpoint";

const SEAL_BEGIN: &str = "  \"seal\": \"";
const SEAL_END: &str = "\"\n}\n";
const DIGITS: usize = 16;

/// A checkpoint's description of itself: step, mesh, allowed problems and other data of its writer.
pub type About = BTreeMap<String, Value>;

/// The files of a checkpoint, by path below its folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) about: About,
    pub(crate) files: BTreeMap<String, Content>,
}

#[derive(Deserialize)]
struct HeadJson {
    format: String,
    version: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ManifestJson {
    #[serde(rename = "format")]
    _format: String,
    #[serde(rename = "version")]
    _version: u32,
    about: About,
    files: Vec<FileJson>,
    #[serde(rename = "seal")]
    _seal: Digest,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileJson {
    path: String,
    bytes: u64,
    blocks: Vec<(u64, Digest)>,
}

impl FileJson {
    fn new(path: &str, content: &Content) -> FileJson {
        let blocks = content.blocks.iter();
        FileJson {
            path: path.to_owned(),
            bytes: content.bytes,
            blocks: blocks.map(|block| (block.bytes, block.xxh3)).collect(),
        }
    }

    /// Gives the blocks their offsets; an error explains why they do not form the file.
    fn content(&self) -> Result<Content, String> {
        let mut blocks = Vec::with_capacity(self.blocks.len());
        let mut offset = 0u64;
        for &(bytes, xxh3) in &self.blocks {
            if !(1..=MAX_BLOCK_BYTES).contains(&bytes) {
                return Err(format!("a block has {bytes} bytes"));
            }
            blocks.push(Block { offset, bytes, xxh3 });
            offset = offset.saturating_add(bytes);
        }

        if offset != self.bytes {
            return Err(format!("{} bytes but {offset} in blocks", self.bytes));
        }
        Ok(Content { bytes: self.bytes, blocks })
    }
}

impl Manifest {
    /// Formats the manifest and seals it.
    ///
    /// # Errors
    /// Never in practice: numbers and strings always have a JSON form.
    pub(crate) fn to_json(&self) -> serde_json::Result<String> {
        let about = serde_json::to_string(&self.about)?;
        let mut json = format!(
            "{{\n  \"format\": \"{FORMAT}\",\n  \"version\": {MANIFEST_VERSION},\n  \"about\": {about},\n  \
             \"files\": ["
        );
        let mut separator = "\n";
        for (path, content) in &self.files {
            json += separator;
            json += "    ";
            json += &serde_json::to_string(&FileJson::new(path, content))?;
            separator = ",\n";
        }
        json += "\n  ],\n";

        let seal = Digest::of(json.as_bytes());
        Ok(format!("{json}{SEAL_BEGIN}{seal}{SEAL_END}"))
    }

    pub(crate) fn from_json(json: &[u8]) -> Result<Manifest, IntegrityError> {
        let bad = |message: String| IntegrityError::BadManifest { message };
        let not_json = |error: serde_json::Error| bad(error.to_string());
        check_seal(json)?;

        let head: HeadJson = serde_json::from_slice(json).map_err(not_json)?;
        if head.format != FORMAT {
            let message = format!("its format is {:?}, not {FORMAT:?}", head.format);
            return Err(bad(message));
        }
        match head.version {
            MANIFEST_VERSION => {}
            0..MANIFEST_VERSION => return Err(bad(format!("its version is {}", head.version))),
            found => return Err(IntegrityError::NewerVersion { found }),
        }

        let raw: ManifestJson = serde_json::from_slice(json).map_err(not_json)?;
        let mut files = BTreeMap::new();
        for file in raw.files {
            let path = &file.path;
            let listed = |problem: String| bad(format!("it lists {path:?}: {problem}"));

            check_relative_path(path).map_err(|problem| listed(problem.to_owned()))?;
            let content = file.content().map_err(listed)?;
            if files.insert(path.clone(), content).is_some() {
                return Err(listed("twice".to_owned()));
            }
        }
        let about = raw.about;
        Ok(Manifest { about, files })
    }
}

/// Detects any modification before the content is used.
fn check_seal(json: &[u8]) -> Result<(), IntegrityError> {
    let cut = || IntegrityError::BadManifest {
        message:
            "it does not end with its seal; it was truncated, modified, or written by another \
                  program"
                .to_owned(),
    };
    let line = SEAL_BEGIN.len() + DIGITS + SEAL_END.len();
    let (above, line) = json.split_at(json.len().checked_sub(line).ok_or_else(cut)?);

    let sealed = line
        .strip_prefix(SEAL_BEGIN.as_bytes())
        .and_then(|rest| rest.strip_suffix(SEAL_END.as_bytes()))
        .and_then(|digits| Digest::parse(str::from_utf8(digits).ok()?))
        .ok_or_else(cut)?;
    let found = Digest::of(above);
    if found != sealed {
        return Err(IntegrityError::BrokenSeal {
            sealed: sealed.to_string(),
            found: found.to_string(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Manifest {
        let block = |offset, bytes| Block { offset, bytes, xxh3: Digest(offset + 7) };
        let content = |blocks: Vec<Block>| Content {
            bytes: blocks.iter().map(|block| block.bytes).sum(),
            blocks,
        };
        let about = [("loss", 0.123_456_789_012_345_67.into()), ("step", 3.into())];
        Manifest {
            about: about.map(|(key, value)| (key.to_owned(), value)).into(),
            files: BTreeMap::from([
                ("a/\u{fc}\".bin".to_owned(), content(vec![block(0, 5), block(5, 1)])),
                ("empty".to_owned(), content(vec![])),
            ]),
        }
    }

    /// Replaces the seal by one that is valid for the text above it.
    fn resealed(json: &str) -> String {
        let above = json.split_once(SEAL_BEGIN).unwrap().0;
        format!("{above}{SEAL_BEGIN}{}{SEAL_END}", Digest::of(above.as_bytes()))
    }

    #[test]
    fn json_round_trips() {
        let empty = Manifest { about: About::new(), files: BTreeMap::new() };
        for manifest in [small(), empty] {
            let json = manifest.to_json().unwrap();
            assert_eq!(Manifest::from_json(json.as_bytes()).unwrap(), manifest);
        }
    }

    /// Every bit counts, even in white space.
    #[test]
    fn every_bit_flip_and_truncation_is_detected() {
        let json = small().to_json().unwrap().into_bytes();
        for at in 0..json.len() {
            assert!(Manifest::from_json(&json[..at]).is_err(), "cut to {at}");
            for bit in 0..8 {
                let mut flipped = json.clone();
                flipped[at] ^= 1 << bit;
                assert!(Manifest::from_json(&flipped).is_err(), "bit {bit} of byte {at}");
            }
        }
        assert!(Manifest::from_json(&[json.as_slice(), b"\n"].concat()).is_err());
    }

    #[test]
    fn a_sealed_manifest_is_still_validated() {
        let json = small().to_json().unwrap();
        for (from, to, message) in [
            ("\"empty\"", "\"../x\"", "it has a component `..`"),
            ("\"empty\"", "\"/etc/passwd\"", "refers to another folder"),
            ("\"empty\"", "\"a/\u{fc}\\\".bin\"", "twice"),
            ("[5,", "[4,", "6 bytes but 5 in blocks"),
            ("[5,", "[0,", "a block has 0 bytes"),
            ("[5,", "[99999999,", "a block has 99999999 bytes"),
            ("\"version\": 2", "\"version\": 2.0", "floating point"),
            ("\"version\": 2", "\"version\": 1", "its version is 1"),
            ("\"version\": 2", "\"version\": 2, \"more\": 2", "unknown field"),
            ("meshgrad-checkpoint", "other", "its format is \"other\""),
        ] {
            let changed = resealed(&json.replace(from, to));
            match Manifest::from_json(changed.as_bytes()) {
                Err(IntegrityError::BadManifest { message: found }) => {
                    assert!(found.contains(message), "{to}: {found}");
                }
                other => panic!("{to}: {other:?}"),
            }
        }

        let newer = resealed(&json.replace("\"version\": 2", "\"version\": 3"));
        let problem = Manifest::from_json(newer.as_bytes()).unwrap_err();
        assert_eq!(problem, IntegrityError::NewerVersion { found: 3 });
    }
}
