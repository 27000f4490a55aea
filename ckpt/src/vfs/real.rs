//! The file system of the operating system.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::hash::Hasher;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;
use twox_hash::XxHash3_64;

use crate::no_links::open_below;

use super::write_behind::WriteBehind;
use super::{FileKind, Lock, Metadata, Vfs, VfsFile};

/// The operating system's files.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealFs;

#[derive(Debug)]
enum RealFile {
    Read(File),
    Written(WriteBehind),
}

fn to_read(file: File) -> Box<dyn VfsFile> {
    Box::new(RealFile::Read(file))
}

fn to_write(file: File) -> Box<dyn VfsFile> {
    Box::new(RealFile::Written(WriteBehind::new(file)))
}

impl RealFile {
    /// The file, after all earlier writes have reached it.
    fn flushed(&self) -> io::Result<&File> {
        match self {
            RealFile::Read(file) => Ok(file),
            RealFile::Written(file) => file.flushed(),
        }
    }
}

impl Vfs for RealFs {
    fn create_new(&self, path: &Path) -> io::Result<Box<dyn VfsFile>> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).open(path).map(to_write)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn VfsFile>> {
        File::open(path).map(to_read)
    }

    fn open_below(&self, folder: &Path, below: &str) -> io::Result<Box<dyn VfsFile>> {
        open_below(folder, below).map(to_read)
    }

    fn open_to_write(&self, path: &Path) -> io::Result<Box<dyn VfsFile>> {
        OpenOptions::new().write(true).open(path).map(to_write)
    }

    fn make_dir(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir(path)
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn rename_no_replace(&self, from: &Path, to: &Path) -> io::Result<()> {
        match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
            // A file system without this operation still does not replace a non-empty folder.
            Err(Errno::INVAL | Errno::NOSYS) if from.is_dir() => fs::rename(from, to),
            other => other.map_err(io::Error::from),
        }
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        match File::open(path).and_then(|folder| folder.sync_all()) {
            // A file system without this operation makes names durable in another way.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported
                ) =>
            {
                Ok(())
            }
            other => other,
        }
    }

    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        fs::read_dir(path)?.map(|entry| Ok(entry?.file_name())).collect()
    }

    fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        let metadata = fs::symlink_metadata(path)?;
        let kind = match metadata.file_type() {
            kind if kind.is_file() => FileKind::File,
            kind if kind.is_dir() => FileKind::Folder,
            _ => FileKind::Other,
        };
        let bytes = metadata.len();
        Ok(Metadata { kind, bytes })
    }

    fn space(&self, path: &Path) -> Option<u64> {
        available(&rustix::fs::statvfs(path).ok()?)
    }

    fn lock(&self, path: &Path) -> io::Result<Lock> {
        let handle = File::open(path)?;
        let opened = handle.metadata()?;
        match Lock::of_file(handle) {
            // If it is not the same, it was removed, and perhaps created again, between the two
            // calls.
            Ok(lock) if is_same(&opened, path) => Ok(lock),
            Ok(_) => Err(io::ErrorKind::NotFound.into()),
            Err(TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
            Err(TryLockError::Error(_)) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn unique(&self) -> u64 {
        static COUNTER: AtomicU64 = AtomicU64::new(0);

        let clock =
            SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        let count = COUNTER.fetch_add(1, Ordering::Relaxed);

        let mut hash = XxHash3_64::new();
        for part in [clock, u64::from(process::id()), count] {
            hash.write(&part.to_le_bytes());
        }
        hash.finish()
    }
}

/// Whether the path still refers to the opened folder.
fn is_same(opened: &fs::Metadata, folder: &Path) -> bool {
    fs::metadata(folder)
        .is_ok_and(|named| (opened.dev(), opened.ino()) == (named.dev(), named.ino()))
}

impl VfsFile for RealFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.flushed()?.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self.flushed()?, buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        match self {
            RealFile::Read(file) => FileExt::write_at(file, bytes, offset),
            RealFile::Written(file) => file.write_at(bytes, offset),
        }
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        let file = self.flushed()?;
        match take_space(file, len) {
            // The size is right, but the space is not allocated.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => file.set_len(len),
            other => other,
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        self.flushed()?.sync_data()
    }
}

/// Bytes available to us on a file system.
fn available(stat: &rustix::fs::StatVfs) -> Option<u64> {
    // Some network file systems report a disk of size zero.
    if stat.f_blocks == 0 {
        return None;
    }
    stat.f_bavail.checked_mul(stat.f_frsize)
}

#[cfg(target_os = "linux")]
fn take_space(file: &File, len: u64) -> io::Result<()> {
    use rustix::fs::FallocateFlags;

    // The system rejects an allocation of zero bytes.
    if len == 0 {
        return Ok(());
    }

    // If the request exceeds the free space, the system takes all of it before it fails, which
    // would affect other processes.
    let held = rustix::fs::fstat(file)?.st_blocks.unsigned_abs() * 512;
    if available(&rustix::fs::fstatvfs(file)?).is_some_and(|free| len > free.saturating_add(held)) {
        return Err(io::ErrorKind::StorageFull.into());
    }
    loop {
        match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, len) {
            Err(Errno::INTR) => {}
            other => return other.map_err(io::Error::from),
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn take_space(_file: &File, _len: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn rename_no_replace_never_replaces() {
        let folder = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| folder.path().join(name));
        fs::create_dir(&from).unwrap();

        for make in [(|path| fs::write(path, b"valuable")) as fn(&Path) -> io::Result<()>, |path| {
            fs::create_dir(path)
        }] {
            make(&to).unwrap();
            let error = RealFs.rename_no_replace(&from, &to).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
            super::super::remove_all(&RealFs, &to).unwrap();
        }
        RealFs.rename_no_replace(&from, &to).unwrap();
        assert!(to.is_dir() && !from.exists());
    }

    #[test]
    fn a_lock_ends_while_a_copy_of_its_handle_is_open() {
        let folder = tempfile::tempdir().unwrap();
        let handle = File::open(folder.path()).unwrap();
        // As a process that is being started has.
        let copy = handle.try_clone().unwrap();

        let held = Lock::of_file(handle).unwrap();
        assert!(RealFs.lock(folder.path()).is_err());
        drop(held);
        RealFs.lock(folder.path()).unwrap();
        drop(copy);
    }

    /// A checkpoint has the mode of any new file, so the umask decides which users may read it.
    #[test]
    fn mode_follows_the_umask() {
        let folder = tempfile::tempdir().unwrap();
        let [ours, plain] = ["ours", "plain"].map(|name| folder.path().join(name));
        RealFs.create_new(&ours).unwrap();
        fs::write(&plain, b"").unwrap();

        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&ours), mode(&plain));
    }

    #[test]
    fn allocations_beyond_free_space_take_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = RealFs.create_new(&folder.path().join("x")).unwrap();
        file.allocate(0).unwrap();
        file.allocate(5000).unwrap();
        assert_eq!(file.size().unwrap(), 5000);

        let available = RealFs.space(folder.path()).unwrap();
        let error = file.allocate(available.saturating_mul(4)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert_eq!(file.size().unwrap(), 5000);
    }

    #[test]
    fn a_lock_is_exclusive() {
        let folder = tempfile::tempdir().unwrap();
        let held = RealFs.lock(folder.path()).unwrap();
        let kind = RealFs.lock(folder.path()).unwrap_err().kind();
        assert_eq!(kind, io::ErrorKind::WouldBlock);

        drop(held);
        RealFs.lock(folder.path()).unwrap();
        let kind = RealFs.lock(&folder.path().join("none")).unwrap_err().kind();
        assert_eq!(kind, io::ErrorKind::NotFound);
    }
}
