//! The few operations on files that the commit protocol needs, as a trait.
//!
//! A protocol that survives power cuts cannot be tested on a real disk: what a process wrote stays
//! in the system's cache when the process is killed, so the states that a power cut leaves are
//! never seen. So the protocol is written against [`Vfs`], and there are three of them:
//!
//! - [`RealFs`]: the operating system. Large writes go past its page cache, if it lets them.
//! - [`SimFs`]: in memory; knows for every file and folder what is on disk and what only cached,
//!   and makes every state that a power cut may leave.
//! - [`FaultFs`]: wraps another and fails, cuts short or leaves out chosen operations.
//!
//! The trait has no operation that the protocol does not use, and none does two things: what is not
//! synced explicitly is not promised to be on disk.

mod real;
mod write_behind;

use std::any::Any;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::Path;

pub use real::RealFs;

/// A file system. Paths are used as they are given; an error is the system's.
pub trait Vfs: fmt::Debug + Send + Sync {
    /// Creates a file that must not exist, for writing; its mode follows the umask.
    fn create_new(&self, path: &Path) -> io::Result<Box<dyn VfsFile>>;

    /// Opens a file for reading.
    fn open(&self, path: &Path) -> io::Result<Box<dyn VfsFile>>;

    /// Opens a regular file for reading whose path below `folder` has its parts joined by `/`. No
    /// part of it may be a link: it could lead out of the folder. Without links that is a matter of
    /// course.
    fn open_below(&self, folder: &Path, below: &str) -> io::Result<Box<dyn VfsFile>> {
        self.open(&folder.join(below))
    }

    /// Opens a file that exists for writing; its content stays.
    fn open_to_write(&self, path: &Path) -> io::Result<Box<dyn VfsFile>>;

    /// Makes a folder that must not exist.
    fn make_dir(&self, path: &Path) -> io::Result<()>;

    /// Removes an empty folder.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;

    /// Removes a file or a link.
    fn unlink(&self, path: &Path) -> io::Result<()>;

    /// Renames a file over whatever file has the name `to`.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Renames a file or a folder with files in it; an error when something has the name `to`.
    fn rename_no_replace(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Makes the names in a folder durable: what was created, renamed and removed there.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// The names in a folder, in any order.
    fn list(&self, path: &Path) -> io::Result<Vec<OsString>>;

    /// What a path is; links are not followed.
    fn metadata(&self, path: &Path) -> io::Result<Metadata>;

    /// Bytes that may still be written to the file system of an existing path, if it tells.
    fn space(&self, path: &Path) -> Option<u64>;

    /// Locks a folder against other processes for as long as the answer lives. The kinds of the
    /// error matter: `WouldBlock` when it is locked, `NotFound` when it is gone, `Unsupported` when
    /// the file system has no locks.
    fn lock(&self, path: &Path) -> io::Result<Lock>;

    /// A number that no other call gives, in any process that uses the file system.
    fn unique(&self) -> u64;
}

/// An open file. All offsets are explicit, so that threads can share it.
pub trait VfsFile: fmt::Debug + Send + Sync {
    /// Its size in bytes.
    fn size(&self) -> io::Result<u64>;

    /// Reads at most `buffer.len()` bytes; 0 at the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes at most `bytes.len()` bytes. They may still be on their way when it returns: an error
    /// of them is one of a later call, of [`VfsFile::sync_data`] at the latest.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;

    /// Takes the space for `len` bytes now and makes the file at least that long.
    fn allocate(&self, len: u64) -> io::Result<()>;

    /// Waits until the content and the size are on disk. After an error they may never get there,
    /// whatever a second call says: the system has dropped the pages.
    fn sync_data(&self) -> io::Result<()>;
}

/// What a path is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metadata {
    /// Its kind.
    pub kind: FileKind,
    /// Bytes of a file.
    pub bytes: u64,
}

impl Metadata {
    /// The text of a link counts as nothing.
    fn bytes_of_file(&self) -> u64 {
        match self.kind {
            FileKind::File => self.bytes,
            FileKind::Folder | FileKind::Other => 0,
        }
    }
}

/// The kinds of things that have a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// A link, a pipe, a device.
    Other,
}

/// Keeps a folder locked; dropping it lets go.
pub struct Lock {
    _held: Box<dyn Any + Send + Sync>,
}

impl Lock {
    /// A lock that lasts as long as `held` does.
    pub fn new(held: impl Any + Send + Sync) -> Lock {
        Lock {
            _held: Box::new(held),
        }
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lock")
    }
}

/// The most that is written before it is digested: the disk has the one while we do the other.
/// Whole pages, so that pieces meet between two of them.
pub(crate) const WRITE_BYTES: usize = 1 << 20;

/// Writes all of `bytes`, however few the file takes at a time.
pub(crate) fn write_all_at(file: &dyn VfsFile, bytes: &[u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match file.write_at(&bytes[done..], offset + done as u64) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => done += written,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Fills the buffer as far as the file reaches; returns how far.
pub fn read_full_at(file: &dyn VfsFile, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Makes a folder below `root` and those on the way to it.
pub(crate) fn make_dirs(vfs: &dyn Vfs, root: &Path, below: &Path) -> io::Result<()> {
    let mut folder = root.to_owned();
    for part in below.components() {
        folder.push(part);
        match vfs.make_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => other?,
        }
    }
    Ok(())
}

/// Removes a file, or a folder with all below it, and returns the bytes of its files; no error when
/// it is not there.
pub(crate) fn remove_all(vfs: &dyn Vfs, path: &Path) -> io::Result<u64> {
    let removed = match vfs.metadata(path) {
        Ok(metadata) if metadata.kind == FileKind::Folder => remove_folder(vfs, path),
        Ok(metadata) => vfs.unlink(path).map(|()| metadata.bytes_of_file()),
        Err(error) => Err(error),
    };
    absent_is_empty(removed)
}

fn remove_folder(vfs: &dyn Vfs, path: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for name in names_in_order(vfs, path)? {
        bytes += remove_all(vfs, &path.join(name))?;
    }
    absent_is_empty(vfs.remove_dir(path).map(|()| 0))?;
    Ok(bytes)
}

/// Bytes of a file, or of all files below a folder; links are not followed. What somebody else is
/// removing meanwhile counts as far as it is there.
pub(crate) fn bytes_below(vfs: &dyn Vfs, path: &Path) -> io::Result<u64> {
    let counted = vfs.metadata(path).and_then(|metadata| {
        if metadata.kind != FileKind::Folder {
            return Ok(metadata.bytes_of_file());
        }
        let names = names_in_order(vfs, path)?.into_iter();
        names.map(|name| bytes_below(vfs, &path.join(name))).sum()
    });
    absent_is_empty(counted)
}

/// In an order that does not depend on the system, so that a fault can be met again.
fn names_in_order(vfs: &dyn Vfs, folder: &Path) -> io::Result<Vec<OsString>> {
    let mut names = vfs.list(folder)?;
    names.sort_unstable();
    Ok(names)
}

fn absent_is_empty(bytes: io::Result<u64>) -> io::Result<u64> {
    match bytes {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        other => other,
    }
}
