//! The manifest: the last file of a checkpoint, which says that it is complete.
//!
//! It lists every other file with its size and digest and carries a digest of that list, so that
//! its own damage shows too. The digests tell damage, not forgery.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::Path;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::disk::Content;
use crate::names::{Listed, check_relative_path};
use crate::{Error, Result};

/// The name of the manifest in its folder.
pub(crate) const MANIFEST_FILE: &str = "manifest.json";

const FORMAT: &str = "meshgrad-checkpoint";
const VERSION: u32 = 1;

/// A manifest of more files than anybody has is damaged.
const MAX_MANIFEST_BYTES: u64 = 100_000_000;

/// Why a folder is no complete checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Flaw {
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
    #[error("its manifest.json has version {found}, this program reads {VERSION}; use a newer one")]
    NewerVersion {
        /// The manifest's version.
        found: u32,
    },
    /// The manifest's list does not have the manifest's digest.
    #[error("its manifest.json was changed: its list has digest {found}, its seal is {sealed}")]
    BrokenSeal {
        /// The digest in the manifest.
        sealed: String,
        /// The digest of the list.
        found: String,
    },
    /// Files are not there.
    #[error("files are missing: {}", Listed(files))]
    MissingFiles {
        /// Their paths below the folder.
        files: Vec<String>,
    },
    /// A file has another size.
    #[error("{file} has {found} bytes, its manifest says {wanted}")]
    WrongSize {
        /// Its path below the folder.
        file: String,
        /// Bytes it should have.
        wanted: u64,
        /// Bytes it has.
        found: u64,
    },
    /// A file has the right size and other content.
    #[error("{file} is damaged: its digest is {found}, its manifest says {wanted}")]
    WrongDigest {
        /// Its path below the folder.
        file: String,
        /// The digest it should have.
        wanted: String,
        /// The digest it has.
        found: String,
    },
}

/// The files of a checkpoint, by path below its folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) files: BTreeMap<String, Content>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ManifestJson {
    format: String,
    version: u32,
    files: Vec<FileJson>,
    seal: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileJson {
    path: String,
    bytes: u64,
    xxh3: String,
}

impl Manifest {
    pub(crate) fn to_json(&self) -> String {
        let files = self.files.iter().map(|(path, content)| FileJson {
            path: path.clone(),
            bytes: content.bytes,
            xxh3: hex(content.xxh3),
        });
        let json = serde_json::json!(ManifestJson {
            format: FORMAT.to_owned(),
            version: VERSION,
            files: files.collect(),
            seal: hex(self.seal()),
        });
        format!("{json:#}\n")
    }

    pub(crate) fn from_json(json: &[u8]) -> std::result::Result<Manifest, Flaw> {
        let bad = |message: String| Flaw::BadManifest { message };

        let raw: ManifestJson =
            serde_json::from_slice(json).map_err(|error| bad(error.to_string()))?;
        if raw.format != FORMAT {
            return Err(bad(format!(
                "its format is {:?}, not {FORMAT:?}",
                raw.format
            )));
        }
        if raw.version != VERSION {
            return Err(Flaw::NewerVersion { found: raw.version });
        }

        let mut files = BTreeMap::new();
        for file in raw.files {
            if let Err(problem) = check_relative_path(&file.path) {
                return Err(bad(format!("it lists {:?}: {problem}", file.path)));
            }
            let Some(xxh3) = parse_hex(&file.xxh3) else {
                return Err(bad(format!("{:?} is not 16 hexadecimal digits", file.xxh3)));
            };
            let content = Content {
                bytes: file.bytes,
                xxh3,
            };
            if files.insert(file.path.clone(), content).is_some() {
                return Err(bad(format!("it lists {:?} twice", file.path)));
            }
        }

        let manifest = Manifest { files };
        let found = hex(manifest.seal());
        if raw.seal != found {
            return Err(Flaw::BrokenSeal {
                sealed: raw.seal,
                found,
            });
        }
        Ok(manifest)
    }

