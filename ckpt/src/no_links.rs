//! Opening files below a folder without following links.
//!
//! A name that is a link is refused by the call that opens it, so that what is checked is the open
//! file and not a path that may mean another file a moment later.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat, readlinkat};
use rustix::io::Errno;

/// A pipe must not block, a terminal must not become ours.
pub(crate) const READ: OFlags = OFlags::RDONLY
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY);

pub(crate) const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::CLOEXEC)
    .union(OFlags::DIRECTORY);

/// Opens a regular file whose path below a folder has its parts joined by `/`; none of them may be a
/// link.
pub(crate) fn open_below(folder: &Path, below: &str) -> io::Result<File> {
    let folder = openat(CWD, folder, FOLDER, Mode::empty())?;
    let file = match open_in(&folder, below) {
        Err(Errno::LOOP) => return Err(io::Error::other("it is a link, or in one")),
        opened => File::from(opened?),
    };
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

/// Opens a path of parts that are no `..` in a folder; a link is `Errno::LOOP`.
pub(crate) fn open_in(folder: &OwnedFd, name: &str) -> rustix::io::Result<OwnedFd> {
    #[cfg(target_os = "linux")]
    match open_resolved(folder, name) {
        // Kernels before 5.6, and sandboxes that do not know the call.
        Err(Errno::NOSYS | Errno::PERM) => {}
        opened => return opened,
    }
    open_plain(folder, name)
}

/// The kernel itself refuses whatever would leave the folder.
#[cfg(target_os = "linux")]
fn open_resolved(folder: &OwnedFd, name: &str) -> rustix::io::Result<OwnedFd> {
    use rustix::fs::{ResolveFlags, openat2};

    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    openat2(folder, name, READ, Mode::empty(), beneath)
}

/// As strict for parts that are no `..`: one after the other.
fn open_plain(folder: &OwnedFd, path: &str) -> rustix::io::Result<OwnedFd> {
    let Some((first, rest)) = path.split_once('/') else {
        return openat(folder, path, READ | OFlags::NOFOLLOW, Mode::empty());
    };
    match openat(folder, first, FOLDER | OFlags::NOFOLLOW, Mode::empty()) {
        Ok(inner) => open_plain(&inner, rest),
        // The system does not say whether it is a link or a file.
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

    /// Where the system lacks the stricter call, the other gives the same answers.
    #[test]
    fn both_ways_to_open_agree() {
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
    fn below_a_folder_are_regular_files_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        fs::create_dir(path.join("below")).unwrap();
        fs::write(path.join("below/file"), b"content").unwrap();
        symlink("below", path.join("out")).unwrap();
        symlink("file", path.join("below/link")).unwrap();
        let open = |below| open_below(path, below).map_err(|error| error.to_string());

        assert!(open("below/file").is_ok());
        assert_eq!(open("out/file").unwrap_err(), "it is a link, or in one");
        assert_eq!(open("below/link").unwrap_err(), "it is a link, or in one");
        assert_eq!(open("below").unwrap_err(), "it is not a regular file");
        let kind = open_below(path, "below/none").unwrap_err().kind();
        assert_eq!(kind, io::ErrorKind::NotFound);
    }

    /// Should a name that leads out ever come so far, the kernel keeps it in.
    #[test]
    #[cfg(target_os = "linux")]
    fn the_kernel_itself_stays_beneath() {
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
