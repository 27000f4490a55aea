//! What writing costs, with us and without: the same bytes, on disk when it is over.
//!
//! All of it happens in one hidden folder, which is a checkpoint that is never committed: it is
//! locked, removed when it is dropped, and what a kill leaves of it is what `gc` removes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, ensure};
use indicatif::ProgressBar;
use memmap2::MmapMut;
use meshgrad::ckpt::{Folder, FolderWriter, Staging};
use meshgrad_harness::{PAGE, open_direct};

use super::baseline::BLOCK;
use super::interrupt::Interrupt;
use crate::ckpt::catalog::display_path;

/// How the bytes are written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    /// One file through the page cache, then a sync.
    Cached,
    /// One file past the page cache, then a sync.
    Direct,
    /// A checkpoint: digested, sealed, checkpoint.
    Save,
}

/// Writes into a folder of its own, which is gone in the end.
pub(super) struct Writer<'a> {
    staging: Staging,
    folder: &'a Folder,
    /// Of each tensor in memory, where there is room for all.
    offsets: BTreeMap<&'a str, usize>,
    bytes: u64,
    memory: &'a RefCell<MmapMut>,
    progress: &'a ProgressBar,
    interrupt: &'a Interrupt,
}

impl<'a> Writer<'a> {
    /// Begins in `parent`, which must have room for the tensors. What is written is `memory`, from
    /// its beginning on and as often as it takes.
    pub(super) fn begin(
        parent: &Path,
        folder: &'a Folder,
        memory: &'a RefCell<MmapMut>,
        progress: &'a ProgressBar,
        interrupt: &'a Interrupt,
    ) -> anyhow::Result<Writer<'a>> {
        ensure!(
            parent.is_dir(),
            "{} is no folder; --write takes one that is on the disk to be measured",
            display_path(parent)
        );
        let staging = Staging::new(parent, "meshgrad-bench")?;
        let (mut offsets, mut bytes) = (BTreeMap::new(), 0);
        for tensor in folder.tensors() {
            offsets.insert(tensor.name.as_str(), bytes);
            bytes += tensor.byte_len();
        }
        let bytes = bytes as u64;
        staging.check_space(bytes)?;
        Ok(Writer {
            staging,
            folder,
            offsets,
            bytes,
            memory,
            progress,
            interrupt,
        })
    }

    /// Why the file system does not write in this method.
    pub(super) fn refusal(&self, method: Method) -> Option<String> {
        let path = self.file();
        let tried = || -> std::io::Result<()> {
            let mut options = OpenOptions::new();
            let file = open_direct(options.write(true).create_new(true), &path)?;
            file.write_all_at(&self.memory.borrow()[..PAGE], 0)
        };
        let refused = (method == Method::Direct).then(tried)?.err();
        let _ = std::fs::remove_file(&path);
        refused.map(|error| format!("the file system does not write directly: {error}"))
    }

    fn file(&self) -> PathBuf {
        self.staging.folder().join("plain")
    }

    /// Seconds of one write. To remove it is not in them.
    pub(super) fn write(&self, method: Method) -> anyhow::Result<f64> {
        let memory = self.memory.borrow();
        let start = Instant::now();
        match method {
            Method::Save => drop(self.save(&memory)?),
            Method::Cached | Method::Direct => self.write_plain(method, &memory)?,
        }
        let seconds = start.elapsed().as_secs_f64();

        match method {
            Method::Save => std::fs::remove_dir_all(self.checkpoint()),
            Method::Cached | Method::Direct => std::fs::remove_file(self.file()),
        }
        .context("cannot remove what was written")?;
        // The next one begins on a disk that is at rest.
        File::open(self.staging.folder())?.sync_all()?;
        Ok(seconds)
    }

    fn checkpoint(&self) -> PathBuf {
        self.staging.folder().join("checkpoint")
    }

    fn write_plain(&self, method: Method, memory: &[u8]) -> anyhow::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        let path = self.file();
        let mut file = match method {
            Method::Direct => open_direct(&mut options, &path),
            _ => options.open(&path),
        }
        .with_context(|| format!("cannot create {}", display_path(&path)))?;

        let whole = memory.len() / PAGE * PAGE;
        let mut left = self.bytes;
        for block in memory[..whole].chunks(BLOCK).cycle() {
            if left == 0 {
                break;
            }
            self.interrupt.check()?;
            let len = left.min(block.len() as u64) as usize;
            let rounded = match method {
                Method::Direct => len.next_multiple_of(PAGE),
                _ => len,
            };
            file.write_all(&block[..rounded])?;
            left -= len as u64;
            self.progress.inc(len as u64);
        }
        file.set_len(self.bytes)?;
        Ok(file.sync_all()?)
    }

    fn save(&self, memory: &[u8]) -> anyhow::Result<meshgrad::ckpt::Committed> {
        let mut staging = Staging::new(self.staging.folder(), "checkpoint")?;
        let mut writer = FolderWriter::new();
        for tensor in self.folder.tensors() {
            writer.add(&tensor.name, tensor.dtype, &tensor.shape)?;
        }
        writer.write(&mut staging, "", |tensor, data| -> anyhow::Result<()> {
            let mut at = self.offset_of(&tensor.name);
            let mut left = tensor.byte_len();
            while left > 0 {
                self.interrupt.check()?;
                at %= memory.len();
                let len = left.min(memory.len() - at).min(BLOCK);
                data.append(&memory[at..at + len])?;
                (at, left) = (at + len, left - len);
                self.progress.inc(len as u64);
            }
            Ok(())
        })?;
        Ok(staging.commit()?)
    }

    /// Where loads put a tensor: files have another order.
    fn offset_of(&self, name: &str) -> usize {
        self.offsets.get(name).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use meshgrad::ckpt::{Dtype, Error, FileWriter};

    use super::*;

    /// With room for all tensors the checkpoint that is written is the one that was loaded; nothing
    /// of it stays.
    #[test]
    fn the_same_bytes_are_written() {
        let root = tempfile::tempdir().unwrap();
        let model = root.path().join("model");
        std::fs::create_dir(&model).unwrap();
        let mut file = FileWriter::new();
        // The order of the names is not that of the file.
        file.add("a", Dtype::U8, &[5000]).unwrap();
        file.add("b", Dtype::F64, &[700]).unwrap();
        let content = |name: &str| match name {
            "a" => vec![7; 5000],
            _ => (0..5600).map(|at| at as u8).collect(),
        };
        let path = model.join("model.safetensors");
        file.save::<Error>(path, |tensor, data| data.append(&content(&tensor.name)))
            .unwrap();

        let folder = Folder::open(&model).unwrap();
        let mut memory = meshgrad_harness::map_new(3 * PAGE).unwrap();
        for (tensor, at) in folder.tensors().zip([0, 5000]) {
            memory[at..at + tensor.byte_len()].copy_from_slice(&content(&tensor.name));
        }
        let memory = RefCell::new(memory);
        let (progress, interrupt) = (ProgressBar::hidden(), Interrupt::default());
        let parent = root.path().join("disk");
        std::fs::create_dir(&parent).unwrap();
        let writer = Writer::begin(&parent, &folder, &memory, &progress, &interrupt).unwrap();

        let saved = writer.save(&memory.borrow()).unwrap();
        saved.verify().unwrap();
        let saved = Folder::open(saved.path()).unwrap();
        for name in ["a", "b"] {
            assert_eq!(saved.read(name).unwrap(), content(name), "{name}");
        }
        std::fs::remove_dir_all(writer.checkpoint()).unwrap();

        for method in [Method::Cached, Method::Direct] {
            if writer.refusal(method).is_some() {
                continue;
            }
            writer.write_plain(method, &memory.borrow()).unwrap();
            let bytes = std::fs::read(writer.file()).unwrap();
            assert_eq!(bytes, memory.borrow()[..10_600]);
            std::fs::remove_file(writer.file()).unwrap();
        }
        drop(writer);
        assert_eq!(std::fs::read_dir(&parent).unwrap().count(), 0);
    }
}
