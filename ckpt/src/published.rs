//! Finding, checking and removing published checkpoints.

use std::fs::{self, File};
use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use crate::disk;
use crate::hidden::{self, Kind};
use crate::manifest::Manifest;
use crate::{Error, Result};

/// The name of the checkpoint of a step: `step-000123`.
pub fn step_name(step: u64) -> String {
    format!("step-{step:06}")
}

/// The step of a name that [`step_name`] makes.
pub(crate) fn step_of(name: &str) -> Option<u64> {
    let step = name.strip_prefix("step-")?.parse().ok()?;
    (step_name(step) == name).then_some(step)
}

/// A complete checkpoint: sealed, every file there with its size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    path: PathBuf,
    manifest: Manifest,
}

impl Published {
    /// Opens a checkpoint of any name.
    ///
    /// # Errors
    /// [`Error::Incomplete`] with what is wrong; [`Error::Io`].
    pub fn open(path: impl AsRef<Path>) -> Result<Published> {
        let path = path.as_ref().to_owned();
        let manifest = Manifest::open(&path)?;
        Ok(Published { path, manifest })
    }

    /// Where the folder is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The step that the folder is named for, if it is named so.
    pub fn step(&self) -> Option<u64> {
        step_of(self.path.file_name()?.to_str()?)
    }

    /// The files with their sizes in bytes, by path below the folder; the manifest is not among
    /// them.
    pub fn files(&self) -> impl ExactSizeIterator<Item = (&str, u64)> {
        self.manifest
            .files
            .iter()
            .map(|(path, content)| (path.as_str(), content.bytes))
    }

    /// Reads every file and compares its digest: finds any damage of the disk.
    ///
    /// # Errors
    /// [`Error::Incomplete`] names the first damaged file; [`Error::Io`].
    pub fn verify(&self) -> Result<()> {
        self.manifest.verify(&self.path)
    }
}

/// What there is in a folder of checkpoints.
#[derive(Debug, Default)]
pub struct Survey {
    /// The complete checkpoints by ascending step.
    pub complete: Vec<Published>,
    /// Why the other folders that are named for a step cannot be used, by ascending step. Worth a
    /// warning: one of them may be newer than the last complete one.
    pub incomplete: Vec<Error>,
}

/// Looks at all folders in `parent` that are named for a step. Leftovers of interrupted saves and
/// other names are passed over.
///
/// # Errors
/// [`Error::Io`] when `parent` cannot be read.
pub fn survey(parent: impl AsRef<Path>) -> Result<Survey> {
    let mut steps: Vec<u64> = names_in(parent.as_ref())?
        .iter()
        .filter_map(|n| step_of(n))
        .collect();
    steps.sort_unstable();

    let mut survey = Survey::default();
    for step in steps {
        match Published::open(parent.as_ref().join(step_name(step))) {
            Ok(published) => survey.complete.push(published),
            Err(error) => survey.incomplete.push(error),
        }
    }
    Ok(survey)
}

/// The complete checkpoints of steps in `parent`, by ascending step.
///
/// # Errors
/// [`Error::Io`] when `parent` cannot be read.
pub fn discover(parent: impl AsRef<Path>) -> Result<Vec<Published>> {
    Ok(survey(parent)?.complete)
}

/// Removes all complete checkpoints of steps in `parent` but the `keep` newest, and what
/// interrupted saves left. Incomplete ones do not count and stay.
///
/// Each is renamed first, so that a kill leaves no half checkpoint under its name.
///
/// # Errors
/// [`Error::Io`].
pub fn keep_last(parent: impl AsRef<Path>, keep: NonZeroUsize) -> Result<()> {
    let parent = parent.as_ref();
    let complete = discover(parent)?;

    let surplus = complete.len().saturating_sub(keep.get());
    for published in &complete[..surplus] {
        let trash = hidden::path(&published.path, Kind::Trash);
        match fs::rename(&published.path, &trash) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other.map_err(|error| Error::io("remove", &published.path, error))?,
        }
    }

    if surplus > 0 {
        disk::sync_folder(parent)?;
    }
    sweep(parent)
}

/// Removes what interrupted saves and removals left in `parent`. A save that is still running, in
/// this process or another, is left alone.
///
/// # Errors
/// [`Error::Io`].
pub fn sweep(parent: impl AsRef<Path>) -> Result<()> {
    let parent = parent.as_ref();

    for name in names_in(parent)? {
        let path = parent.join(&name);
        match Kind::of(&name) {
            Some(Kind::Trash) => remove(&path)?,
            Some(Kind::Staging) => remove_if_dead(&path)?,
            None => {}
        }
    }
    Ok(())
}

/// Removes a staging folder whose process is gone: its lock can be taken.
fn remove_if_dead(path: &Path) -> Result<()> {
    let Ok(handle) = File::open(path) else {
        return Ok(());
    };

    // Held while we remove, so that its maker, if it has only just made it, makes another.
    match handle.try_lock() {
        Ok(()) => remove(path),
        Err(_) => Ok(()),
    }
}

fn remove(path: &Path) -> Result<()> {
    let is_folder = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir());
    let removed = if is_folder {
        fs::remove_dir_all(path)
    } else {
        fs::remove_file(path)
    };

    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(|error| Error::io("remove", path, error)),
    }
}

fn names_in(folder: &Path) -> Result<Vec<String>> {
    let read_error = |error| Error::io("read", folder, error);

    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(read_error)? {
        // No name of ours is other than UTF-8.
        if let Ok(name) = entry.map_err(read_error)?.file_name().into_string() {
            names.push(name);
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_steps_are_one_to_one() {
        for step in [0, 7, 999_999, 1_000_000, u64::MAX] {
            assert_eq!(step_of(&step_name(step)), Some(step));
        }
        for name in [
            "step-7",
            "step-0000007",
            "step-",
            "step-+00007",
            "step-00000x",
            "x",
            ".step-000007",
        ] {
            assert_eq!(step_of(name), None, "{name}");
        }
    }
}
