//! Comparing files with the digests of their blocks, with several threads and a small window each.

use std::hash::Hasher;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use meshgrad_error::Result;
use twox_hash::XxHash3_64;

use crate::blocks::{Block, BlockHasher, Content, Digest};
use crate::error::io_error;
use crate::integrity::IntegrityError;
use crate::vfs::{self, Vfs, VfsFile};

const WINDOW: usize = 1 << 20;

/// Files below a folder, and their expected content.
pub(crate) struct SealedFiles<'a> {
    pub(crate) vfs: &'a dyn Vfs,
    pub(crate) folder: &'a Path,
    pub(crate) files: &'a [ListedFile<'a>],
}

/// A file and its expected blocks.
pub(crate) struct ListedFile<'a> {
    pub(crate) name: &'a str,
    pub(crate) blocks: &'a [Block],
}

/// A wrong block or a failed read, with the block's index in the list.
type Finding = (usize, Result<IntegrityError>);

impl SealedFiles<'_> {
    /// The blocks with wrong digests, in the order of the list.
    ///
    /// # Errors
    /// When a file cannot be read: the first one, in that order.
    pub(crate) fn wrong_blocks(
        &self,
        threads: usize,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Vec<IntegrityError>> {
        let work: Vec<(&ListedFile<'_>, usize)> = self
            .files
            .iter()
            .flat_map(|file| (0..file.blocks.len()).map(move |block| (file, block)))
            .collect();
        let next = AtomicUsize::new(0);
        let findings: Mutex<Vec<Finding>> = Mutex::default();

        let worker = || {
            let mut reader = Reader::new(self);
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(&(file, block)) = work.get(at) else {
                    return;
                };
                let found = reader.check(file, block);
                progress(file.blocks[block].bytes);

                if let Some(found) = found.transpose() {
                    // Stop when a read fails; other threads have already taken all earlier blocks.
                    if found.is_err() {
                        next.store(work.len(), Ordering::Relaxed);
                    }
                    let mut findings = findings.lock().unwrap_or_else(|lock| lock.into_inner());
                    findings.push((at, found));
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..threads.min(work.len()) {
                scope.spawn(worker);
            }
            worker();
        });

        let mut findings = findings.into_inner().unwrap_or_else(|lock| lock.into_inner());
        findings.sort_by_key(|(at, _)| *at);
        findings.into_iter().map(|(_, found)| found).collect()
    }
}

/// Keeps the file of the last block open: the next block is usually in the same file.
struct Reader<'a> {
    sealed: &'a SealedFiles<'a>,
    open: Option<(&'a str, Box<dyn VfsFile>)>,
    window: Vec<u8>,
}

impl<'a> Reader<'a> {
    fn new(sealed: &'a SealedFiles<'a>) -> Reader<'a> {
        Reader { sealed, open: None, window: Vec::new() }
    }

    fn check(&mut self, file: &ListedFile<'a>, at: usize) -> Result<Option<IntegrityError>> {
        let block = file.blocks[at];
        let found = self
            .digest(file.name, block)
            .map_err(|error| io_error("read", &self.sealed.folder.join(file.name), error))?;
        if found == block.xxh3 {
            return Ok(None);
        }
        Ok(Some(IntegrityError::WrongDigest {
            file: file.name.to_owned(),
            block: at,
            range: block.offset..block.end(),
            expected: block.xxh3.to_string(),
            found: found.to_string(),
        }))
    }

    fn digest(&mut self, name: &'a str, block: Block) -> std::io::Result<Digest> {
        let file = match self.open.take() {
            Some((of, file)) if of == name => file,
            _ => self.sealed.vfs.open_below(self.sealed.folder, name)?,
        };
        self.window.resize(WINDOW, 0);

        let mut hash = XxHash3_64::new();
        let mut offset = block.offset;
        while offset < block.end() {
            let len = (block.end() - offset).min(self.window.len() as u64) as usize;
            let read = vfs::read_full_at(&*file, &mut self.window[..len], offset)?;
            hash.write(&self.window[..read]);
            offset += len as u64;
        }
        self.open = Some((name, file));
        Ok(Digest(hash.finish()))
    }
}

/// Size and digests of a file that another program wrote.
pub(crate) fn content(file: &dyn VfsFile, block_bytes: u64) -> std::io::Result<Content> {
    let mut window = vec![0; WINDOW];
    let (mut hasher, mut blocks) = (BlockHasher::new(0, block_bytes), Vec::new());

    loop {
        let bytes = hasher.end();
        match vfs::read_full_at(file, &mut window, bytes)? {
            0 => {
                hasher.flush(&mut blocks);
                return Ok(Content { bytes, blocks });
            }
            read => hasher.update(&window[..read], &mut blocks),
        }
    }
}
