//! A file that several threads and processes write in parts.
//!
//! Parts are hashed while they are written, and read again only if there are very many small ones.
//! A write starts a new block, or extends the block that ends at its offset. So a writer that
//! writes its part in order creates few large blocks, even with small writes.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use meshgrad_error::{Result, bail, ensure};

use crate::blocks::{Block, BlockHasher};
use crate::error::write_error;
use crate::source::ALIGNMENT;
use crate::vfs::{self, VfsFile, WRITE_BYTES};

/// The maximum number of growing parts. Above it, the part at the lowest offset is closed.
const MAX_OPEN_RUNS: usize = 64;

/// A file of known size that threads and processes write in parts. Clones refer to the same file.
#[derive(Clone)]
pub struct SharedFile(Arc<Shared>);

struct Shared {
    path: PathBuf,
    file: Box<dyn VfsFile>,
    bytes: u64,
    block_bytes: u64,
    /// Read-locked during writes, so that `finish` waits for them.
    is_finished: RwLock<bool>,
    parts: Mutex<Parts>,
}

#[derive(Default)]
struct Parts {
    done: Vec<Block>,
    /// The parts that may still grow, by their end.
    open: BTreeMap<u64, BlockHasher>,
}

impl fmt::Debug for SharedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, bytes) = (self.0.path.display(), self.0.bytes);
        write!(f, "SharedFile({path}, {bytes} bytes)")
    }
}

impl SharedFile {
    pub(crate) fn new(
        path: PathBuf,
        file: Box<dyn VfsFile>,
        bytes: u64,
        block_bytes: u64,
    ) -> SharedFile {
        SharedFile(Arc::new(Shared {
            path,
            file,
            bytes,
            block_bytes,
            is_finished: RwLock::new(false),
            parts: Mutex::default(),
        }))
    }

    /// The file's current path.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// The size in bytes, fixed at creation.
    pub fn size(&self) -> u64 {
        self.0.bytes
    }

    /// Writes all of `bytes` at `offset`. Each byte of the file must be written exactly once, by
    /// any writer. A write at the end of an earlier one extends its block.
    ///
    /// # Errors
    /// For bytes outside the file; after its writer has finished; when the data cannot be written
    /// ([`NoSpace`](crate::NoSpace) if the disk is full).
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let shared = &*self.0;
        let path = shared.path.display();
        ensure!(
            offset.saturating_add(bytes.len() as u64) <= shared.bytes,
            Invalid,
            "cannot write bytes {offset}..{offset}+{} of {path}: it was created with {} bytes",
            bytes.len(),
            shared.bytes
        );
        let is_finished = shared.is_finished.read();
        if *is_finished.unwrap_or_else(PoisonError::into_inner) {
            bail!(
                Invalid,
                "cannot write to {path}: its writer has finished; write all data before \
                 `Writer::finish`"
            );
        }
        shared.write(offset, bytes)
    }

    /// Syncs the file and returns its blocks, in order; rejects all later writes.
    pub(crate) fn finish(&self) -> Result<Vec<Block>> {
        self.0.finish()
    }
}

impl Shared {
    /// Writes and hashes without the lock, so that threads do not wait for each other.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let grown = self.parts().open.remove(&offset);
        let mut hasher = grown.unwrap_or_else(|| BlockHasher::new(offset, self.block_bytes));
        let mut done = Vec::new();
        let written = self.write_to(&mut hasher, bytes, &mut done);

        let mut parts = self.parts();
        parts.done.extend(done);
        parts.keep_open(hasher);
        written.map_err(|error| write_error(&self.path, bytes.len() as u64, error))
    }

    /// Writes at the end of a block and extends it. Writes are split at page boundaries.
    fn write_to(
        &self,
        hasher: &mut BlockHasher,
        mut bytes: &[u8],
        done: &mut Vec<Block>,
    ) -> io::Result<()> {
        while !bytes.is_empty() {
            let into_page = (hasher.end() % ALIGNMENT as u64) as usize;
            let (now, later) = bytes.split_at(bytes.len().min(WRITE_BYTES - into_page));
            vfs::write_all_at(&*self.file, now, hasher.end())?;
            hasher.update(now, done);
            bytes = later;
        }
        Ok(())
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn finish(&self) -> Result<Vec<Block>> {
        let is_finished = self.is_finished.write();
        *is_finished.unwrap_or_else(PoisonError::into_inner) = true;

        self.file.sync_data().map_err(|error| write_error(&self.path, self.bytes, error))?;

        let mut parts = self.parts();
        while let Some((_, hasher)) = parts.open.pop_first() {
            parts.end(hasher);
        }
        let mut blocks = std::mem::take(&mut parts.done);
        blocks.sort_unstable();
        Ok(blocks)
    }
}

