//! Listing the folders of a run that are not checkpoints to keep, without removing any.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use meshgrad_error::Result;

use crate::Committed;
use crate::discover::{names_in, scan_in};
use crate::error::io_error;
use crate::temp_name::TempKind;
use crate::vfs::{self, RealFs, Vfs};

/// A folder of a run that is not a checkpoint to keep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftover {
    /// Its path. The folder may have been removed since.
    pub path: PathBuf,
    /// Its kind.
    pub kind: LeftoverKind,
    /// Bytes of all its files.
    pub bytes: u64,
}

/// The kind of a leftover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeftoverKind {
    /// A complete checkpoint that is older than those to keep.
    Checkpoint,
    /// A save whose process has exited.
    InterruptedSave,
    /// A removal that is running, or whose process has exited.
    InterruptedRemoval,
    /// A running save, in this process or another. It is not removed.
    RunningSave,
}

/// The leftovers of saves and removals in `parent`, by name: all that [`sweep`](crate::sweep) would
/// remove, and running saves. Names that this crate does not create are ignored.
///
/// # Errors
/// When a folder cannot be read.
pub fn leftovers(parent: impl AsRef<Path>) -> Result<Vec<Leftover>> {
    let (vfs, parent) = (&RealFs, parent.as_ref());
    let mut found = Vec::new();
    for name in names_in(vfs, parent)? {
        let path = parent.join(&name);
        let kind = match TempKind::of(&name) {
            None => continue,
            Some(TempKind::Trash) => LeftoverKind::InterruptedRemoval,
            Some(TempKind::Staging) if vfs.lock(&path).is_ok() => LeftoverKind::InterruptedSave,
            Some(TempKind::Staging) => LeftoverKind::RunningSave,
        };
        found.push(Leftover::at(vfs, path, kind)?);
    }
    Ok(found)
}

/// The complete checkpoints that [`keep_last`](crate::keep_last) would remove from `parent`, by
/// ascending step.
///
/// # Errors
/// When a folder cannot be read.
pub fn surplus(parent: impl AsRef<Path>, keep: NonZeroUsize) -> Result<Vec<Leftover>> {
    let vfs: Arc<dyn Vfs> = Arc::new(RealFs);
    let surplus = surplus_in(&vfs, parent.as_ref(), keep)?;
    let paths = surplus.iter().map(|it| it.path().to_owned());
    paths.map(|path| Leftover::at(&*vfs, path, LeftoverKind::Checkpoint)).collect()
}

/// The complete checkpoints except the `keep` newest.
pub(crate) fn surplus_in(
    vfs: &Arc<dyn Vfs>,
    parent: &Path,
    keep: NonZeroUsize,
) -> Result<Vec<Committed>> {
    let mut complete = scan_in(Arc::clone(vfs), parent)?.complete;
    complete.truncate(complete.len().saturating_sub(keep.get()));
    Ok(complete)
}

impl Leftover {
    fn at(vfs: &dyn Vfs, path: PathBuf, kind: LeftoverKind) -> Result<Leftover> {
        let bytes = vfs::bytes_below(vfs, &path).map_err(|error| io_error("read", &path, error))?;
        Ok(Leftover { path, kind, bytes })
    }
}
