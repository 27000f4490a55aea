//! The model that a subcommand reads: a folder or file with unique tensor names.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use meshgrad::ckpt::mapping::TensorSpec;
use meshgrad::ckpt::{Committed, Error, Folder, IntegrityError, TensorInfo, scan};

use super::catalog::display_path;

/// An open folder or file.
pub(super) struct Source {
    pub(super) folder: Folder,
    /// Problems that do not prevent reading.
    pub(super) warnings: Vec<String>,
}

impl Source {
    /// Opens a Hugging Face folder, a safetensors file, a checkpoint, or the newest checkpoint of a
    /// run; reads no data.
    pub(super) fn open(path: &Path) -> anyhow::Result<Source> {
        let metadata =
            fs::metadata(path).with_context(|| format!("cannot open {}", display_path(path)))?;
        if !metadata.is_dir() {
            return Ok(Source::new(Folder::open_file(path)?, Vec::new()));
        }
        let mut warnings = Vec::new();
        match Committed::open(path) {
            Ok(_)
            | Err(Error::Incomplete {
                problem: IntegrityError::NoManifest,
                ..
            }) => {}
            Err(error @ Error::Incomplete { .. }) => warnings.push(error.to_string()),
            Err(error) => return Err(error.into()),
        }
        match Folder::open(path) {
            Ok(folder) => Ok(Source::new(folder, warnings)),
            Err(error @ Error::NoModel { .. }) => Source::of_run(path, error),
            Err(error) => Err(error.into()),
        }
    }

    fn new(folder: Folder, mut warnings: Vec<String>) -> Source {
        let mismatch = folder.size_mismatch();
        warnings.extend(mismatch.map(|mismatch| mismatch.to_string()));
        Source { folder, warnings }
    }

    fn of_run(path: &Path, error: Error) -> anyhow::Result<Source> {
        let mut scan = scan(path)?;
        let incomplete: Vec<String> = scan.incomplete.iter().map(Error::to_string).collect();
        match scan.complete.pop() {
            Some(newest) => Ok(Source::new(Folder::open(newest.path())?, incomplete)),
            None if incomplete.is_empty() => Err(error.into()),
            None => bail!(
                "{} has no complete checkpoint: {}",
                display_path(path),
                incomplete.join("; ")
            ),
        }
    }

    /// The path, if it is a folder and not a single file.
    pub(super) fn folder_path(&self) -> Option<&Path> {
        let path = self.folder.path();
        let is_file = self.folder.files().iter().any(|file| file.path() == path);
        (!is_file).then_some(path)
    }

    /// Opens the same path again.
    pub(super) fn reopen(&self) -> Result<Folder, Error> {
        match self.folder_path() {
            Some(folder) => Folder::open(folder),
            None => Folder::open_file(self.folder.path()),
        }
    }

    /// Its tensors.
    pub(super) fn specs(&self) -> Vec<TensorSpec> {
        self.folder.tensors().map(TensorSpec::from).collect()
    }

    /// Its size, for a report.
    pub(super) fn summary(&self) -> Summary {
        Summary {
            path: self.folder.path().to_owned(),
            tensors: self.folder.tensors().len() as u64,
            files: self.folder.files().len() as u64,
            bytes: self.folder.tensors().map(bytes_of).sum(),
        }
    }
}

fn bytes_of(tensor: &TensorInfo) -> u64 {
    tensor.byte_len() as u64
}

/// The size of a folder of tensors.
#[derive(serde::Serialize)]
pub(super) struct Summary {
    #[serde(serialize_with = "as_text")]
    pub(super) path: PathBuf,
    pub(super) tensors: u64,
    pub(super) files: u64,
    pub(super) bytes: u64,
}

fn as_text<S: serde::Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

impl Summary {
    /// The cells of a row: path, tensors, bytes, files.
    pub(super) fn row(&self, title: &str) -> [String; 5] {
        use super::size::{bytes, counted};
        [
            title.to_owned(),
            display_path(&self.path),
            counted(self.tensors, "tensor"),
            bytes(self.bytes),
            counted(self.files, "file"),
        ]
    }
}
