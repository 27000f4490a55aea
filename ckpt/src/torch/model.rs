//! A model, and how PyTorch stored it.

use std::ops::Range;
use std::path::PathBuf;

use crate::Assembly;

/// A model that PyTorch wrote.
#[derive(Debug)]
pub struct TorchModel {
    /// Its tensors.
    pub assembly: Assembly,
    /// The names of values that are not tensors and are left out, sorted.
    pub left_out: Vec<String>,
    /// How it is stored.
    pub format: Format,
    /// The zip archives with tensors.
    pub(super) archives: Vec<ArchiveAt>,
}

/// How PyTorch stores a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// A file of `torch.save`.
    File,
    /// A folder with `pytorch_model.bin`, or an index of several such files.
    Folder,
    /// A folder of `torch.distributed.checkpoint`.
    Distributed,
}

/// A zip archive in a file.
#[derive(Clone, Debug)]
pub(super) struct ArchiveAt {
    pub(super) file: PathBuf,
    pub(super) range: Range<u64>,
}
