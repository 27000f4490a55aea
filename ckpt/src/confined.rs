//! Opening untrusted files: each is opened once, without blocking, and never outside its folder.
//!
//! All checks apply to the open file, not to a path that may later refer to another file. Names are
//! resolved against a folder that is held open, and the call that opens a file rejects links.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use meshgrad_error::{Result, error};
use rustix::fs::{CWD, Mode, OFlags, openat, readlinkat};
use rustix::io::Errno;

use crate::error::{io_error, not_a_file};
use crate::names::check_file_name;
use crate::no_links::{FOLDER, READ, open_in};

/// Opens a regular file that the user named; links are followed.
pub(crate) fn open_file(path: &Path) -> Result<File> {
    regular(path, openat(CWD, path, READ, Mode::empty()))
}

/// A folder whose files are opened by name.
#[derive(Debug)]
pub(crate) struct ConfinedFolder {
    path: PathBuf,
    folder: OwnedFd,
    blobs: Option<Blobs>,
    links: Links,
}

/// Whether files of a folder may be links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Links {
    /// Links are errors, except from a snapshot of the Hugging Face cache into its blobs: in a
    /// folder of unknown origin, a link may lead to any file of this machine.
    #[default]
    Refuse,
    /// Links are followed, wherever they lead.
    Follow,
}

/// The target of the links in a Hugging Face cache snapshot: `<repository>/blobs`.
#[derive(Debug)]
struct Blobs {
    path: PathBuf,
    folder: OwnedFd,
}

impl ConfinedFolder {
    pub(crate) fn new(path: &Path, links: Links) -> Result<ConfinedFolder> {
        let failed = |errno: Errno| io_error("open", path, errno.into());
        let folder = openat(CWD, path, FOLDER, Mode::empty()).map_err(failed)?;

        let real = fs::canonicalize(path).map_err(|error| io_error("open", path, error))?;
        let blobs = Blobs::of_snapshot(&real, &folder).map_err(failed)?;

        Ok(ConfinedFolder { path: path.to_owned(), folder, blobs, links })
    }

    /// The path of the file with this plain name, whether or not it exists.
    pub(crate) fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Opens the regular file with this plain name; `None` if it does not exist.
    pub(crate) fn open(&self, name: &str) -> Result<Option<File>> {
        let path = self.path_of(name);
        match open_in(&self.folder, name) {
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::LOOP) if self.links == Links::Follow => {
                match openat(&self.folder, name, READ, Mode::empty()) {
                    Err(Errno::NOENT) => Ok(None),
                    opened => regular(&path, opened).map(Some),
                }
            }
            Err(Errno::LOOP) => self.follow(name),
            opened => regular(&path, opened).map(Some),
        }
    }

    /// Opens the blob that a snapshot's link points to.
    fn follow(&self, name: &str) -> Result<Option<File>> {
        let path = self.path_of(name);
        let target = readlinkat(&self.folder, name, Vec::new())
            .map_err(|errno| io_error("follow", &path, errno.into()))?;
        let target = Path::new(OsStr::from_bytes(target.as_bytes()));

        let rejected = || {
            error!(
                System,
                "{} is a link to {target:?}, and links are followed only within the Hugging Face \
                 cache; replace it with a copy of the file, or pass --follow-links to `meshgrad \
                 ckpt`",
                path.display()
            )
        };

        // The link is read once, so the file that is opened is the file that was checked.
        let blobs = self.blobs.as_ref().ok_or_else(rejected)?;
        let blob = blobs.name_of(target).ok_or_else(rejected)?;
        match open_in(&blobs.folder, blob) {
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::LOOP) => Err(rejected()),
            opened => regular(&path, opened).map(Some),
        }
    }
}

impl Blobs {
    /// The blobs folder of `<repository>/snapshots/<revision>`, whose path without links is `real`.
    fn of_snapshot(real: &Path, folder: &OwnedFd) -> rustix::io::Result<Option<Blobs>> {
        let snapshots = real.parent().filter(|parent| parent.ends_with("snapshots"));
        let Some(repository) = snapshots.and_then(Path::parent) else {
            return Ok(None);
        };

        let parent = openat(folder, "../..", FOLDER, Mode::empty())?;
        match openat(&parent, "blobs", FOLDER | OFlags::NOFOLLOW, Mode::empty()) {
            Ok(folder) => Ok(Some(Blobs { path: repository.join("blobs"), folder })),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// The name of the blob that a link's text points to.
    fn name_of<'path>(&self, target: &'path Path) -> Option<&'path str> {
        let parent = target.parent()?;
        let name = target.file_name()?.to_str()?;

        let is_here = parent == Path::new("../../blobs") || parent == self.path;
        (is_here && check_file_name(name).is_ok()).then_some(name)
    }
}

/// Rejects folders, pipes, sockets and devices.
fn regular(path: &Path, opened: rustix::io::Result<OwnedFd>) -> Result<File> {
    let failed = |error: std::io::Error| io_error("open", path, error);

    let file = match opened {
        Ok(file) => File::from(file),
        // A socket, or a device without a driver.
        Err(Errno::NXIO | Errno::NODEV) => return Err(not_a_file(path)),
        Err(errno) => return Err(failed(errno.into())),
    };
    if file.metadata().map_err(failed)?.is_file() { Ok(file) } else { Err(not_a_file(path)) }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::io::Read;

    use super::*;

    /// Files come from the folder that was opened, even if its name later refers to another one.
    #[test]
    fn replacing_the_folder_has_no_effect() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("folder");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("file"), b"first").unwrap();
        let confined = ConfinedFolder::new(&path, Links::Refuse).unwrap();

        fs::rename(&path, parent.path().join("moved")).unwrap();
        fs::create_dir(&path).unwrap();
        fs::write(path.join("file"), b"second").unwrap();

        let mut content = String::new();
        let mut file = confined.open("file").unwrap().unwrap();
        file.read_to_string(&mut content).unwrap();
        assert_eq!(content, "first");
    }
}
