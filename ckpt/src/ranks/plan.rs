//! What all ranks compute from the shards of all ranks: the files and the owner of every byte.

use std::path::Path;

use meshgrad_error::Result;

use super::folder::OwnedFolder;
use super::owners::{HeldTensor, HeldTensors};
use super::{ReadShard, Shard};
use crate::mapping::Mapping;
use crate::vfs::Vfs;
use crate::{Digest, FolderWriter, PlannedFile};

/// A rank, and the folder that all ranks write to.
pub(super) struct Staged<'a> {
    pub(super) vfs: &'a dyn Vfs,
    pub(super) folder: &'a Path,
    pub(super) rank: usize,
}

/// The tensors of a model on this rank, and how they are stored.
pub(super) struct ModelFolder<'m> {
    pub(super) path: String,
    pub(super) mapping: Mapping,
    pub(super) shards: Vec<Shard>,
    pub(super) read: ReadShard<'m>,
}

/// The files of a checkpoint that contain tensors.
pub(super) struct Plan {
    pub(super) folders: Vec<OwnedFolder>,
    pub(super) block_bytes: u64,
    /// Of all files and how they are written.
    pub(super) digest: Digest,
}

impl Plan {
    /// The plan as `rank` executes it. `writer` has no tensors yet.
    ///
    /// # Errors
    /// As [`OwnedFolder::new`].
    pub(super) fn new(
        folders: &[ModelFolder<'_>],
        held: &HeldTensors,
        writer: &FolderWriter,
        block_bytes: u64,
        rank: usize,
    ) -> Result<Plan> {
        let mut text = block_bytes.to_string();
        let mut owned = Vec::with_capacity(folders.len());
        for (number, ModelFolder { path, mapping, .. }) in folders.iter().enumerate() {
            let of_folder = (number, String::new())..(number + 1, String::new());
            let tensors: Vec<&HeldTensor> = held.range(of_folder).map(|(_, it)| it).collect();
            let folder = OwnedFolder::new(path, &tensors, mapping, writer.clone(), rank)?;
            text += &format!("\n{} {mapping:?}", folder.layout.digest());
            owned.push(folder);
        }
        Ok(Plan { folders: owned, block_bytes, digest: Digest::of(text.as_bytes()) })
    }

    /// All files with tensors, with their folders. Files are numbered in this order.
    pub(super) fn files(&self) -> impl Iterator<Item = (&OwnedFolder, &str, &PlannedFile)> {
        self.folders.iter().flat_map(|folder| {
            let files = folder.layout.files();
            files.map(move |(path, file)| (folder, path, file))
        })
    }
}
