//! Undoes what a start wrote to the run folder, unless the start succeeds.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use meshgrad_ckpt::io_error;
use meshgrad_ckpt::vfs::Lock;
use meshgrad_error::Result;

use super::{LOCK, REPLACED, RESULTS, RunFolder, next_aside, partial};

/// Holds links to the files of the run folder while a start replaces them, and an empty folder with
/// the name of the folder to which the start moves checkpoints.
const BEFORE: &str = ".before-start";

/// Restores the files and checkpoints of a run folder when it is dropped; removes the folder if it
/// did not exist.
#[must_use]
pub(crate) struct Rollback {
    run: PathBuf,
    /// The outermost folder that was created for the run.
    created: Option<PathBuf>,
    is_kept: bool,
    /// The folder stays locked until its files are restored.
    _lock: Option<Arc<Lock>>,
}

impl Rollback {
    /// Links the files of `folder`, to restore them when dropped. Meanwhile they may be replaced by
    /// renames, but not written in place, and may be set aside once.
    ///
    /// # Errors
    /// When they cannot be linked.
    pub(crate) fn of(folder: &RunFolder) -> Result<Rollback> {
        let run = folder.path();
        let linked = restore(run).and_then(|()| link_files(run));
        linked.map_err(|cause| io_error("write", run, cause))?;
        Ok(Rollback {
            run: run.to_owned(),
            created: folder.created.clone(),
            is_kept: false,
            _lock: folder.lock.clone(),
        })
    }

    /// Keeps what was written.
    pub(crate) fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Rollback {
    fn drop(&mut self) {
        // The error of the start is reported. An error of cleaning up would hide it.
        if self.is_kept {
            let _ = discard(&self.run);
            return;
        }
        let _ = restore(&self.run);
        if let Some(created) = &self.created {
            remove_new(&self.run, created);
        }
    }
}

/// Removes `run` and its parents up to `created`, unless they have other files.
fn remove_new(run: &Path, created: &Path) {
    let _ = fs::remove_file(run.join(LOCK));
    for folder in run.ancestors() {
        if fs::remove_dir(folder).is_err() || folder == created {
            break;
        }
    }
}

/// Links the files of `run` into a folder inside it, which appears when it is complete.
fn link_files(run: &Path) -> io::Result<()> {
    let links = run.join(BEFORE);
    let unfinished = partial(&links);
    remove_if_exists(fs::remove_dir_all(&unfinished))?;
    fs::create_dir(&unfinished)?;
    for name in REPLACED {
        let file = run.join(name);
        if file.exists() {
            link(&file, &unfinished.join(name))?;
        }
    }
    let aside = next_aside(run);
    fs::create_dir(unfinished.join(aside.file_name().unwrap_or_default()))?;
    fs::rename(unfinished, links)
}

/// Links `from` to `to`, or copies it, because some file systems have no links.
fn link(from: &Path, to: &Path) -> io::Result<()> {
    fs::hard_link(from, to).or_else(|_| fs::copy(from, to).map(drop))
}

/// Restores the files and checkpoints of `run` from what a failed or killed start left. Does
/// nothing without links. Can be repeated if it was interrupted.
fn restore(run: &Path) -> io::Result<()> {
    let links = run.join(BEFORE);
    if !links.exists() {
        return Ok(());
    }
    for entry in fs::read_dir(&links)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            move_back(&run.join(entry.file_name()), run)?;
        }
    }
    for name in REPLACED {
        let (before, file) = (links.join(name), run.join(name));
        // If it cannot be removed, it is still no file of the run.
        let _ = fs::remove_file(partial(&file));
        match before.exists() {
            true => replace_by_link(&before, &file)?,
            false => remove_if_exists(fs::remove_file(file))?,
        }
    }
    discard(run)
}

/// Replaces `file` by a link to `before`, which stays.
fn replace_by_link(before: &Path, file: &Path) -> io::Result<()> {
    let unfinished = partial(before);
    remove_if_exists(fs::remove_file(&unfinished))?;
    link(before, &unfinished)?;
    fs::rename(&unfinished, file)?;
    // A rename between two links to one file leaves both.
    remove_if_exists(fs::remove_file(unfinished))
}

/// Moves the checkpoints in `aside` back to `run`, and removes `aside`.
fn move_back(aside: &Path, run: &Path) -> io::Result<()> {
    if !aside.exists() {
        return Ok(());
    }
    // The links have these.
    for name in RESULTS {
        remove_if_exists(fs::remove_file(aside.join(name)))?;
    }
    for entry in fs::read_dir(aside)? {
        let entry = entry?;
        fs::rename(entry.path(), run.join(entry.file_name()))?;
    }
    fs::remove_dir(aside)
}

/// Removes the links of `run`. The rename comes first, because a start restores files even from a
/// part of the links.
fn discard(run: &Path) -> io::Result<()> {
    let links = run.join(BEFORE);
    let unfinished = partial(&links);
    fs::rename(links, &unfinished)?;
    fs::remove_dir_all(unfinished)
}

