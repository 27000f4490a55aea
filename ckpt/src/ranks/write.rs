//! Writing the bytes that a rank owns.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::folder::{COORDINATOR, OwnedFolder};
use super::parts::{Part, PartHasher};
use super::plan::Plan;
use super::{RanksError, ShardMemory};
use crate::exec;
use crate::vfs::{self, Vfs, VfsFile};
use crate::{Error, PlannedFile, Result, TensorInfo};

/// A rank, and the folder that all ranks write to.
pub(super) struct Staged<'a> {
    pub(super) vfs: &'a dyn Vfs,
    pub(super) folder: &'a Path,
    pub(super) rank: usize,
}

/// Writes and syncs the bytes that the rank owns, and returns their digests.
///
/// # Errors
/// [`RanksError::Shard`], [`RanksError::Memory`]; [`Error::LayoutMismatch`], [`Error::NoSpace`],
/// [`Error::Io`].
pub(super) fn write(
    plan: &Plan,
    staged: &Staged<'_>,
    memories: &mut [&mut Box<dyn ShardMemory + '_>],
) -> Result<Vec<Part>> {
    let mut hasher = PartHasher::new(plan.block_bytes);
    let mut number = 0;
    for (folder, memory) in plan.folders.iter().zip(memories) {
        let needed = folder.needed(staged.rank)?;
        let mut shards = OpenShards::new(&needed, &mut ***memory);
        for (path, planned) in folder.layout.files() {
            let is_mine = |tensor: &&TensorInfo| needed.contains_key(&*tensor.name);
            let tensors: Vec<&TensorInfo> = planned.tensors.iter().filter(is_mine).collect();
            if staged.rank == COORDINATOR || !tensors.is_empty() {
                let mut file = Output::open(staged, path, planned, number, &mut hasher)?;
                if staged.rank == COORDINATOR {
                    file.write(0, &planned.start)?;
                }
                for tensor in tensors {
                    shards.open(&needed[&*tensor.name])?;
                    file.write_tensor(folder, tensor, staged.rank, &shards)?;
                    shards.close(&needed[&*tensor.name]);
                }
                file.sync()?;
            }
            number += 1;
        }
    }
    Ok(hasher.finish())
}

/// A file, open for writing.
struct Output<'h> {
    path: PathBuf,
    file: Box<dyn VfsFile>,
    bytes: u64,
    number: usize,
    hasher: &'h mut PartHasher,
}

impl<'h> Output<'h> {
    fn open(
        staged: &Staged<'_>,
        path: &str,
        planned: &PlannedFile,
        number: usize,
        hasher: &'h mut PartHasher,
    ) -> Result<Output<'h>> {
        let path = staged.folder.join(path);
        let opened = staged.vfs.open_to_write(&path).and_then(|file| {
            let bytes = file.size()?;
            Ok((file, bytes))
        });
        let (file, found) = opened.map_err(|error| Error::io("open", &path, error))?;
        if found != planned.bytes {
            let planned = planned.bytes;
            return Err(Error::LayoutMismatch {
                path,
                planned,
                found,
            });
        }
        Ok(Output {
            path,
            file,
            bytes: found,
            number,
            hasher,
        })
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let written = vfs::write_all_at(&*self.file, bytes, offset);
        written.map_err(|error| Error::write(&self.path, bytes.len() as u64, error))?;
        self.hasher.update(self.number, offset, bytes);
        Ok(())
    }

    /// Writes the bytes of a stored tensor that `rank` owns, chunk by chunk.
    fn write_tensor(
        &mut self,
        folder: &OwnedFolder,
        tensor: &TensorInfo,
        rank: usize,
        shards: &OpenShards<'_, '_>,
    ) -> Result<()> {
        let element = tensor.dtype.bits() as u64 / 8;
        let mut bytes = Vec::new();
        for chunk in folder.chunks(tensor) {
            let (copies, runs) = folder.trace(tensor, &chunk)?;
            if runs.iter().all(|run| run.owner != rank) {
                continue;
            }
            bytes.resize((chunk.bytes.end - chunk.bytes.start) as usize, 0);
            for copy in copies.iter().filter(|copy| folder.owner(copy) == rank) {
                let region = folder.source(copy);
                let memory = |_: &str| shards.memory.bytes(&region?.tensor);
                let put = exec::put(folder.graph(), copy, tensor.dtype, &memory, &mut bytes);
                put.map_err(|error| RanksError::Memory {
                    tensor: tensor.name.clone(),
                    error,
                })?;
            }
            for run in runs.iter().filter(|run| run.owner == rank) {
                let [start, end] = [run.start, run.end].map(|it| it * element);
                let own = &bytes[start as usize..end as usize];
                self.write(chunk.bytes.start + start, own)?;
            }
        }
        Ok(())
    }

    fn sync(self) -> Result<()> {
        let synced = self.file.sync_data();
        synced.map_err(|error| Error::write(&self.path, self.bytes, error))
    }
}

/// The shards that are open: from their first use to their last.
struct OpenShards<'m, 's> {
    memory: &'m mut (dyn ShardMemory + 's),
    /// How often each shard is still used.
    uses: BTreeMap<String, usize>,
    open: BTreeSet<String>,
}

impl<'m, 's> OpenShards<'m, 's> {
    fn new(
        needed: &BTreeMap<&str, BTreeSet<&str>>,
        memory: &'m mut (dyn ShardMemory + 's),
    ) -> OpenShards<'m, 's> {
        let mut uses = BTreeMap::new();
        for name in needed.values().flatten() {
            *uses.entry((*name).to_owned()).or_default() += 1;
        }
        OpenShards {
            memory,
            uses,
            open: BTreeSet::new(),
        }
    }

    fn open(&mut self, names: &BTreeSet<&str>) -> Result<(), RanksError> {
        for name in names {
            if self.open.insert((*name).to_owned()) {
                let opened = self.memory.open(name);
                opened.map_err(|cause| RanksError::Shard {
                    tensor: (*name).to_owned(),
                    cause: cause.to_string(),
                })?;
            }
        }
        Ok(())
    }

    fn close(&mut self, names: &BTreeSet<&str>) {
        for name in names {
            let left = self.uses.entry((*name).to_owned()).or_default();
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.memory.close(name);
            }
        }
    }
}
