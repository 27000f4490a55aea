//! What interrupted saves and removals left in a folder, recognised by name and lock as the library
//! does when it sweeps, but only looked at.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::catalog::shown;

/// Digits of the unique part of a hidden name.
const UNIQUE_LEN: usize = 16;

/// A hidden folder or file that a save or a removal made.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Leftover {
    pub(crate) path: PathBuf,
    pub(crate) state: State,
}

/// What a leftover is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Being written: its process holds the lock.
    InUse,
    /// Was being written by a process that is gone.
    Abandoned,
    /// Was being removed.
    Trash,
}

/// All leftovers directly in `folder`, by name.
pub(crate) fn leftovers(folder: &Path) -> anyhow::Result<Vec<Leftover>> {
    let entries = fs::read_dir(folder).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let mut entries = entries.with_context(|| format!("cannot read {}", shown(folder)))?;
    entries.sort_by_key(fs::DirEntry::file_name);

    let found = entries.iter().filter_map(|entry| {
        let path = entry.path();
        let state = match mark(entry.file_name().to_str()?)? {
            ".trash-" => State::Trash,
            _ if is_locked(&path) => State::InUse,
            _ => State::Abandoned,
        };
        Some(Leftover { path, state })
    });
    Ok(found.collect())
}

/// The mark in `.NAME.tmp-UNIQUE` or `.NAME.trash-UNIQUE`; `None` for names that are not ours.
fn mark(name: &str) -> Option<&'static str> {
    [".tmp-", ".trash-"].into_iter().find(|mark| {
        let parts = name.rsplit_once(mark);
        parts.is_some_and(|(hidden, unique)| {
            let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            hidden.len() > 1
                && hidden.starts_with('.')
                && unique.len() == UNIQUE_LEN
                && unique.bytes().all(is_digit)
        })
    })
}

/// Whether somebody writes there. What cannot be opened or locked stays, as when sweeping.
fn is_locked(path: &Path) -> bool {
    match File::open(path) {
        // Shared, and given back at once: two who look do not disturb each other.
        Ok(file) => !matches!(file.try_lock_shared(), Ok(())),
        Err(_) => true,
    }
}

/// Bytes of all files at and below `path`; links are not followed.
pub(crate) fn bytes_below(path: &Path) -> std::io::Result<u64> {
    let metadata = fs::symlink_metadata(path)?;
    if !metadata.is_dir() {
        return Ok(metadata.len());
    }
    let entries = fs::read_dir(path)?;
    entries.map(|entry| bytes_below(&entry?.path())).sum()
}

#[cfg(test)]
mod tests {
    use meshgrad::ckpt::{Staging, sweep};

    use super::*;

    /// We call abandoned exactly what the library removes, and in use what it leaves.
    #[test]
    fn leftovers_are_what_a_sweep_removes() {
        let run = tempfile::tempdir().unwrap();
        let live = Staging::new(run.path(), "step-000001").unwrap();
        for name in [
            ".step-000002.tmp-0123456789abcdef",
            ".step-000003.trash-0123456789abcdef",
            ".x.tmp-0123456789abcde",
            ".x.tmp-0123456789ABCDEF",
            ".tmp-0123456789abcdef",
            "x.trash-0123456789abcdef",
            ".git",
        ] {
            fs::create_dir(run.path().join(name)).unwrap();
        }
        let file = run.path().join(".state.json.tmp-0123456789abcdef");
        fs::write(file, "half").unwrap();

        let before = leftovers(run.path()).unwrap();
        let states: Vec<State> = before.iter().map(|leftover| leftover.state).collect();
        assert_eq!(before[1].path, live.folder());
        let (gone, trash) = (State::Abandoned, State::Trash);
        assert_eq!(states, [gone, State::InUse, gone, trash]);

        let count = || fs::read_dir(run.path()).unwrap().count();
        let all = count();
        sweep(run.path()).unwrap();
        assert_eq!(count(), all - 3);
        assert_eq!(leftovers(run.path()).unwrap(), before[1..2]);
    }

    #[test]
    fn bytes_are_those_of_files() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("a")).unwrap();
        fs::write(folder.path().join("a/x"), [0; 7]).unwrap();
        fs::write(folder.path().join("y"), [0; 5]).unwrap();
        std::os::unix::fs::symlink("/", folder.path().join("a/root")).unwrap();
        // The link's own length is that of its target's name.
        assert_eq!(bytes_below(folder.path()).unwrap(), 7 + 5 + 1);
    }
}