fn remove_if_exists(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use meshgrad_error::Kind;

    use super::*;

    fn names(folder: &Path) -> Vec<OsString> {
        let mut names: Vec<OsString> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_new_folder_is_removed() {
        let place = tempfile::tempdir().unwrap();
        let start = || {
            let folder = RunFolder::open(&place.path().join("runs/new/deep")).unwrap();
            let rollback = Rollback::of(&folder).unwrap();
            folder.write(&folder.config(), "a").unwrap();
            (folder, rollback)
        };
        drop(start());
        assert!(names(place.path()).is_empty());

        let (folder, rollback) = start();
        rollback.keep();
        assert_eq!(names(folder.path()), ["config.toml", "lock"]);
    }

    #[test]
    fn the_files_of_an_old_folder_are_restored() {
        let place = tempfile::tempdir().unwrap();
        let open = || RunFolder::open(place.path()).unwrap();
        let folder = open();
        folder.write(&folder.config(), "old").unwrap();
        folder.write(&folder.tokenizer(), "old").unwrap();
        drop(folder);
        let before = names(place.path());

        let start = || {
            let folder = open();
            let rollback = Rollback::of(&folder).unwrap();
            folder.write(&folder.config(), "new").unwrap();
            folder.write(&folder.plot(), "new").unwrap();
            fs::remove_file(folder.tokenizer()).unwrap();
            drop(folder);
            rollback
        };
        drop(start());
        assert_eq!(names(place.path()), before);
        let text = |name: &str| fs::read_to_string(place.path().join(name)).unwrap();
        assert_eq!((text("config.toml"), text("tokenizer.json")), ("old".into(), "old".into()));

        start().keep();
        assert_eq!(names(place.path()), ["config.toml", "lock", "loss.svg"]);
        assert_eq!(text("config.toml"), "new");
    }

    /// No other process can use the folder before its files are restored.
    #[test]
    fn the_folder_is_locked_until_its_files_are_restored() {
        let place = tempfile::tempdir().unwrap();
        let folder = RunFolder::open(place.path()).unwrap();
        let rollback = Rollback::of(&folder).unwrap();
        drop(folder);
        let open = || RunFolder::open(place.path());
        assert_eq!(open().err().map(|error| error.kind()), Some(Kind::Busy));
        drop(rollback);
        open().unwrap();
    }

    #[test]
    fn files_of_others_stay() {
        let place = tempfile::tempdir().unwrap();
        let other = place.path().join("runs/other");
        let folder = RunFolder::open(&place.path().join("runs/new")).unwrap();
        let rollback = Rollback::of(&folder).unwrap();
        folder.write(&folder.config(), "a").unwrap();
        fs::create_dir(&other).unwrap();
        fs::write(other.join("config.toml"), "b").unwrap();
        drop(rollback);
        assert_eq!(names(&place.path().join("runs")), ["other"]);
        assert_eq!(names(&other), ["config.toml"]);

        let folder = RunFolder::open(&other).unwrap();
        let rollback = Rollback::of(&folder).unwrap();
        fs::write(other.join("notes.md"), "c").unwrap();
        drop(rollback);
        assert_eq!(names(&other), ["config.toml", "lock", "notes.md"]);
    }

    #[test]
    fn the_files_before_a_killed_start_are_restored() {
        let place = tempfile::tempdir().unwrap();
        let folder = RunFolder::open(place.path()).unwrap();
        folder.write(&folder.config(), "old").unwrap();
        std::mem::forget(Rollback::of(&folder).unwrap());
        folder.write(&folder.config(), "new").unwrap();

        Rollback::of(&folder).unwrap().keep();
        let text = fs::read_to_string(folder.config()).unwrap();
        assert_eq!(text, "old");
        assert_eq!(names(place.path()), ["config.toml", "lock"]);
    }

    /// What a failed or killed start has set aside returns, and what was set aside before stays.
    #[test]
    fn what_a_start_set_aside_is_moved_back() {
        let place = tempfile::tempdir().unwrap();
        let folder = RunFolder::open(place.path()).unwrap();
        for name in ["step-000002/trainer", "step-000004", "set-aside-1/step-000004"] {
            fs::create_dir_all(place.path().join(name)).unwrap();
        }
        fs::write(folder.metrics(), "old").unwrap();
        let before = names(place.path());
        for (step, is_killed) in [(2, false), (0, false), (2, true), (0, true)] {
            let rollback = Rollback::of(&folder).unwrap();
            let aside = folder.set_aside_after(step).unwrap().unwrap();
            assert_eq!(aside, place.path().join("set-aside-2"));
            assert!(aside.join("step-000004").exists());
            fs::write(folder.metrics().with_extension("new"), "new").unwrap();
            fs::rename(folder.metrics().with_extension("new"), folder.metrics()).unwrap();
            match is_killed {
                true => std::mem::forget(rollback),
                false => drop(rollback),
            }
            restore(place.path()).unwrap();
            assert_eq!(names(place.path()), before, "{step} {is_killed}");
            assert_eq!(fs::read_to_string(folder.metrics()).unwrap(), "old");
        }
        assert!(place.path().join("step-000002/trainer").exists());
        assert!(place.path().join("set-aside-1/step-000004").exists());

        let rollback = Rollback::of(&folder).unwrap();
        folder.set_aside_after(2).unwrap();
        rollback.keep();
        assert_eq!(names(&place.path().join("set-aside-2")), ["metrics.jsonl", "step-000004"]);
    }

    /// A start may be killed while it restores files, at any point.
    #[test]
    fn restoring_can_be_repeated() {
        let place = tempfile::tempdir().unwrap();
        let folder = RunFolder::open(place.path()).unwrap();
        folder.write(&folder.config(), "old").unwrap();
        folder.write(&folder.tokenizer(), "old").unwrap();
        std::mem::forget(Rollback::of(&folder).unwrap());
        folder.write(&folder.tokenizer(), "new").unwrap();
        let links = place.path().join(BEFORE);
        replace_by_link(&links.join("config.toml"), &folder.config()).unwrap();
        restore(place.path()).unwrap();
        assert_eq!(names(place.path()), ["config.toml", "lock", "tokenizer.json"]);
        for file in [folder.config(), folder.tokenizer()] {
            assert_eq!(fs::read_to_string(file).unwrap(), "old");
        }
    }
}