impl Parts {
    fn keep_open(&mut self, hasher: BlockHasher) {
        // If two parts have the same end, bytes were written twice, which sealing will report.
        if let Some(other) = self.open.insert(hasher.end(), hasher) {
            self.end(other);
        }
        if self.open.len() > MAX_OPEN_RUNS
            && let Some((_, lowest)) = self.open.pop_first()
        {
            self.end(lowest);
        }
    }

    fn end(&mut self, mut hasher: BlockHasher) {
        hasher.flush(&mut self.done);
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::Digest;
    use crate::vfs::{RealFs, Vfs};

    fn shared(bytes: u64, block_bytes: u64) -> (TempDir, SharedFile) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        let file = RealFs.create_new(&path).unwrap();
        file.allocate(bytes).unwrap();
        (folder, SharedFile::new(path, file, bytes, block_bytes))
    }

    /// Four threads can write their quarters in small parts at the same time.
    #[test]
    fn threads_share_a_file() {
        let bytes: Vec<u8> = (0..40_000u32).map(|at| (at / 3) as u8).collect();
        let (_folder, file) = shared(40_000, 4000);

        std::thread::scope(|scope| {
            for (at, quarter) in bytes.chunks(10_000).enumerate() {
                let file = file.clone();
                scope.spawn(move || {
                    for (piece, part) in quarter.chunks(100).enumerate() {
                        let offset = (at * 10_000 + piece * 100) as u64;
                        file.write_at(offset, part).unwrap();
                    }
                });
            }
        });

        let blocks = file.finish().unwrap();
        // Each thread writes blocks of 4000, 4000 and 2000 bytes. There are fewer if a thread
        // starts after the previous quarter is complete.
        assert!((10..=12).contains(&blocks.len()), "{blocks:?}");
        assert!(blocks.windows(2).all(|pair| pair[0].end() == pair[1].offset));
        assert_eq!((blocks[0].offset, blocks[blocks.len() - 1].end()), (0, 40_000));
        for block in blocks {
            let part = &bytes[block.offset as usize..block.end() as usize];
            assert_eq!(block.xxh3, Digest::of(part));
        }
    }

    /// On a real file system, parts start and end anywhere in a page, and are larger than a single
    /// write.
    #[test]
    fn large_parts_are_written_and_digested() {
        let bytes: Vec<u8> = (0..5_000_000u32).map(|at| (at * 7 + at / 251) as u8).collect();
        let folder = tempfile::tempdir().unwrap();
        for (number, cut) in [1_700_001, 2_500_000, 4 << 20, 5_000_000].into_iter().enumerate() {
            let path = folder.path().join(number.to_string());
            let file = RealFs.create_new(&path).unwrap();
            file.allocate(bytes.len() as u64).unwrap();
            let file = SharedFile::new(path.clone(), file, bytes.len() as u64, 1 << 22);

            std::thread::scope(|scope| {
                for (part, at) in bytes.chunks(cut).zip(0..) {
                    let file = file.clone();
                    scope.spawn(move || file.write_at(at * cut as u64, part).unwrap());
                }
            });
            for block in file.finish().unwrap() {
                let part = &bytes[block.offset as usize..block.end() as usize];
                assert_eq!(block.xxh3, Digest::of(part));
            }
            assert!(std::fs::read(&path).unwrap() == bytes, "parts of {cut}");
        }
    }

    /// Scattered writes create more blocks, which still cover each byte once.
    #[test]
    fn scattered_writes_are_digested() {
        let (_folder, file) = shared(20_000, 1000);
        for round in 0..10 {
            for row in 0..200 {
                file.write_at(row * 100 + round * 10, &[round as u8; 10]).unwrap();
            }
        }
        let blocks = file.finish().unwrap();
        let bytes: u64 = blocks.iter().map(|block| block.bytes).sum();
        assert_eq!(bytes, 20_000);
        assert!(blocks.windows(2).all(|pair| pair[0].end() == pair[1].offset));
    }

    #[test]
    fn writes_out_of_bounds_or_after_finish_are_rejected() {
        let (folder, file) = shared(10, 100);
        file.write_at(0, &[1; 10]).unwrap();
        for (offset, len) in [(10, 1), (0, 11), (u64::MAX, 2)] {
            let error = file.write_at(offset, &vec![2; len]).unwrap_err();
            assert!(error.to_string().ends_with("it was created with 10 bytes"), "{error}");
        }
        file.finish().unwrap();
        let error = file.write_at(0, &[3]).unwrap_err();
        assert!(error.to_string().contains("its writer has finished"), "{error}");

        let mut found = [0; 11];
        let file = RealFs.open(&folder.path().join("x")).unwrap();
        assert_eq!(vfs::read_full_at(&*file, &mut found, 0).unwrap(), 10);
        assert_eq!(found[..10], [1; 10]);
    }
}
