//! Undoes what a start wrote to the run folder, unless the start succeeds.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{fs, io};

use super::{Result, RunFolder, RunFolderError};

/// Holds links to the files of the run folder while a start replaces them.
const BEFORE: &str = ".before-start";

/// Files that are written in place, and only by a run that has started.
const NOT_REPLACED: [&str; 2] = ["lock", "metrics.jsonl"];

/// Restores the files of a run folder when it is dropped; removes the folder if it did not exist.
#[must_use]
pub(crate) struct Rollback {
    run: PathBuf,
    /// The outermost folder that was created for the run.
    created: Option<PathBuf>,
    /// Names of the files that existed.
    before: Vec<OsString>,
    is_kept: bool,
}

impl Rollback {
    /// The files of `folder` are restored as they are now. They may be replaced by renames, but not
    /// written in place.
    ///
    /// # Errors
    /// [`RunFolderError::Write`].
    pub(crate) fn of(folder: &RunFolder) -> Result<Rollback> {
        let run = folder.path().to_owned();
        let write = |source| RunFolderError::Write {
            path: run.clone(),
            source,
        };
        let mut before = Vec::new();
        if folder.created.is_none() {
            before = link_files(&run).map_err(write)?;
        }
        Ok(Rollback {
            created: folder.created.clone(),
            before,
            run,
            is_kept: false,
        })
    }

    /// Keeps what was written.
    pub(crate) fn keep(mut self) {
        self.is_kept = true;
    }

    fn restore(&self) -> io::Result<()> {
        if let Some(created) = &self.created {
            return fs::remove_dir_all(created);
        }
        for name in files(&self.run)? {
            if !self.before.contains(&name) {
                fs::remove_file(self.run.join(name))?;
            }
        }
        for name in self.before.iter().filter(|name| is_replaced(name)) {
            fs::rename(self.run.join(BEFORE).join(name), self.run.join(name))?;
        }
        Ok(())
    }
}

impl Drop for Rollback {
    fn drop(&mut self) {
        // The error of the start is reported. One of cleaning up would hide it.
        if !self.is_kept {
            let _ = self.restore();
        }
        let _ = fs::remove_dir_all(self.run.join(BEFORE));
    }
}

/// Links the files of `run` into a folder of it. Returns the names of all.
fn link_files(run: &Path) -> io::Result<Vec<OsString>> {
    let links = run.join(BEFORE);
    match fs::remove_dir_all(&links) {
        // One that a killed start left.
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => fs::create_dir(&links)?,
    }
    let names = files(run)?;
    for name in names.iter().filter(|name| is_replaced(name)) {
        let (from, to) = (run.join(name), links.join(name));
        // Some file systems have no links.
        fs::hard_link(&from, &to).or_else(|_| fs::copy(&from, &to).map(drop))?;
    }
    Ok(names)
}

fn is_replaced(name: &OsString) -> bool {
    !NOT_REPLACED.iter().any(|other| name == other)
}

/// The names of the files in a folder, without those of folders.
fn files(folder: &Path) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            names.push(entry.file_name());
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<OsString> {
        let mut names: Vec<OsString> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
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
            rollback
        };
        drop(start());
        assert_eq!(names(place.path()), before);
        let text = |name: &str| fs::read_to_string(place.path().join(name)).unwrap();
        assert_eq!(
            (text("config.toml"), text("tokenizer.json")),
            ("old".into(), "old".into())
        );

        start().keep();
        assert_eq!(names(place.path()), ["config.toml", "lock", "loss.svg"]);
        assert_eq!(text("config.toml"), "new");
    }
}
