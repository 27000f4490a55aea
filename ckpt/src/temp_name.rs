//! The names of folders that are being written or removed: `.NAME.tmp-UNIQUE` and
//! `.NAME.trash-UNIQUE`.

use std::path::{Path, PathBuf};

use crate::vfs::Vfs;

/// The kind of a hidden folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TempKind {
    /// Being written; in use as long as its lock is held.
    Staging,
    /// Being removed.
    Trash,
}

const UNIQUE_LEN: usize = 16;

impl TempKind {
    fn infix(self) -> &'static str {
        match self {
            TempKind::Staging => ".tmp-",
            TempKind::Trash => ".trash-",
        }
    }

    /// The kind of a name; `None` for names that this program does not create.
    pub(crate) fn of(name: &str) -> Option<TempKind> {
        [TempKind::Staging, TempKind::Trash].into_iter().find(|kind| {
            let Some((hidden, unique)) = name.rsplit_once(kind.infix()) else {
                return false;
            };

            let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            hidden.len() > 1
                && hidden.starts_with('.')
                && unique.len() == UNIQUE_LEN
                && unique.bytes().all(is_digit)
        })
    }
}

/// A new hidden name in the folder of `target`.
pub(crate) fn path(vfs: &dyn Vfs, target: &Path, kind: TempKind) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    target.with_file_name(format!(".{name}{}{:016x}", kind.infix(), vfs.unique()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_names_are_recognized() {
        for kind in [TempKind::Staging, TempKind::Trash] {
            let temp = path(&crate::vfs::RealFs, Path::new("runs/step-000123"), kind);
            assert_eq!(temp.parent(), Some(Path::new("runs")));
            assert_eq!(TempKind::of(temp.file_name().unwrap().to_str().unwrap()), Some(kind));
        }

        for name in [
            "step-000001",
            ".config",
            ".x.tmp-",
            ".x.tmp-123",
            ".x.tmp-0123456789ABCDEF",
            "x.tmp-0123456789abcdef",
            "..tmp-0123456789abcde",
            ".tmp-0123456789abcdef",
        ] {
            assert_eq!(TempKind::of(name), None, "{name}");
        }
    }
}
