//! Removing checkpoints, and what interrupted saves and removals left.
//!
//! ```text
//! sync parent            what is counted as kept is on disk, whoever published it
//! rename  step-000123 -> .step-000123.trash-<unique>
//! sync parent            no power cut brings the name back
//! unlink                 all below
//! ```
//!
//! Without the first sync, the removal of an old checkpoint could reach the disk before the name of
//! the new one; without the second, the loss of its files before the loss of its name.

use std::io;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use crate::discover::{names_in, survey_in};
use crate::hidden::{self, Kind};
use crate::vfs::{self, RealFs, Vfs};
use crate::{Committed, Error, Result};

/// Removes all complete checkpoints of steps in `parent` but the `keep` newest, and what
/// interrupted saves left. Incomplete ones do not count and stay.
///
/// # Errors
/// [`Error::Io`].
pub fn keep_last(parent: impl AsRef<Path>, keep: NonZeroUsize) -> Result<()> {
    keep_last_in(Arc::new(RealFs), parent, keep)
}

/// [`keep_last`] in any file system.
///
/// # Errors
/// As [`keep_last`].
pub fn keep_last_in(vfs: Arc<dyn Vfs>, parent: impl AsRef<Path>, keep: NonZeroUsize) -> Result<()> {
    let parent = parent.as_ref();
    let complete = survey_in(Arc::clone(&vfs), parent)?.complete;
    let surplus = complete.len().saturating_sub(keep.get());

    if surplus > 0 {
        sync(&*vfs, parent)?;
    }
    for committed in &complete[..surplus] {
        move_to_trash(&*vfs, committed)?;
    }
    sweep_in(vfs, parent)
}

fn move_to_trash(vfs: &dyn Vfs, committed: &Committed) -> Result<()> {
    let path = committed.path();
    let trash = hidden::path(vfs, path, Kind::Trash);
    match vfs.rename_no_replace(path, &trash) {
        // Somebody else was faster.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(|error| Error::io("remove", path, error)),
    }
}

/// Removes what interrupted saves and removals left in `parent`. A save that is still running, in
/// this process or another, is left alone.
///
/// # Errors
/// [`Error::Io`].
pub fn sweep(parent: impl AsRef<Path>) -> Result<()> {
    sweep_in(Arc::new(RealFs), parent)
}

/// [`sweep`] in any file system.
///
/// # Errors
/// As [`sweep`].
pub fn sweep_in(vfs: Arc<dyn Vfs>, parent: impl AsRef<Path>) -> Result<()> {
    let (vfs, parent) = (&*vfs, parent.as_ref());
    let names = names_in(vfs, parent)?;
    let is = |name: &String, kind| Kind::of(name) == Some(kind);

    // Whoever renamed them may have been killed before its sync.
    if names.iter().any(|name| is(name, Kind::Trash)) {
        sync(vfs, parent)?;
    }
    for name in &names {
        let path = parent.join(name);
        if is(name, Kind::Trash) {
            remove(vfs, &path)?;
        } else if is(name, Kind::Staging) {
            remove_if_dead(vfs, &path)?;
        }
    }
    Ok(())
}

/// Removes a staging folder whose process is gone: its lock can be taken.
fn remove_if_dead(vfs: &dyn Vfs, path: &Path) -> Result<()> {
    // Held while we remove, so that its maker, if it has only just made it, makes another.
    match vfs.lock(path) {
        Ok(_lock) => remove(vfs, path),
        Err(_) => Ok(()),
    }
}

fn remove(vfs: &dyn Vfs, path: &Path) -> Result<()> {
    vfs::remove_all(vfs, path).map_err(|error| Error::io("remove", path, error))
}

fn sync(vfs: &dyn Vfs, folder: &Path) -> Result<()> {
    vfs.sync_dir(folder)
        .map_err(|error| Error::io("sync", folder, error))
}
