//! The baseline: plain reads of all files from beginning to end, in blocks on several threads.

use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, ensure};
use indicatif::ProgressBar;
use meshgrad::ckpt::Digest;
use meshgrad_harness::{PAGE, open_direct};

use crate::ckpt::interrupt::Interrupt;
use crate::table::display_path;

/// Maximum bytes per read.
pub(super) const BLOCK: usize = 8 << 20;

/// How the files are read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    /// Through the page cache.
    Cached,
    /// Through the page cache, with a digest of each block as in a manifest.
    Digested,
    /// With O_DIRECT.
    Direct,
}

/// A file of the checkpoint, opened with and without O_DIRECT.
struct DualFile {
    cached: File,
    /// `None` if the file system does not support O_DIRECT.
    direct: Option<File>,
    bytes: u64,
}

/// The files of the checkpoint.
pub(super) struct Files {
    files: Vec<DualFile>,
    block: usize,
    threads: usize,
}

/// A range of a file.
struct Block<'f> {
    file: &'f DualFile,
    offset: u64,
    len: usize,
}

impl Block<'_> {
    /// Bytes of memory for the block, in whole pages.
    fn room(&self) -> usize {
        self.len.next_multiple_of(PAGE)
    }
}

impl Files {
    /// Opens the files for reads of `block` bytes, a multiple of [`PAGE`].
    pub(super) fn open<'p>(
        paths: impl IntoIterator<Item = &'p Path>,
        block: usize,
        threads: usize,
    ) -> anyhow::Result<Files> {
        let open = |path: &Path| -> std::io::Result<DualFile> {
            let cached = File::open(path)?;
            Ok(DualFile {
                bytes: cached.metadata()?.len(),
                direct: open_direct(OpenOptions::new().read(true), path).ok(),
                cached,
            })
        };
        let open =
            |path: &Path| open(path).with_context(|| format!("cannot open {}", display_path(path)));
        Ok(Files { files: paths.into_iter().map(open).collect::<Result<_, _>>()?, block, threads })
    }

    /// Bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Bytes of memory for all blocks, each aligned to a page.
    pub(super) fn room(&self) -> usize {
        self.blocks().map(|block| block.room()).sum()
    }

    fn blocks(&self) -> impl Iterator<Item = Block<'_>> {
        self.files.iter().flat_map(move |file| {
            let offsets = (0..file.bytes).step_by(self.block);
            offsets.map(move |offset| Block {
                file,
                offset,
                len: (file.bytes - offset).min(self.block as u64) as usize,
            })
        })
    }

    /// Reads all files into `memory` and returns the bytes read. If all blocks fit, each is read to
    /// a separate range. Otherwise each thread reads all its blocks into one range.
    pub(super) fn read(
        &self,
        method: Method,
        memory: &mut [u8],
        progress: &ProgressBar,
        interrupt: &Interrupt,
    ) -> anyhow::Result<u64> {
        let act = |block: &Block<'_>, place: &mut [u8]| -> anyhow::Result<u64> {
            interrupt.check()?;
            block.read(method, place)?;
            if method == Method::Digested {
                black_box(Digest::of(&place[..block.len]));
            }
            progress.inc(block.len as u64);
            Ok(block.len as u64)
        };

        let has_room = memory.len() >= self.room();
        let share = memory.len() / self.threads / PAGE * PAGE;
        let blocks = Mutex::new(self.blocks());
        let next = || lock(&blocks).next();
        if !has_room {
            let work = |share: &mut [u8]| {
                let mut read = 0;
                while let Some(block) = next() {
                    read += act(&block, share)?;
                }
                Ok(read)
            };
            return on_threads(memory.chunks_mut(share).take(self.threads), work);
        }

        let rest = Mutex::new((self.blocks(), memory));
        let next = || {
            let mut rest = lock(&rest);
            let block = rest.0.next()?;
            let (place, tail) = std::mem::take(&mut rest.1).split_at_mut(block.room());
            rest.1 = tail;
            Some((block, place))
        };
        on_threads(0..self.threads, |_| {
            let mut read = 0;
            while let Some((block, place)) = next() {
                read += act(&block, place)?;
            }
            Ok(read)
        })
    }
}

impl Block<'_> {
    fn read(&self, method: Method, place: &mut [u8]) -> anyhow::Result<()> {
        if method != Method::Direct {
            self.file.cached.read_exact_at(&mut place[..self.len], self.offset)?;
            return Ok(());
        }
        let file = self.file.direct.as_ref().context("O_DIRECT is not supported")?;
        let mut filled = 0;
        while filled < self.len {
            // Only the last block of a file may be shorter.
            let rest = &mut place[filled..self.room()];
            let read = file.read_at(rest, self.offset + filled as u64)?;
            ensure!(read > 0, "a file was truncated during the read");
            filled += read;
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `work` on one thread per share; returns the sum of the results, or the first error.
fn on_threads<S: Send>(
    shares: impl Iterator<Item = S>,
    work: impl Fn(S) -> anyhow::Result<u64> + Sync,
) -> anyhow::Result<u64> {
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> = shares.map(|share| scope.spawn(move || work(share))).collect();
        let done = threads.into_iter().map(|thread| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        done.sum()
    })
}

/// Syncs the files and drops their pages from the page cache.
pub(super) fn drop_pages(files: &Files) -> anyhow::Result<()> {
    let mut files = files.files.iter();
    let dropped = files.try_for_each(|file| meshgrad_harness::drop_pages(&file.cached));
    dropped.context("--cold cannot drop the pages of a file")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(folder: &Path, block: usize, threads: usize) -> Files {
        let contents = [vec![1; 20_000], vec![2; 4096], Vec::new(), vec![3; 1]];
        let mut paths = Vec::new();
        for (number, content) in contents.iter().enumerate() {
            paths.push(folder.join(number.to_string()));
            std::fs::write(&paths[number], content).unwrap();
        }
        Files::open(paths.iter().map(|path| &**path), block, threads).unwrap()
    }

    /// Every method reads each byte exactly once, whether or not all blocks fit into memory.
    #[test]
    fn every_method_reads_all_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let (progress, interrupt) = (ProgressBar::hidden(), Interrupt::default());
        for (block, threads) in [(4096, 1), (8192, 3), (1 << 20, 2)] {
            let files = files(folder.path(), block, threads);
            assert_eq!(files.bytes(), 24_097);
            for method in [Method::Cached, Method::Digested, Method::Direct] {
                if method == Method::Direct && files.files.iter().any(|file| file.direct.is_none())
                {
                    continue; // for example tmpfs on old kernels
                }
                for room in [files.room(), threads * block.min(20_480)] {
                    let mut memory = meshgrad_harness::map_new(room).unwrap();
                    let read = files.read(method, &mut memory, &progress, &interrupt).unwrap();
                    assert_eq!(read, 24_097);
                    if room < files.room() {
                        continue;
                    }
                    let count = |value| memory.iter().filter(|byte| **byte == value).count();
                    assert_eq!([count(1), count(2), count(3)], [20_000, 4096, 1]);
                }
            }
        }
    }
}
