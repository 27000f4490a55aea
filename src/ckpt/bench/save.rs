//! Times saves by meshgrad against plain writes of the same number of bytes, both synced.
//!
//! All files are in one hidden folder: a staged checkpoint that is never committed. It is locked,
//! and removed on drop. If the process is killed, `gc` removes it.

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
use meshgrad::ckpt::mapping::TensorSpec;
use meshgrad::ckpt::{FolderWriter, Staging};
use meshgrad_harness::{PAGE, open_direct};

use super::baseline::BLOCK;
use crate::ckpt::interrupt::Interrupt;
use crate::ckpt::source::bytes_of;
use crate::ckpt::stream::file_shape;
use crate::table::display_path;

/// How the bytes are written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    /// One file through the page cache, then a sync.
    Cached,
    /// One file with O_DIRECT, then a sync.
    Direct,
    /// A committed checkpoint with digests.
    Save,
}

/// Writes into a temporary folder.
pub(super) struct Writer<'a> {
    staging: Staging,
    tensors: Vec<TensorSpec>,
    /// The offset of each tensor in memory, if all tensors fit.
    offsets: BTreeMap<String, usize>,
    bytes: u64,
    memory: &'a RefCell<MmapMut>,
    progress: &'a ProgressBar,
    interrupt: &'a Interrupt,
}

impl<'a> Writer<'a> {
    /// Creates the folder in `parent`, which must have space for the tensors. Writes take their
    /// bytes from `memory`, repeatedly if it is smaller.
    pub(super) fn new(
        parent: &Path,
        tensors: Vec<TensorSpec>,
        memory: &'a RefCell<MmapMut>,
        progress: &'a ProgressBar,
        interrupt: &'a Interrupt,
    ) -> anyhow::Result<Writer<'a>> {
        ensure!(
            parent.is_dir(),
            "{} is not a folder; --write takes a folder on the disk to measure",
            display_path(parent)
        );
        let staging = Staging::new(parent, "meshgrad-bench")?;
        let (mut offsets, mut bytes) = (BTreeMap::new(), 0);
        for tensor in &tensors {
            offsets.insert(tensor.name.clone(), bytes as usize);
            bytes += bytes_of(tensor);
        }
        staging.check_space(bytes)?;
        Ok(Writer { staging, tensors, offsets, bytes, memory, progress, interrupt })
    }

    /// Why the file system does not support this method, or `None`.
    pub(super) fn refusal(&self, method: Method) -> Option<String> {
        let path = self.file();
        let tried = || -> std::io::Result<()> {
            let mut options = OpenOptions::new();
            let file = open_direct(options.write(true).create_new(true), &path)?;
            file.write_all_at(&self.memory.borrow()[..PAGE], 0)
        };
        let refused = (method == Method::Direct).then(tried)?.err();
        let _ = std::fs::remove_file(&path);
        refused.map(|error| format!("the file system does not support O_DIRECT writes: {error}"))
    }

    fn file(&self) -> PathBuf {
        self.staging.folder().join("plain")
    }

    /// Seconds of one write, without the removal of its files.
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
        .context("cannot remove the written files")?;
        // Settles the disk before the next sample.
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
        for tensor in &self.tensors {
            writer.add(&tensor.name, tensor.dtype, &file_shape(&tensor.shape))?;
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

    /// The offset in memory to which loads write a tensor. The order of tensors differs from the
    /// order in the files.
    fn offset_of(&self, name: &str) -> usize {
        self.offsets.get(name).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use meshgrad::ckpt::{Dtype, Error, FileWriter, Folder};

    use super::*;

    /// If all tensors fit, the saved checkpoint equals the loaded one, and no files remain.
    #[test]
    fn a_save_writes_the_loaded_bytes() {
        let root = tempfile::tempdir().unwrap();
        let model = root.path().join("model");
        std::fs::create_dir(&model).unwrap();
        let mut file = FileWriter::new();
        // Names are not in the order of the file.
        file.add("a", Dtype::U8, &[5000]).unwrap();
        file.add("b", Dtype::F64, &[700]).unwrap();
        let content = |name: &str| match name {
            "a" => vec![7; 5000],
            _ => (0..5600).map(|at| at as u8).collect(),
        };
        let path = model.join("model.safetensors");
        file.save::<Error>(path, |tensor, data| data.append(&content(&tensor.name))).unwrap();

        let folder = Folder::open(&model).unwrap();
        let mut memory = meshgrad_harness::map_new(3 * PAGE).unwrap();
        for (tensor, at) in folder.tensors().zip([0, 5000]) {
            memory[at..at + tensor.byte_len()].copy_from_slice(&content(&tensor.name));
        }
        let memory = RefCell::new(memory);
        let (progress, interrupt) = (ProgressBar::hidden(), Interrupt::default());
        let parent = root.path().join("disk");
        std::fs::create_dir(&parent).unwrap();
        let tensors = folder.tensors().map(TensorSpec::from).collect();
        let writer = Writer::new(&parent, tensors, &memory, &progress, &interrupt).unwrap();

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
