//! The files of runs, checkpoints and models.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use meshgrad::ckpt::Committed;

/// Contents by path within a folder.
pub(crate) type Files = BTreeMap<PathBuf, Vec<u8>>;

/// Every file below `folder`.
pub(crate) fn files(folder: &Path) -> Files {
    let mut files = Files::new();
    let mut left = vec![folder.to_owned()];
    while let Some(at) = left.pop() {
        for entry in fs::read_dir(&at).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => left.push(path),
                false => {
                    let content = fs::read(&path).unwrap();
                    files.insert(path.strip_prefix(folder).unwrap().to_owned(), content);
                }
            }
        }
    }
    files
}

/// Every file of a checkpoint, which is intact, except the configuration, which may differ.
pub(crate) fn checkpoint_files(checkpoint: &Path) -> Files {
    Committed::open(checkpoint).unwrap().verify().unwrap();
    let mut files = files(checkpoint);
    for name in ["manifest.json", "trainer/config.toml"] {
        files.remove(Path::new(name));
    }
    files
}

/// Changes one bit of a file.
pub(crate) fn flip(path: &Path, at: usize, bit: u32) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 1 << bit;
    fs::write(path, bytes).unwrap();
}
