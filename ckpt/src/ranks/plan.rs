//! What all ranks compute from the shards of all ranks: the files and the owner of every byte.

use serde::{Deserialize, Serialize};

use super::folder::OwnedFolder;
use super::owners::{self, HeldTensors};
use super::{RanksError, Shard};
use crate::mapping::Mapping;
use crate::{Digest, FolderWriter, PlannedFile, Result};

/// The shards of a rank, for each folder.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stated {
    pub(super) folders: Vec<(String, Vec<Shard>)>,
}

/// How a folder is stored; equal on all ranks.
pub(super) struct FolderForm<'a> {
    pub(super) path: &'a str,
    pub(super) mapping: &'a Mapping,
    /// The writer without tensors.
    pub(super) files: &'a FolderWriter,
}

/// The files of a checkpoint that contain tensors.
pub(super) struct Plan {
    pub(super) folders: Vec<OwnedFolder>,
    pub(super) block_bytes: u64,
}

/// The tensors of each folder, with the rank that writes each region.
///
/// # Errors
/// [`RanksError::Folders`]; as [`owners::collect`].
pub(super) fn held(stated: &[Stated]) -> Result<Vec<HeldTensors>, RanksError> {
    check_folders(stated)?;
    let folders = stated.first().map_or(0, |rank| rank.folders.len());
    let shards = |folder: usize| stated.iter().map(move |rank| &rank.folders[folder].1[..]);
    let held = (0..folders).map(|folder| owners::collect(shards(folder)));
    let mut held = held.collect::<Result<Vec<HeldTensors>, RanksError>>()?;
    owners::choose(&mut held, stated.len());
    Ok(held)
}

impl Plan {
    /// # Errors
    /// As [`OwnedFolder::new`].
    pub(super) fn new(
        forms: &[FolderForm<'_>],
        held: &[HeldTensors],
        block_bytes: u64,
    ) -> Result<Plan> {
        let folders = forms.iter().zip(held).map(|(form, tensors)| {
            OwnedFolder::new(form.path, tensors, form.mapping, form.files.clone())
        });
        Ok(Plan {
            folders: folders.collect::<Result<_>>()?,
            block_bytes,
        })
    }

    /// All files with tensors, with their folders. Files are numbered in this order.
    pub(super) fn files(&self) -> impl Iterator<Item = (&OwnedFolder, &str, &PlannedFile)> {
        self.folders.iter().flat_map(|folder| {
            let files = folder.layout.files();
            files.map(move |(path, file)| (folder, path, file))
        })
    }

    /// A digest of all files and how they are written.
    pub(super) fn digest(&self, forms: &[FolderForm<'_>]) -> Digest {
        let layouts = self.folders.iter().map(|folder| folder.layout.digest());
        let mappings = forms.iter().map(|form| format!("{:?}", form.mapping));
        let text: Vec<String> = layouts
            .zip(mappings)
            .map(|(layout, mapping)| format!("{layout} {mapping}"))
            .collect();
        Digest::of(format!("{} {}", self.block_bytes, text.join("\n")).as_bytes())
    }
}

/// Checks that all ranks save the same folders.
fn check_folders(stated: &[Stated]) -> Result<(), RanksError> {
    let paths = |rank: &Stated| -> Vec<String> {
        rank.folders.iter().map(|(path, _)| path.clone()).collect()
    };
    let all: Vec<Vec<String>> = stated.iter().map(paths).collect();
    match all.iter().position(|paths| *paths != all[0]) {
        None => Ok(()),
        Some(rank) => Err(RanksError::Folders {
            rank,
            first: all[0].clone(),
            other: all[rank].clone(),
        }),
    }
}
