//! Is there room for what shall be written, and what folder does it go to.

use std::path::Path;

use crate::vfs::{RealFs, Vfs};

/// Bytes that an unprivileged user may still write to the file system of `path`; `None` where the
/// system does not tell.
pub fn available_bytes(path: impl AsRef<Path>) -> Option<u64> {
    let path = path.as_ref();
    let existing = path.ancestors().find(|folder| folder.exists())?;
    RealFs.space(existing)
}

/// The folder a path lies in; `.` for a plain name.
pub(crate) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}
