//! Removing checkpoints and the leftovers of interrupted saves and removals.
//!
//! ```text
//! sync parent            the checkpoints that are kept are on disk
//! rename  step-000123 -> .step-000123.trash-<unique>
//! sync parent            no power cut brings the name back
//! unlink                 everything below
//! ```
//!
//! Without the first sync, a power cut could keep the removal of an old checkpoint but lose the
//! name of the new one. Without the second, it could keep the name of a checkpoint but lose its
//! files.

use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use meshgrad_error::Result;

use crate::discover::names_in;
use crate::error::io_error;
use crate::leftovers::surplus_in;
use crate::temp_name::{self, TempKind};
use crate::vfs::{self, RealFs, Vfs};
use crate::{Committed, Leftover, LeftoverKind};

/// Removes all complete checkpoints of steps in `parent` except the `keep` newest, and the
/// leftovers of interrupted saves. Incomplete checkpoints are neither counted nor removed. Returns
/// what was removed, the checkpoints first.
///
/// # Errors
/// When a folder cannot be read or removed.
pub fn keep_last(parent: impl AsRef<Path>, keep: NonZeroUsize) -> Result<Vec<Leftover>> {
    keep_last_in(Arc::new(RealFs), parent, keep)
}

/// [`keep_last`] in any file system.
///
/// # Errors
/// As [`keep_last`].
pub fn keep_last_in(
    vfs: Arc<dyn Vfs>,
    parent: impl AsRef<Path>,
    keep: NonZeroUsize,
) -> Result<Vec<Leftover>> {
    let parent = parent.as_ref();
    let surplus = surplus_in(&vfs, parent, keep)?;

    if !surplus.is_empty() {
        sync(&*vfs, parent)?;
    }
    let mut checkpoint_of = BTreeMap::new();
    for committed in &surplus {
        if let Some(trash) = move_to_trash(&*vfs, committed)? {
            checkpoint_of.insert(trash, committed.path());
        }
    }

    let mut removed = sweep_in(vfs, parent)?;
    for item in &mut removed {
        if let Some(path) = checkpoint_of.get(&item.path) {
            item.path = (*path).to_owned();
            item.kind = LeftoverKind::Checkpoint;
        }
    }
    removed.sort_by_key(|item| item.kind != LeftoverKind::Checkpoint);
    Ok(removed)
}

/// Renames a checkpoint for removal and returns its new path; `None` if another process removed it
/// first.
fn move_to_trash(vfs: &dyn Vfs, committed: &Committed) -> Result<Option<PathBuf>> {
    let path = committed.path();
    let trash = temp_name::path(vfs, path, TempKind::Trash);
    match vfs.rename_no_replace(path, &trash) {
        Ok(()) => Ok(Some(trash)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_error("remove", path, error)),
    }
}

/// Removes the leftovers of interrupted saves and removals in `parent`. A running save, in this
/// process or another, is left alone. Returns what was removed, by name.
///
/// # Errors
/// When a folder cannot be read or removed.
pub fn sweep(parent: impl AsRef<Path>) -> Result<Vec<Leftover>> {
    sweep_in(Arc::new(RealFs), parent)
}

/// [`sweep`] in any file system.
///
/// # Errors
/// As [`sweep`].
pub fn sweep_in(vfs: Arc<dyn Vfs>, parent: impl AsRef<Path>) -> Result<Vec<Leftover>> {
    let (vfs, parent) = (&*vfs, parent.as_ref());
    let names = names_in(vfs, parent)?;

    // The process that renamed trash may have been killed before its sync.
    if names.iter().any(|name| TempKind::of(name) == Some(TempKind::Trash)) {
        sync(vfs, parent)?;
    }
    let mut removed = Vec::new();
    for name in &names {
        let path = parent.join(name);
        match TempKind::of(name) {
            Some(TempKind::Trash) => {
                removed.push(remove(vfs, path, LeftoverKind::InterruptedRemoval)?);
            }
            Some(TempKind::Staging) => removed.extend(remove_if_dead(vfs, path)?),
            None => {}
        }
    }
    Ok(removed)
}

/// Removes a staging folder whose process has exited: its lock is free.
fn remove_if_dead(vfs: &dyn Vfs, path: PathBuf) -> Result<Option<Leftover>> {
    // The lock is held during the removal. A process that has just created the folder then creates
    // another one.
    match vfs.lock(&path) {
        Ok(_lock) => remove(vfs, path, LeftoverKind::InterruptedSave).map(Some),
        Err(_) => Ok(None),
    }
}

fn remove(vfs: &dyn Vfs, path: PathBuf, kind: LeftoverKind) -> Result<Leftover> {
    match vfs::remove_all(vfs, &path) {
        Ok(bytes) => Ok(Leftover { path, kind, bytes }),
        Err(error) => Err(io_error("remove", &path, error)),
    }
}

fn sync(vfs: &dyn Vfs, folder: &Path) -> Result<()> {
    vfs.sync_dir(folder).map_err(|error| io_error("sync", folder, error))
}
