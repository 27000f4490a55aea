//! Finding checkpoints: which exist, which is the newest, and why others cannot be used.
//!
//! No file names the latest checkpoint, because such a file could be out of date. The newest
//! checkpoint is the complete folder with the highest step.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use meshgrad_error::{Error, Result, bail};

use crate::Committed;
use crate::disk;
use crate::error::io_error;
use crate::step_name::{step_name, step_of};
use crate::vfs::{RealFs, Vfs};

/// The contents of a folder of checkpoints.
#[derive(Debug, Default)]
pub struct Scan {
    /// The complete checkpoints by ascending step.
    pub complete: Vec<Committed>,
    /// Why other folders with a step in their name cannot be used, by ascending step. Callers
    /// should warn: one of them may be newer than the last complete one.
    pub incomplete: Vec<Error>,
}

/// The checkpoint to resume from.
#[derive(Debug, Default)]
pub struct Newest {
    /// The complete checkpoint of the highest step.
    pub committed: Option<Committed>,
    /// Why each newer one was skipped, the newest first. Callers should warn.
    pub skipped: Vec<Error>,
}

/// Checks all folders in `parent` that are named after a step ([`step_name`](crate::step_name)).
/// Leftovers of interrupted saves and other names are ignored.
///
/// # Errors
/// When `parent` cannot be read.
pub fn scan(parent: impl AsRef<Path>) -> Result<Scan> {
    scan_in(Arc::new(RealFs), parent)
}

/// [`scan`] in any file system.
///
/// # Errors
/// As [`scan`].
pub fn scan_in(vfs: Arc<dyn Vfs>, parent: impl AsRef<Path>) -> Result<Scan> {
    let mut scan = Scan::default();
    for step in steps_in(&*vfs, parent.as_ref())? {
        let path = parent.as_ref().join(step_name(step));
        match Committed::find(&vfs, &path) {
            Ok(Some(committed)) => scan.complete.push(committed),
            // Removed since the folder was listed.
            Ok(None) => {}
            Err(error) => scan.incomplete.push(error),
        }
    }
    Ok(scan)
}

/// The complete checkpoints of steps in `parent`, by ascending step.
///
/// # Errors
/// When `parent` cannot be read.
pub fn discover(parent: impl AsRef<Path>) -> Result<Vec<Committed>> {
    Ok(scan(parent)?.complete)
}

/// The newest complete checkpoint in `parent`, and why newer ones were skipped. Older ones are not
/// checked.
///
/// # Errors
/// When `parent` cannot be read.
pub fn newest(parent: impl AsRef<Path>) -> Result<Newest> {
    newest_in(Arc::new(RealFs), parent)
}

/// [`newest`] in any file system.
///
/// # Errors
/// As [`newest`].
pub fn newest_in(vfs: Arc<dyn Vfs>, parent: impl AsRef<Path>) -> Result<Newest> {
    let mut newest = Newest::default();
    for step in steps_in(&*vfs, parent.as_ref())?.into_iter().rev() {
        let path = parent.as_ref().join(step_name(step));
        match Committed::find(&vfs, &path) {
            Ok(Some(committed)) => {
                newest.committed = Some(committed);
                break;
            }
            // Removed since the folder was listed.
            Ok(None) => {}
            Err(error) => newest.skipped.push(error),
        }
    }
    Ok(newest)
}

fn steps_in(vfs: &dyn Vfs, parent: &Path) -> Result<Vec<u64>> {
    let names = names_in(vfs, parent)?;
    let mut steps: Vec<u64> = names.iter().filter_map(|name| step_of(name)).collect();
    steps.sort_unstable();
    Ok(steps)
}

impl Committed {
    /// Opens a checkpoint with any name.
    ///
    /// # Errors
    /// When the folder does not exist ([`Kind::Missing`](crate::Kind::Missing)), is not a complete
    /// checkpoint ([`Incomplete`](crate::Incomplete)), or cannot be read.
    pub fn open(path: impl AsRef<Path>) -> Result<Committed> {
        Committed::open_in(Arc::new(RealFs), path)
    }

    /// [`Committed::open`] in any file system.
    ///
    /// # Errors
    /// As [`Committed::open`].
    pub fn open_in(vfs: Arc<dyn Vfs>, path: impl AsRef<Path>) -> Result<Committed> {
        let path = path.as_ref();
        match Committed::find(&vfs, path)? {
            Some(committed) => Ok(committed),
            None => {
                let newest = newest_beside(vfs, path).map(|newest| {
                    let newest = newest.display();
                    format!("the newest complete checkpoint in its parent folder is {newest}")
                });
                let none = || "its parent folder has no complete checkpoint".to_owned();
                bail!(Missing, "{} does not exist; {}", path.display(), newest.unwrap_or_else(none))
            }
        }
    }
}

/// A checkpoint that the caller may have meant instead of a missing one.
fn newest_beside(vfs: Arc<dyn Vfs>, path: &Path) -> Option<PathBuf> {
    let newest = newest_in(vfs, disk::folder_of(path)).ok()?.committed?;
    Some(newest.path().to_owned())
}

/// The names in a folder, sorted. Names that are not UTF-8 are left out, because no checkpoint has
/// one.
pub(crate) fn names_in(vfs: &dyn Vfs, folder: &Path) -> Result<Vec<String>> {
    let names = vfs.list(folder).map_err(|error| io_error("read", folder, error))?;
    let names = names.into_iter().filter_map(|name| name.into_string().ok());
    let mut names: Vec<String> = names.collect();
    names.sort_unstable();
    Ok(names)
}
