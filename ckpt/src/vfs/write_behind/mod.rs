//! Large writes that bypass the page cache, while the caller produces the next bytes.
//!
//! ```text
//! write_at    bytes of partial pages                    -> page cache
//!             whole pages, copied to a block of a pool  -> its threads -> O_DIRECT
//! sync_data   waits for the blocks of this file, then for the disk
//! ```
//!
//! Through the page cache, a disk with 2.5 GB/s reaches half of that: each byte is copied to a page
//! that must be found first, and most pages are written only by the sync. Checkpoints are rarely
//! read soon after they are written, so those pages also evict more useful ones.
//!
//! Cached and direct writes never touch the same page. A direct block consists of whole pages of a
//! single write. A page that two writes share is written through the cache both times, by any
//! thread or process. (The cache may group several pages, but only pages that a write has touched.)
//! So no page is dirty in the cache while it is written directly. The exception is bytes that are
//! written again. The later write then waits for the earlier block. If the later write is direct,
//! the system flushes the dirty pages of its range and drops them from the cache.
//!
//! An error is returned by a later call and by all calls after that one, including syncs.
//!
//! If the system or the file system does not support direct writes, all writes go through the
//! cache.

mod descriptors;
mod in_flight;
mod pool;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};

use crate::source::ALIGNMENT;

use descriptors::Descriptors;
use in_flight::InFlight;
use pool::{Job, Pool};

/// Smaller writes go through the page cache, which merges them.
const MIN_DIRECT_BYTES: usize = 256 << 10;

/// A file that is open for writing.
#[derive(Debug)]
pub(super) struct WriteBehind {
    file: Arc<File>,
    /// Opened for the first large write; `None` if direct writes are not supported.
    direct: OnceLock<Option<DirectWriter>>,
}

/// The writer that bypasses the page cache.
#[derive(Debug)]
struct DirectWriter {
    to: Arc<Descriptors>,
    in_flight: Arc<InFlight>,
    pool: Arc<Pool>,
    min_bytes: usize,
}

impl WriteBehind {
    pub(super) fn new(file: File) -> WriteBehind {
        WriteBehind { file: Arc::new(file), direct: OnceLock::new() }
    }

    /// The file, after all writes have reached it or the cache.
    pub(super) fn flushed(&self) -> io::Result<&File> {
        if let Some(Some(direct)) = self.direct.get() {
            direct.in_flight.drain()?;
        }
        Ok(&self.file)
    }

    /// Writes some of the bytes.
    pub(super) fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        match self.direct(bytes.len()) {
            Some(direct) => direct.write_at(bytes, offset),
            None => self.file.write_at(bytes, offset),
        }
    }

    fn direct(&self, bytes: usize) -> Option<&DirectWriter> {
        let direct = match bytes < MIN_DIRECT_BYTES {
            true => self.direct.get()?,
            false => self.direct.get_or_init(|| DirectWriter::open(&self.file)),
        };
        direct.as_ref()
    }
}

impl DirectWriter {
    fn open(file: &Arc<File>) -> Option<DirectWriter> {
        Some(DirectWriter {
            to: Arc::new(Descriptors::open(file)?),
            in_flight: Arc::default(),
            pool: Pool::of_process()?,
            min_bytes: MIN_DIRECT_BYTES,
        })
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let head = (offset.wrapping_neg() % ALIGNMENT as u64) as usize;
        let is_small = bytes.len() < head + self.min_bytes;

        if is_small || self.to.is_rejected() {
            self.write_cached(bytes, offset)
        } else if head > 0 {
            self.write_cached(&bytes[..head], offset)
        } else {
            let pages = bytes.len() / ALIGNMENT * ALIGNMENT;
            let taken = pages.min(self.pool.block_bytes());
            self.write_behind(&bytes[..taken], offset)
        }
    }

    fn write_cached(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.in_flight.wait_for(&range(bytes, offset))?;
        self.to.cached.write_at(bytes, offset)
    }

    /// Submits whole pages to the pool.
    fn write_behind(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.in_flight.begin(range(bytes, offset))?;
        let mut block = self.pool.block();
        block.bytes()[..bytes.len()].copy_from_slice(bytes);
        self.pool.submit(Job {
            block,
            range: range(bytes, offset),
            to: Arc::clone(&self.to),
            in_flight: Arc::clone(&self.in_flight),
        });
        Ok(bytes.len())
    }
}

impl Drop for DirectWriter {
    /// Waits for pending writes. A write must not follow the close of its file, because the file's
    /// space may then count as free.
    fn drop(&mut self) {
        // A caller that needs the error must sync.
        let _ = self.in_flight.drain();
    }
}

fn range(bytes: &[u8], offset: u64) -> Range<u64> {
    offset..offset.saturating_add(bytes.len() as u64)
}
