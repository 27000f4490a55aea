//! Opening files below a folder without following links.
//!
//! The call that opens a file rejects links. So all checks apply to the open file, not to a path
//! that may later refer to another one.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat, readlinkat};
use rustix::io::Errno;

/// Opening a pipe must not block, and a terminal must not become the controlling terminal.
pub(crate) const READ: OFlags =
    OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

pub(crate) const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::DIRECTORY);

/// Opens a regular file by its path below a folder, with components separated by `/`; none may be a
/// link.
pub(crate) fn open_below(folder: &Path, below: &str) -> io::Result<File> {
    let folder = openat(CWD, folder, FOLDER, Mode::empty())?;
    let file = match open_in(&folder, below) {
        Err(Errno::LOOP) => return Err(io::Error::other("it is a link, or below one")),
        opened => File::from(opened?),
    };
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

/// Opens a path without `..` components in a folder; a link gives `Errno::LOOP`.
pub(crate) fn open_in(folder: &OwnedFd, name: &str) -> rustix::io::Result<OwnedFd> {
    #[cfg(target_os = "linux")]
    match open_resolved(folder, name) {
        // Kernels before 5.6, and sandboxes that do not allow the call.
        Err(Errno::NOSYS | Errno::PERM) => {}
        opened => return opened,
    }
    open_plain(folder, name)
}

/// Lets the kernel resolve the path. It rejects links and any path that would leave the folder.
#[cfg(target_os = "linux")]
fn open_resolved(folder: &OwnedFd, name: &str) -> rustix::io::Result<OwnedFd> {
    use rustix::fs::{ResolveFlags, openat2};

    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    openat2(folder, name, READ, Mode::empty(), beneath)
}

/// Opens one component after the other. For paths without `..` this is equally strict.
fn open_plain(folder: &OwnedFd, path: &str) -> rustix::io::Result<OwnedFd> {
    let Some((first, rest)) = path.split_once('/') else {
        return openat(folder, path, READ | OFlags::NOFOLLOW, Mode::empty());
    };
    match openat(folder, first, FOLDER | OFlags::NOFOLLOW, Mode::empty()) {
        Ok(inner) => open_plain(&inner, rest),
        // The error does not distinguish a link from a file.
        Err(Errno::NOTDIR) if readlinkat(folder, first, Vec::new()).is_ok() => Err(Errno::LOOP),
        Err(errno) => Err(errno),
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn open_folder(path: &Path) -> OwnedFd {
        openat(CWD, path, FOLDER, Mode::empty()).unwrap()
    }

    /// Where the system lacks `openat2`, the fallback gives the same results.
    #[test]
    fn both_open_methods_agree() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("folder");
        fs::create_dir_all(path.join("below")).unwrap();
        fs::write(path.join("file"), b"content").unwrap();
        symlink("file", path.join("link")).unwrap();
        symlink("../secret", path.join("out")).unwrap();
        symlink("none", path.join("dangling")).unwrap();
        symlink("loop", path.join("loop")).unwrap();
        symlink("below", path.join("link-to-folder")).unwrap();
        fs::write(path.join("below/inner"), b"content").unwrap();
        symlink("../file", path.join("below/link")).unwrap();
        let folder = open_folder(&path);

        let cases = [
            ("file", None),
            ("below", None),
            ("none", Some(Errno::NOENT)),
            ("link", Some(Errno::LOOP)),
            ("out", Some(Errno::LOOP)),
            ("dangling", Some(Errno::LOOP)),
            ("loop", Some(Errno::LOOP)),
            ("link-to-folder", Some(Errno::LOOP)),
            ("below/inner", None),
            ("below/none", Some(Errno::NOENT)),
            ("below/link", Some(Errno::LOOP)),
            ("none/inner", Some(Errno::NOENT)),
            ("file/inner", Some(Errno::NOTDIR)),
            ("link-to-folder/inner", Some(Errno::LOOP)),
        ];
        for (name, expected) in cases {
            assert_eq!(open_plain(&folder, name).err(), expected, "{name}");
            assert_eq!(open_in(&folder, name).err(), expected, "{name}");
        }
    }

    #[test]
    fn only_regular_files_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        fs::create_dir(path.join("below")).unwrap();
        fs::write(path.join("below/file"), b"content").unwrap();
        symlink("below", path.join("out")).unwrap();
        symlink("file", path.join("below/link")).unwrap();
        let open = |below| open_below(path, below).map_err(|error| error.to_string());

        assert!(open("below/file").is_ok());
        assert_eq!(open("out/file").unwrap_err(), "it is a link, or below one");
        assert_eq!(open("below/link").unwrap_err(), "it is a link, or below one");
        assert_eq!(open("below").unwrap_err(), "it is not a regular file");
        let kind = open_below(path, "below/none").unwrap_err().kind();
        assert_eq!(kind, io::ErrorKind::NotFound);
    }

    /// If a name that leaves the folder ever gets this far, the kernel rejects it.
    #[test]
    #[cfg(target_os = "linux")]
    fn the_kernel_keeps_paths_in_the_folder() {
        let parent = tempfile::tempdir().unwrap();
        fs::write(parent.path().join("secret"), b"x").unwrap();
        let path = parent.path().join("folder");
        fs::create_dir(&path).unwrap();
        let folder = open_folder(&path);

        for name in ["../secret", "..", "/etc/passwd"] {
            match open_resolved(&folder, name) {
                Err(Errno::XDEV | Errno::NOSYS | Errno::PERM) => {}
                other => panic!("{name}: {other:?}"),
            }
        }
    }
}
