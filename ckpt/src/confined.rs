//! Opening files of strangers: once, without waiting, and never outside of their folder.
//!
//! What is checked is the open file, not a path that may mean another file a moment later. Names
//! are looked up in a folder that is held open, and a name that is a link is refused by the call
//! that opens it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat, readlinkat};
use rustix::io::Errno;

use crate::names::check_file_name;
use crate::{Error, Result};

/// A pipe must not block, a terminal must not become ours.
const READ: OFlags = OFlags::RDONLY
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY);

const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::CLOEXEC)
    .union(OFlags::DIRECTORY);

/// Opens a regular file that the user named: links are followed.
pub(crate) fn open_file(path: &Path) -> Result<File> {
    regular(path, openat(CWD, path, READ, Mode::empty()))
}

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

/// A folder whose files are opened by name.
#[derive(Debug)]
pub(crate) struct ConfinedFolder {
    path: PathBuf,
    folder: OwnedFd,
    blobs: Option<Blobs>,
}

/// Where the links of a snapshot in the Hugging Face cache lead: `<repository>/blobs`.
#[derive(Debug)]
struct Blobs {
    path: PathBuf,
    folder: OwnedFd,
}

impl ConfinedFolder {
    pub(crate) fn new(path: &Path) -> Result<ConfinedFolder> {
        let error = |errno: Errno| Error::io("open", path, errno.into());
        let folder = openat(CWD, path, FOLDER, Mode::empty()).map_err(error)?;

        let real = fs::canonicalize(path).map_err(|error| Error::io("open", path, error))?;
        let blobs = Blobs::of_snapshot(&real, &folder).map_err(error)?;

        Ok(ConfinedFolder {
            path: path.to_owned(),
            folder,
            blobs,
        })
    }

    /// Where a file of this plain name is, or would be.
    pub(crate) fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Opens the regular file of this plain name; `None` if there is none.
    pub(crate) fn open(&self, name: &str) -> Result<Option<File>> {
        let path = self.path_of(name);
        match open_in(&self.folder, name) {
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::LOOP) => self.follow(name),
            opened => regular(&path, opened).map(Some),
        }
    }

    /// Opens the blob that a link of a snapshot leads to.
    fn follow(&self, name: &str) -> Result<Option<File>> {
        let path = self.path_of(name);
        let target = readlinkat(&self.folder, name, Vec::new())
            .map_err(|errno| Error::io("follow", &path, errno.into()))?;
        let target = Path::new(OsStr::from_bytes(target.as_bytes()));

        let refused = || Error::Link {
            path: path.clone(),
            target: target.to_owned(),
        };

        // The link is read once: what is opened is what was checked.
        let blobs = self.blobs.as_ref().ok_or_else(refused)?;
        let blob = blobs.name_of(target).ok_or_else(refused)?;
        match open_in(&blobs.folder, blob) {
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::LOOP) => Err(refused()),
            opened => regular(&path, opened).map(Some),
        }
    }
}

impl Blobs {
    /// The blobs beside `<repository>/snapshots/<revision>`, whose path without links is `real`.
    fn of_snapshot(real: &Path, folder: &OwnedFd) -> rustix::io::Result<Option<Blobs>> {
        let snapshots = real.parent().filter(|parent| parent.ends_with("snapshots"));
        let Some(repository) = snapshots.and_then(Path::parent) else {
            return Ok(None);
        };

        let parent = openat(folder, "../..", FOLDER, Mode::empty())?;
        match openat(&parent, "blobs", FOLDER | OFlags::NOFOLLOW, Mode::empty()) {
            Ok(folder) => Ok(Some(Blobs {
                path: repository.join("blobs"),
                folder,
            })),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// The name of the blob that a link's text leads to.
    fn name_of<'path>(&self, target: &'path Path) -> Option<&'path str> {
        let parent = target.parent()?;
        let name = target.file_name()?.to_str()?;

        let is_here = parent == Path::new("../../blobs") || parent == self.path;
        (is_here && check_file_name(name).is_ok()).then_some(name)
    }
}

/// Opens a path of parts that are no `..` in a folder; a link is `Errno::LOOP`.
fn open_in(folder: &OwnedFd, name: &str) -> rustix::io::Result<OwnedFd> {
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

/// Refuses folders, pipes, sockets and devices.
fn regular(path: &Path, opened: rustix::io::Result<OwnedFd>) -> Result<File> {
    let not_a_file = || Error::NotAFile {
        path: path.to_owned(),
    };
    let error = |error: io::Error| Error::io("open", path, error);

    let file = match opened {
        Ok(file) => File::from(file),
        // A socket, or a device without a driver.
        Err(Errno::NXIO | Errno::NODEV) => return Err(not_a_file()),
        Err(errno) => return Err(error(errno.into())),
    };
    if file.metadata().map_err(error)?.is_file() {
        Ok(file)
    } else {
        Err(not_a_file())
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::io::Read;
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

    /// The folder that was opened is meant, whatever has its name later.
    #[test]
    fn a_folder_exchanged_does_not_matter() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("folder");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("file"), b"first").unwrap();
        let beneath = ConfinedFolder::new(&path).unwrap();

        fs::rename(&path, parent.path().join("moved")).unwrap();
        fs::create_dir(&path).unwrap();
        fs::write(path.join("file"), b"second").unwrap();

        let mut content = String::new();
        let mut file = beneath.open("file").unwrap().unwrap();
        file.read_to_string(&mut content).unwrap();
        assert_eq!(content, "first");
    }
}
