//! The model that a subcommand reads: a folder or file with unique tensor names.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use meshgrad::ckpt::mapping::TensorSpec;
use meshgrad::ckpt::source::{BackendChoice, Sources};
use meshgrad::ckpt::{Committed, Error, Folder, IntegrityError, TensorInfo, scan};

use super::catalog::display_path;

/// An open folder or file.
pub(super) struct Source {
    pub(super) folder: Folder,
    /// The checkpoint that the folder or the file is part of, if it has a manifest.
    checkpoint: Option<Committed>,
    /// Why the manifest does not hold.
    damage: Option<Error>,
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
            let (checkpoint, damage) = manifest_of(path.parent().unwrap_or(Path::new("")))?;
            let lists = |it: &Committed| it.files().any(|(name, _)| path.ends_with(name));
            let checkpoint = checkpoint.filter(lists);
            return Ok(Source::new(Folder::open_file(path)?, checkpoint, damage));
        }
        let (checkpoint, damage) = manifest_of(path)?;
        match Folder::open(path) {
            Ok(folder) => Ok(Source::new(folder, checkpoint, damage)),
            Err(error @ Error::NoModel { .. }) => Source::of_run(path, error),
            Err(error) => Err(error.into()),
        }
    }

    /// As [`Source::open`], but damage that the manifest shows is an error: what is written from
    /// this source gets a manifest of its own.
    pub(super) fn open_intact(path: &Path) -> anyhow::Result<Source> {
        let source = Source::open(path)?;
        match source.damage {
            None => Ok(source),
            Some(error) => Err(anyhow!("{error}; {ACCEPT_CHANGES}")),
        }
    }

    fn new(folder: Folder, checkpoint: Option<Committed>, damage: Option<Error>) -> Source {
        let mismatch = folder.size_mismatch();
        let mismatch = mismatch.map(|mismatch| mismatch.to_string());
        let damaged = damage.iter().map(Error::to_string);
        Source {
            warnings: damaged.chain(mismatch).collect(),
            folder,
            checkpoint,
            damage,
        }
    }

    fn of_run(path: &Path, error: Error) -> anyhow::Result<Source> {
        let mut scan = scan(path)?;
        let incomplete: Vec<String> = scan.incomplete.iter().map(Error::to_string).collect();
        match scan.complete.pop() {
            Some(newest) => {
                let folder = Folder::open(newest.path())?;
                let mut source = Source::new(folder, Some(newest), None);
                source.warnings.extend(incomplete);
                Ok(source)
            }
            None if incomplete.is_empty() => Err(error.into()),
            None => bail!(
                "{} has no complete checkpoint: {}",
                display_path(path),
                incomplete.join("; ")
            ),
        }
    }

    /// Its open files. Reads compare digests if there is a manifest.
    pub(super) fn files(&self) -> Result<Sources, Error> {
        match &self.checkpoint {
            Some(checkpoint) => Sources::open_sealed(&self.folder, BackendChoice::Auto, checkpoint),
            None => Sources::open(&self.folder, BackendChoice::Auto),
        }
    }

    /// The checkpoint, if it has a manifest.
    pub(super) fn checkpoint(&self) -> Option<&Committed> {
        self.checkpoint.as_ref()
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

/// What to do about a manifest that does not fit its files.
pub(super) const ACCEPT_CHANGES: &str = "use another copy; if the files were changed on purpose, \
                                         remove manifest.json";

/// The checkpoint at a path, if it has a manifest, which must hold.
pub(super) fn intact_checkpoint(folder: &Path) -> anyhow::Result<Option<Committed>> {
    match manifest_of(folder)? {
        (checkpoint, None) => Ok(checkpoint),
        (_, Some(error)) => Err(anyhow!("{error}; {ACCEPT_CHANGES}")),
    }
}

/// The checkpoint at a path, or why its manifest does not hold. Neither without a manifest.
fn manifest_of(folder: &Path) -> anyhow::Result<(Option<Committed>, Option<Error>)> {
    let folder = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    match Committed::open(folder) {
        Ok(checkpoint) => Ok((Some(checkpoint), None)),
        Err(Error::Incomplete {
            problem: IntegrityError::NoManifest,
            ..
        }) => Ok((None, None)),
        Err(error @ Error::Incomplete { .. }) => Ok((None, Some(error))),
        Err(error) => Err(error.into()),
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
