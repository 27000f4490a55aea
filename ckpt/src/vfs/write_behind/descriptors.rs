//! A file that is open twice: through the page cache, and bypassing it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::source::ALIGNMENT;

/// Writes a block directly. Tests replace this function to simulate disks that reject or fail
/// writes.
type Write = fn(&File, &[u8], u64) -> io::Result<usize>;

#[derive(Debug)]
pub(super) struct Descriptors {
    pub(super) cached: Arc<File>,
    direct: File,
    write: Write,
    /// Whether a direct write was rejected. Some file systems allow opening for direct writes and
    /// reject the first write.
    rejected: AtomicBool,
}

impl Descriptors {
    /// Opens the file again, for direct writes; `None` if the system or the file system does not
    /// support them.
    pub(super) fn open(cached: &Arc<File>) -> Option<Descriptors> {
        let write = <File as FileExt>::write_at;
        Some(Descriptors::new(cached, open_direct(cached)?, write))
    }

    pub(super) fn new(cached: &Arc<File>, direct: File, write: Write) -> Descriptors {
        Descriptors { cached: Arc::clone(cached), direct, write, rejected: AtomicBool::new(false) }
    }

    /// Whether all further writes go through the page cache.
    pub(super) fn is_rejected(&self) -> bool {
        self.rejected.load(Ordering::Relaxed)
    }

    /// Writes whole pages, directly if that is possible.
    pub(super) fn write_all(&self, pages: &[u8], offset: u64) -> io::Result<()> {
        let mut done = 0;
        while done < pages.len() && !self.is_rejected() {
            match (self.write)(&self.direct, &pages[done..], offset + done as u64) {
                Ok(written) if written < ALIGNMENT => break,
                // A partly written page is written again.
                Ok(written) => done += written / ALIGNMENT * ALIGNMENT,
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported => {
                        self.rejected.store(true, Ordering::Relaxed);
                    }
                    _ => return Err(error),
                },
            }
        }
        self.cached.write_all_at(&pages[done..], offset + done as u64)
    }
}

/// Opens the same file for direct writes, even if it has been renamed.
#[cfg(target_os = "linux")]
fn open_direct(file: &File) -> Option<File> {
    use std::fs::OpenOptions;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;

    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    let mut options = OpenOptions::new();
    let options = options.write(true).custom_flags(direct);
    options.open(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()
}

#[cfg(not(target_os = "linux"))]
fn open_direct(_: &File) -> Option<File> {
    None
}
