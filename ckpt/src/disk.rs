//! Free space, and the folder of a path.

use std::path::Path;

use crate::vfs::{RealFs, Vfs};

/// Bytes that an unprivileged user may still write to the file system of `path`; `None` if the
/// system does not report it.
pub fn available_bytes(path: impl AsRef<Path>) -> Option<u64> {
    let path = path.as_ref();
    let existing = path.ancestors().find(|folder| folder.exists())?;
    RealFs.space(existing)
}

/// The folder that contains a path; `.` for a plain name.
pub(crate) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}
