//! Reads that bypass the page cache.
//!
//! The system requires that address, offset and length of a direct read are multiples of the disk's
//! block size. Aligned reads (the windows of a plan for direct reads) go directly to their
//! destination. For other reads, and for the last bytes of a file, whole blocks are read into a
//! buffer and the requested bytes are copied.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use meshgrad_error::Result;

use super::aligned::{ALIGNMENT, Aligned};
use super::backend::Source;
use super::file_change::FileChange;
use super::open_file::{BackendError, OpenFile};
use crate::error::io_error;

/// The size of the buffer for unaligned reads.
const ASIDE_BYTES: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Direct {
    /// The file as first opened, for its stamp.
    file: OpenFile,
    /// The same file, opened for direct reads.
    direct: File,
}

impl Direct {
    pub(super) fn new(file: OpenFile) -> Result<Direct, BackendError> {
        let direct = match open_direct(&file.path) {
            Ok(direct) => direct,
            Err(reason) => return Err(BackendError::Unsupported { file, reason }),
        };

        let same = |a: &File, b: &File| -> io::Result<bool> {
            let (a, b) = (a.metadata()?, b.metadata()?);
            Ok((a.dev(), a.ino()) == (b.dev(), b.ino()))
        };
        match same(&file.file, &direct) {
            Ok(true) => Ok(Direct { file, direct }),
            Ok(false) => Err(BackendError::Failed(file.changed(0, FileChange::Replaced))),
            Err(error) => Err(BackendError::Failed(io_error("open", &file.path, error))),
        }
    }

    /// Reads whole blocks until the aligned `data` is full or the file ends. Returns the number of
    /// bytes.
    fn read_blocks(&self, offset: u64, data: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < data.len() {
            match self.direct.read_at(&mut data[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            // Only the last block of a file is partial.
            if !filled.is_multiple_of(ALIGNMENT) {
                break;
            }
        }
        Ok(filled)
    }

    /// Reads the blocks around `data` into a buffer and copies the requested bytes.
    fn read_aside(&self, mut offset: u64, mut data: &mut [u8]) -> io::Result<()> {
        let around = |skipped: usize, len: usize| (skipped + len).next_multiple_of(ALIGNMENT);
        let most = around(ALIGNMENT - 1, data.len()).min(ASIDE_BYTES);
        let mut aside = Aligned::new(most);
        while !data.is_empty() {
            let skipped = (offset % ALIGNMENT as u64) as usize;
            let blocks = around(skipped, data.len()).min(most);
            let filled = self.read_blocks(offset - skipped as u64, &mut aside.bytes()[..blocks])?;
            let count = data.len().min(filled.saturating_sub(skipped));
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let (now, later) = data.split_at_mut(count);
            now.copy_from_slice(&aside.bytes()[skipped..][..count]);
            (offset, data) = (offset + count as u64, later);
        }
        Ok(())
    }

    fn try_read(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        let aligned = offset.is_multiple_of(ALIGNMENT as u64)
            && data.as_ptr().addr().is_multiple_of(ALIGNMENT);
        let whole = match aligned {
            true => data.len() - data.len() % ALIGNMENT,
            false => 0,
        };
        let (blocks, rest) = data.split_at_mut(whole);
        if self.read_blocks(offset, blocks)? < whole {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.read_aside(offset + whole as u64, rest)
    }
}

impl Source for Direct {
    fn path(&self) -> &Path {
        &self.file.path
    }

    fn byte_len(&self) -> u64 {
        self.file.byte_len()
    }

    fn read_at(&self, offset: u64, data: &mut [u8]) -> Result<()> {
        let attempt = self.try_read(offset, data);
        self.file.check_read(offset, data.len(), attempt)
    }
}

/// Opens the file and tries a read: some file systems accept the flag and fail the first read.
#[cfg(target_os = "linux")]
fn open_direct(path: &Path) -> Result<File, String> {
    use std::fs::OpenOptions;
    use std::os::unix::fs::OpenOptionsExt;

    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    let opened = OpenOptions::new().read(true).custom_flags(direct).open(path);
    let tried = opened.and_then(|file| {
        file.read_at(Aligned::new(ALIGNMENT).bytes(), 0)?;
        Ok(file)
    });
    tried.map_err(|error| format!("the file system does not support direct reads: {error}"))
}

#[cfg(not(target_os = "linux"))]
fn open_direct(_: &Path) -> Result<File, String> {
    Err("this system has no O_DIRECT".to_owned())
}
