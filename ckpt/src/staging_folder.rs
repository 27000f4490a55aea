//! Checking a checkpoint's name, and creating the hidden folder to write it in.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use meshgrad_error::{Kind, Result};

use crate::Committed;
use crate::error::{already_exists, io_error, write_error};
use crate::integrity::Incomplete;
use crate::step_name::step_of;
use crate::temp_name::{self, TempKind};
use crate::vfs::{FileKind, Lock, Vfs};

/// Whether a checkpoint may use a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NameState {
    Free,
    /// An incomplete checkpoint of a step has the name and will be replaced.
    Incomplete,
}

/// A name may be used if nothing has it, or only an incomplete checkpoint of a step. Anything else
/// may be valuable, so it is an error.
pub(crate) fn name_state(vfs: &Arc<dyn Vfs>, target: &Path) -> Result<NameState> {
    let kind = match vfs.metadata(target) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(NameState::Free),
        Err(error) => return Err(io_error("open", target, error)),
        Ok(metadata) => metadata.kind,
    };

    let step = target.file_name().and_then(|name| step_of(name.to_str()?));
    if kind == FileKind::Folder && step.is_some() {
        match Committed::find(vfs, target) {
            Ok(None) => return Ok(NameState::Free),
            Ok(Some(_)) => {}
            Err(error) if error.details::<Incomplete>().is_none() => return Err(error),
            // A newer program may find it complete.
            Err(error) if error.kind() == Kind::Unsupported => {}
            Err(_) => return Ok(NameState::Incomplete),
        }
    }
    Err(already_exists(target))
}

/// Creates the hidden folder and locks it.
pub(crate) fn create_locked(vfs: &dyn Vfs, target: &Path) -> Result<(PathBuf, Option<Lock>)> {
    loop {
        let folder = temp_name::path(vfs, target, TempKind::Staging);
        vfs.make_dir(&folder).map_err(|error| write_error(&folder, 0, error))?;

        match vfs.lock(&folder) {
            Ok(lock) => return Ok((folder, Some(lock))),
            Err(error) => match error.kind() {
                // `sweep` ran between the two calls and locked or removed the folder: try again.
                io::ErrorKind::WouldBlock | io::ErrorKind::NotFound => {}
                // This file system has no locks, so `sweep` cannot lock the folder either.
                io::ErrorKind::Unsupported => return Ok((folder, None)),
                _ => {
                    let _ = vfs.remove_dir(&folder);
                    return Err(io_error("lock", &folder, error));
                }
            },
        }
    }
}
