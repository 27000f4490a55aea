//! The files of runs and checkpoints.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

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
