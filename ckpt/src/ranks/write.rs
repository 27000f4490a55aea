//! Writing the bytes that a rank owns.

use std::path::PathBuf;

use meshgrad_error::Result;

use super::blocks::{Part, PartHasher};
use super::folder::OwnedFolder;
use super::owners::COORDINATOR;
use super::plan::{Plan, Staged};
use super::{ReadShard, not_stored};
use crate::TensorInfo;
use crate::error::{io_error, write_error};
use crate::exec::{self, OpenTensors};
use crate::vfs::{self, VfsFile};

/// Writes and syncs the bytes that the rank owns, and returns their digests. `shards` are those of
/// each folder.
///
/// # Errors
/// When a shard cannot be read from memory, or the files cannot be written.
pub(super) fn write(
    plan: &Plan,
    staged: &Staged<'_>,
    shards: &[&ReadShard<'_>],
) -> Result<Vec<Part>> {
    let mut hasher = PartHasher::new(plan.block_bytes);
    let mut number = 0;
    for (folder, read) in plan.folders.iter().zip(shards) {
        let needed = |tensor: &TensorInfo| folder.stored[&tensor.name].needed.as_ref();
        let mut open = OpenTensors::new(folder.stored.values().filter_map(|it| it.needed.as_ref()));
        let read = |name: &str| read(name).map_err(|cause| not_stored(name, cause));
        for (path, planned) in folder.layout.files() {
            let is_mine = { planned.tensors.iter() }.any(|tensor| needed(tensor).is_some());
            if staged.rank == COORDINATOR || is_mine {
                let mut file = Output::open(staged, path, number, &mut hasher)?;
                if staged.rank == COORDINATOR {
                    file.write(0, &planned.start)?;
                }
                for tensor in &planned.tensors {
                    if let Some(names) = needed(tensor) {
                        open.open(names, read)?;
                        file.write_tensor(folder, tensor, staged.rank, &open)?;
                        open.close(names);
                    }
                }
                let synced = file.file.sync_data();
                synced.map_err(|error| write_error(&file.path, planned.bytes, error))?;
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
    number: usize,
    hasher: &'h mut PartHasher,
}

impl<'h> Output<'h> {
    fn open(
        staged: &Staged<'_>,
        path: &str,
        number: usize,
        hasher: &'h mut PartHasher,
    ) -> Result<Output<'h>> {
        let path = staged.folder.join(path);
        let file = staged.vfs.open_to_write(&path);
        Ok(Output {
            file: file.map_err(|error| io_error("open", &path, error))?,
            path,
            number,
            hasher,
        })
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let written = vfs::write_all_at(&*self.file, bytes, offset);
        written.map_err(|error| write_error(&self.path, bytes.len() as u64, error))?;
        self.hasher.update(self.number, offset, bytes);
        Ok(())
    }

    /// Writes the bytes of a stored tensor that `rank` owns, chunk by chunk.
    fn write_tensor(
        &mut self,
        folder: &OwnedFolder,
        tensor: &TensorInfo,
        rank: usize,
        shards: &OpenTensors<'_>,
    ) -> Result<()> {
        let element = tensor.dtype.bits() as u64 / 8;
        let mut bytes = Vec::new();
        for chunk in folder.chunks(tensor) {
            let (copies, runs) = folder.trace(tensor, &chunk)?;
            if runs.iter().all(|run| run.owner != rank) {
                continue;
            }
            bytes.resize((chunk.bytes.end - chunk.bytes.start) as usize, 0);
            for copy in copies.iter().filter(|copy| folder.regions.owner(copy) == rank) {
                let region = folder.regions.source(copy);
                let memory = |_: &str| shards.bytes(&region?.tensor);
                let put = exec::put(&folder.regions.graph, copy, tensor.dtype, &memory, &mut bytes);
                put.map_err(|error| not_stored(&tensor.name, error))?;
            }
            for run in runs.iter().filter(|run| run.owner == rank) {
                let [start, end] = [run.start, run.end].map(|it| it * element);
                let own = &bytes[start as usize..end as usize];
                self.write(chunk.bytes.start + start, own)?;
            }
        }
        Ok(())
    }
}
