//! The file operations of the commit protocol, as a trait.
//!
//! Crash safety cannot be tested on a real disk: the bytes that a process wrote stay in the
//! system's cache when the process is killed, so the states after a power cut cannot be observed.
//! The protocol therefore uses the trait [`Vfs`], with these implementations:
//!
//! - [`RealFs`]: the operating system. Large writes bypass its page cache where possible.
//! - `SimFs` of the crate `meshgrad-ckpt-crash`: in memory; tracks for every file and folder what
//!   is on disk and what is only cached, and produces every state that a power cut may leave.
//! - `FaultFs` of the same crate: wraps another file system and fails, truncates or skips chosen
//!   operations.
//!
//! The trait has only the operations that the protocol uses, and each does one thing: only an
//! explicit sync guarantees that data is on disk.

mod real;
mod write_behind;

use std::any::Any;
use std::ffi::OsString;
use std::fmt;
use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;

pub use real::RealFs;

/// A file system. Paths are used as given; errors are those of the system.
pub trait Vfs: fmt::Debug + Send + Sync {
    /// Creates a file that must not exist, for writing; its mode follows the umask.
    fn create_new(&self, path: &Path) -> io::Result<Box<dyn VfsFile>>;

    /// Opens a file for reading.
    fn open(&self, path: &Path) -> io::Result<Box<dyn VfsFile>>;

    /// Opens a regular file for reading by its path below `folder`, with components separated by
    /// `/`. No component may be a link, which could lead out of the folder. A file system without
    /// links needs no check.
    fn open_below(&self, folder: &Path, below: &str) -> io::Result<Box<dyn VfsFile>> {
        self.open(&folder.join(below))
    }

    /// Opens an existing file for writing and keeps its content.
    fn open_to_write(&self, path: &Path) -> io::Result<Box<dyn VfsFile>>;

    /// Creates a folder that must not exist.
    fn make_dir(&self, path: &Path) -> io::Result<()>;

    /// Removes an empty folder.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;

    /// Removes a file or a link.
    fn unlink(&self, path: &Path) -> io::Result<()>;

    /// Renames a file, replacing any file with the name `to`.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Renames a file or a non-empty folder; an error when `to` exists.
    fn rename_no_replace(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Makes the names in a folder durable: all creations, renames and removals there.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// The names in a folder, in any order.
    fn list(&self, path: &Path) -> io::Result<Vec<OsString>>;

    /// The metadata of a path; links are not followed.
    fn metadata(&self, path: &Path) -> io::Result<Metadata>;

    /// The free bytes of the file system of an existing path, if it reports them.
    fn space(&self, path: &Path) -> Option<u64>;

    /// Locks a folder against other processes for the lifetime of the result. The kind of the error
    /// matters: `WouldBlock` if it is locked, `NotFound` if it does not exist, `Unsupported` if the
    /// file system has no locks.
    fn lock(&self, path: &Path) -> io::Result<Lock>;

    /// A number that no other call returns, in any process that uses the file system.
    fn unique(&self) -> u64;
}

/// An open file. All offsets are explicit, so that threads can share it.
pub trait VfsFile: fmt::Debug + Send + Sync {
    /// Its size in bytes.
    fn size(&self) -> io::Result<u64>;

    /// Reads at most `buffer.len()` bytes; 0 at the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes at most `bytes.len()` bytes. The write may finish after the call returns. Its error
    /// is then returned by a later call, at the latest by [`VfsFile::sync_data`].
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;

    /// Allocates the space for `len` bytes and makes the file at least that long.
    fn allocate(&self, len: u64) -> io::Result<()>;

    /// Waits until content and size are on disk. After an error they may never be written, even if
    /// a second call succeeds: the system has dropped the pages.
    fn sync_data(&self) -> io::Result<()>;
}

/// The metadata of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metadata {
    /// Its kind.
    pub kind: FileKind,
    /// Bytes of a file.
    pub bytes: u64,
}

impl Metadata {
    /// The bytes of a file; 0 for anything else. In particular, the text of a link does not count.
    fn bytes_of_file(&self) -> u64 {
        match self.kind {
            FileKind::File => self.bytes,
            FileKind::Folder | FileKind::Other => 0,
        }
    }
}

/// The kinds of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// A link, a pipe, a device.
    Other,
}

/// Keeps a folder locked until it is dropped.
pub struct Lock {
    _held: Box<dyn Any + Send + Sync>,
}

impl Lock {
    /// A lock that lives as long as `held`.
    pub fn new(held: impl Any + Send + Sync) -> Lock {
        Lock { _held: Box::new(held) }
    }

    /// Locks an open file or folder of the operating system.
    ///
    /// # Errors
    /// When another process or handle holds the lock, and when the file system has no locks.
    pub fn of_file(file: File) -> Result<Lock, TryLockError> {
        file.try_lock()?;
        Ok(Lock::new(Unlocks(file)))
    }
}

/// Unlocks the file when dropped. Closing it would not be enough: a process that another thread is
/// just starting has a copy of the handle until it executes its program.
struct Unlocks(File);

impl Drop for Unlocks {
    fn drop(&mut self) {
        // Closing the file is the only other way to unlock it, and follows.
        let _ = self.0.unlock();
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lock")
    }
}

/// Bytes per write. A write is hashed while the disk works on the previous one. A multiple of the
/// page size, so that writes are split at page boundaries.
pub(crate) const WRITE_BYTES: usize = 1 << 20;

/// Writes all of `bytes` with as many calls as needed.
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

/// Fills the buffer up to the end of the file and returns the number of bytes.
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

/// Creates a folder below `root` and its missing parents.
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

/// Removes a file, or a folder with everything below it, and returns the bytes of its files; not an
/// error if it does not exist.
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

/// Bytes of a file, or of all files below a folder; links are not followed. Files that are removed
/// concurrently may or may not be counted.
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

/// The names in a folder, sorted so that the order does not depend on the system and faults are
/// reproducible.
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
