//! One of several writers of a checkpoint, in this process or another.
//!
//! ```text
//!   coordinator                         each writer (rank)
//!   Staging::new
//!   staging.create(path, len) ...
//!        folder  ---------------------> Writer::join(folder, "rank 3")
//!                                       writer.file(path)
//!                                       file.write_at(offset, bytes) ...
//!   staging.accept(report)  <---------- writer.finish()
//!   staging.commit()
//! ```
//!
//! Writers write their parts directly to the final files: nothing is gathered or copied again. The
//! caller transports the folder's path and the reports; both are small, plain data. If a writer
//! dies before it reports, the coordinator detects this and nothing is published.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use meshgrad_error::{Result, bail};

use crate::blocks::MAX_BLOCK_BYTES;
use crate::error::{bad_file_name, io_error};
use crate::names::check_relative_path;
use crate::temp_name::TempKind;
use crate::vfs::{FileKind, RealFs, Vfs, VfsFile};
use crate::{SharedFile, WriteReport};

/// Checks that a checkpoint is being staged in `folder`.
///
/// # Errors
/// When no checkpoint is being staged there.
pub(crate) fn check_staged(vfs: &dyn Vfs, folder: &Path) -> Result<()> {
    let has_staging_name = folder
        .file_name()
        .and_then(|name| TempKind::of(name.to_str()?))
        .is_some_and(|kind| kind == TempKind::Staging);

    match vfs.metadata(folder) {
        Ok(metadata) if has_staging_name && metadata.kind == FileKind::Folder => Ok(()),
        _ => bail!(
            Invalid,
            "no checkpoint is being staged in {}; pass the coordinator's `Staging::folder` while \
             it is being written",
            folder.display()
        ),
    }
}

/// A writer of parts of files.
///
/// ```
/// use meshgrad_ckpt::{Staging, Writer, step_name};
///
/// let run = tempfile::tempdir()?;
/// let mut staging = Staging::new(run.path(), &step_name(7))?;
/// staging.create("weights.bin", 8)?;
/// staging.expect_writers(["rank 0", "rank 1"]);
///
/// // Usually processes, here threads.
/// for rank in 0..2 {
///     let mut writer = Writer::join(staging.folder(), &format!("rank {rank}"))?;
///     writer.file("weights.bin")?.write_at(4 * rank, &[rank as u8; 4])?;
///     staging.accept(writer.finish()?)?;
/// }
///
/// let committed = staging.commit()?;
/// assert_eq!(std::fs::read(committed.path().join("weights.bin"))?, [0, 0, 0, 0, 1, 1, 1, 1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Writer {
    vfs: Arc<dyn Vfs>,
    folder: PathBuf,
    name: String,
    block_bytes: u64,
    files: BTreeMap<String, SharedFile>,
}

impl Writer {
    /// Joins the checkpoint that is staged in `folder`; `name` identifies this writer.
    ///
    /// # Errors
    /// When no checkpoint is being staged there.
    pub fn join(folder: impl AsRef<Path>, name: &str) -> Result<Writer> {
        Writer::join_in(Arc::new(RealFs), folder, name)
    }

    /// [`Writer::join`] in any file system.
    ///
    /// # Errors
    /// As [`Writer::join`].
    pub fn join_in(vfs: Arc<dyn Vfs>, folder: impl AsRef<Path>, name: &str) -> Result<Writer> {
        let folder = folder.as_ref();
        check_staged(&*vfs, folder)?;
        Ok(Writer::new(vfs, folder.to_owned(), name, MAX_BLOCK_BYTES))
    }

    pub(crate) fn new(vfs: Arc<dyn Vfs>, folder: PathBuf, name: &str, block_bytes: u64) -> Writer {
        Writer { vfs, folder, name: name.to_owned(), block_bytes, files: BTreeMap::new() }
    }

    /// Sets the size of digested blocks, at least 1 and at most [`MAX_BLOCK_BYTES`].
    pub fn block_bytes(mut self, bytes: u64) -> Writer {
        self.block_bytes = bytes.clamp(1, MAX_BLOCK_BYTES);
        self
    }

    /// The folder that the checkpoint is staged in.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Opens a file that the coordinator created.
    ///
    /// # Errors
    /// For a path that leaves the folder; when the file cannot be opened.
    pub fn file(&mut self, path: &str) -> Result<SharedFile> {
        if let Some(file) = self.files.get(path) {
            return Ok(file.clone());
        }
        let checked = check_relative_path(path);
        checked.map_err(|problem| bad_file_name(&self.folder, path, problem))?;

        let full = self.folder.join(path);
        let opened = self.vfs.open_to_write(&full).and_then(|file| {
            let bytes = file.size()?;
            Ok((file, bytes))
        });
        let (file, bytes) = opened.map_err(|error| io_error("open", &full, error))?;
        Ok(self.add(path, file, bytes))
    }

    pub(crate) fn add(&mut self, path: &str, file: Box<dyn VfsFile>, bytes: u64) -> SharedFile {
        let shared = SharedFile::new(self.folder.join(path), file, bytes, self.block_bytes);
        self.files.insert(path.to_owned(), shared.clone());
        shared
    }

    /// Waits until everything written is on disk, and returns the report. Later writes fail.
    ///
    /// # Errors
    /// When the data cannot be written ([`NoSpace`](crate::NoSpace) if the disk is full): it is
    /// lost, and a retry must start with a new checkpoint.
    pub fn finish(self) -> Result<WriteReport> {
        let mut parts = BTreeMap::new();
        for (path, file) in self.files {
            parts.insert(path, file.finish()?);
        }
        let writer = self.name;
        Ok(WriteReport { writer, parts })
    }
}