    /// The digest of the list itself.
    fn seal(&self) -> u64 {
        let mut hash = Xxh3::new();
        for (path, content) in &self.files {
            hash.update(path.as_bytes());
            // No path has a NUL: entries cannot run into each other.
            hash.update(&[0]);
            hash.update(&content.bytes.to_le_bytes());
            hash.update(&content.xxh3.to_le_bytes());
        }
        hash.digest()
    }

    /// Reads the manifest of a folder and checks that all files are there with their sizes.
    pub(crate) fn open(folder: &Path) -> Result<Manifest> {
        let incomplete = |flaw| Error::Incomplete {
            path: folder.to_owned(),
            flaw,
        };
        let path = folder.join(MANIFEST_FILE);

        let bytes = match fs::metadata(&path) {
            Ok(metadata) if metadata.is_file() => metadata.len(),
            Ok(_) => return Err(incomplete(Flaw::NoManifest)),
            Err(error) if is_absent(&error) => return Err(incomplete(Flaw::NoManifest)),
            Err(error) => return Err(Error::io("read", &path, error)),
        };
        if bytes > MAX_MANIFEST_BYTES {
            let message = format!("it has {bytes} bytes, at most {MAX_MANIFEST_BYTES} are read");
            return Err(incomplete(Flaw::BadManifest { message }));
        }

        let json = fs::read(&path).map_err(|error| Error::io("read", &path, error))?;
        let manifest = Manifest::from_json(&json).map_err(incomplete)?;
        manifest.check_sizes(folder)?;
        Ok(manifest)
    }

    fn check_sizes(&self, folder: &Path) -> Result<()> {
        let incomplete = |flaw| Error::Incomplete {
            path: folder.to_owned(),
            flaw,
        };
        let mut missing = Vec::new();

        for (file, content) in &self.files {
            let path = folder.join(file);
            match fs::metadata(&path) {
                Ok(metadata) if !metadata.is_file() => missing.push(file.clone()),
                Ok(metadata) if metadata.len() != content.bytes => {
                    return Err(incomplete(Flaw::WrongSize {
                        file: file.clone(),
                        wanted: content.bytes,
                        found: metadata.len(),
                    }));
                }
                Ok(_) => {}
                Err(error) if is_absent(&error) => missing.push(file.clone()),
                Err(error) => return Err(Error::io("read", &path, error)),
            }
        }

        if missing.is_empty() {
            Ok(())
        } else {
            Err(incomplete(Flaw::MissingFiles { files: missing }))
        }
    }

    /// Reads all files and compares their digests.
    pub(crate) fn verify(&self, folder: &Path) -> Result<()> {
        self.check_sizes(folder)?;

        for (file, content) in &self.files {
            let found = digest(&folder.join(file))?;
            if found.xxh3 != content.xxh3 {
                let flaw = Flaw::WrongDigest {
                    file: file.clone(),
                    wanted: hex(content.xxh3),
                    found: hex(found.xxh3),
                };
                return Err(Error::Incomplete {
                    path: folder.to_owned(),
                    flaw,
                });
            }
        }
        Ok(())
    }
}

/// Size and digest of a file, read once.
pub(crate) fn digest(path: &Path) -> Result<Content> {
    const WINDOW: usize = 1 << 20;

    let read_error = |error| Error::io("read", path, error);
    let mut file = fs::File::open(path).map_err(read_error)?;
    let mut window = vec![0; WINDOW];
    let mut hash = Xxh3::new();
    let mut bytes = 0;

    loop {
        match file.read(&mut window) {
            Ok(0) => {
                return Ok(Content {
                    bytes,
                    xxh3: hash.digest(),
                });
            }
            Ok(read) => {
                hash.update(&window[..read]);
                bytes += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(read_error(error)),
        }
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

fn hex(digest: u64) -> String {
    format!("{digest:016x}")
}

fn parse_hex(text: &str) -> Option<u64> {
    let digest = u64::from_str_radix(text, 16).ok()?;
    // Exactly as it is written: no sign, no capitals, no missing zeros.
    (hex(digest) == text).then_some(digest)
}
