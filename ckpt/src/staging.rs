//! Writing a checkpoint that exists completely or not at all.
//!
//! ```text
//! stage    mkdir  .step-000123.tmp-<unique>/      locked while its process lives
//!          create and allocate files of known size: a full disk is detected now
//! write    each file: write, digest, sync         by this process and by others (Writer)
//! seal     reports cover every shared file; manifest.json, sync; sync the folders
//! publish  rename to step-000123, never replacing anything; sync the parent
//! ```
//!
//! A kill before the rename leaves a hidden folder that [`sweep`](crate::sweep) removes; a kill
//! after it leaves the new checkpoint. An error of a sync is final: the system has dropped the
//! pages, so the file and the save are lost.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use meshgrad_error::{Error, Result, ensure, error};
use serde_json::Value;

use crate::blocks::{Content, MAX_BLOCK_BYTES};
use crate::coverage::check_coverage;
use crate::disk;
use crate::error::{already_exists, bad_file_name, io_error, write_error};
use crate::manifest::{About, MANIFEST_FILE};
use crate::merged_blocks;
use crate::names::{Listed, TAKEN, check_file_name, check_relative_path};
use crate::output_file::{self, OutputFile};
use crate::seal::Sealer;
use crate::space;
use crate::staging_folder::{self, NameState};
use crate::temp_name::{self, TempKind};
use crate::vfs::{self, Lock, RealFs, Vfs, VfsFile};
use crate::{Committed, PlannedFile, SharedFile, TensorInfo, WriteReport, Writer};

/// The writer name of the staging itself.
const COORDINATOR: &str = "coordinator";

/// A checkpoint that is being written, in a hidden folder in its parent folder.
///
/// Dropping it without [`Staging::commit`] removes the folder.
#[derive(Debug)]
pub struct Staging {
    vfs: Arc<dyn Vfs>,
    target: PathBuf,
    folder: PathBuf,
    block_bytes: u64,
    about: About,
    written: BTreeMap<String, Content>,
    /// Sizes of files that are allocated but not yet written.
    reserved: BTreeMap<String, u64>,
    /// Sizes of the files that are written in parts.
    shared: BTreeMap<String, u64>,
    /// The tensors of planned files, for error messages.
    tensors: BTreeMap<String, Vec<TensorInfo>>,
    own: Option<Writer>,
    expected: BTreeSet<String>,
    reports: BTreeMap<String, WriteReport>,
    is_published: bool,
    /// Shows other processes that this save is running; the system releases it when the process
    /// exits.
    _lock: Option<Lock>,
}

impl Staging {
    /// Starts the checkpoint `parent/name`; `parent` must exist.
    ///
    /// # Errors
    /// When the path already exists, unless it is an incomplete checkpoint of a step
    /// ([`step_name`](crate::step_name)), which the commit replaces; when `name` is not a plain
    /// name, or the folder cannot be created.
    pub fn new(parent: impl AsRef<Path>, name: &str) -> Result<Staging> {
        Staging::new_in(Arc::new(RealFs), parent, name)
    }

    /// [`Staging::new`] in any file system.
    ///
    /// # Errors
    /// As [`Staging::new`].
    pub fn new_in(vfs: Arc<dyn Vfs>, parent: impl AsRef<Path>, name: &str) -> Result<Staging> {
        let parent = parent.as_ref();
        let refuse = |problem| bad_file_name(parent, name, problem);
        check_file_name(name).map_err(refuse)?;
        if name.starts_with('.') {
            return Err(refuse(TAKEN));
        }

        let target = parent.join(name);
        staging_folder::name_state(&vfs, &target)?;

        let (folder, lock) = staging_folder::create_locked(&*vfs, &target)?;
        Ok(Staging {
            vfs,
            target,
            folder,
            block_bytes: MAX_BLOCK_BYTES,
            about: About::new(),
            written: BTreeMap::new(),
            reserved: BTreeMap::new(),
            shared: BTreeMap::new(),
            tensors: BTreeMap::new(),
            own: None,
            expected: BTreeSet::new(),
            reports: BTreeMap::new(),
            is_published: false,
            _lock: lock,
        })
    }

    /// Sets the size of digested blocks, at least 1 and at most [`MAX_BLOCK_BYTES`].
    pub fn block_bytes(mut self, bytes: u64) -> Staging {
        self.block_bytes = bytes.clamp(1, MAX_BLOCK_BYTES);
        self
    }

    /// The hidden folder. Files added to it by other means are published with the rest.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Adds a value to the manifest; the last value of a key counts.
    pub fn set_about(&mut self, key: &str, value: impl Into<Value>) {
        self.about.insert(key.to_owned(), value.into());
    }

    /// Fails with [`NoSpace`](crate::NoSpace) when the file system has less than `bytes` plus 5%
    /// left. Call it with the total size before writing.
    ///
    /// # Errors
    /// See above.
    pub fn check_space(&self, bytes: u64) -> Result<()> {
        space::check_space(&self.folder, bytes, self.vfs.space(&self.folder))
    }

    /// Allocates the space of a file that [`Staging::write_with`] will write, so that a full disk
    /// is detected before the first byte.
    ///
    /// # Errors
    /// For a path that leaves the folder or already exists; when the file cannot be created, or the
    /// disk is full ([`NoSpace`](crate::NoSpace)).
    pub fn reserve(&mut self, path: &str, bytes: u64) -> Result<()> {
        // The file is closed again, because there may be more files than a process may have open.
        self.allocate(path, bytes)?;
        self.reserved.insert(path.to_owned(), bytes);
        Ok(())
    }

    /// Writes and syncs a file; `path` is below the folder, with components separated by `/`.
    ///
    /// # Errors
    /// As [`Staging::write_with`].
    pub fn write(&mut self, path: &str, bytes: &[u8]) -> Result<()> {
        self.write_with(path, |file| file.append(bytes))
    }

    /// Writes and syncs a file whose bytes `fill` appends.
    ///
    /// # Errors
    /// Errors of `fill`; as [`Staging::reserve`]; when the file was reserved with another size.
    pub fn write_with<E: From<Error>>(
        &mut self,
        path: &str,
        fill: impl FnOnce(&mut OutputFile) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let full = self.full_path(path)?;
        let content = match self.reserved.remove(path) {
            Some(bytes) => {
                let file = self.vfs.open_to_write(&full);
                let file = file.map_err(|error| io_error("open", &full, error))?;
                let file = OutputFile::new(full.clone(), file, self.block_bytes);
                let content = output_file::fill_and_finish(&*self.vfs, file, fill)?;
                check_length(&full, bytes, content.bytes).inspect_err(|_| {
                    let _ = self.vfs.unlink(&full);
                })?;
                content
            }
            None => {
                self.make_folder_of(path)?;
                output_file::write_new(&*self.vfs, &full, self.block_bytes, fill)?
            }
        };
        self.written.insert(path.to_owned(), content);
        Ok(())
    }

    /// States the content of a reserved file that other handles have written and synced.
    ///
    /// # Errors
    /// When the file was reserved with another size.
    pub(crate) fn complete(&mut self, path: &str, content: Content) -> Result<()> {
        let reserved = self.reserved.remove(path).unwrap_or(0);
        check_length(&self.folder.join(path), reserved, content.bytes)?;
        self.written.insert(path.to_owned(), content);
        Ok(())
    }

    /// Creates a file of `bytes` bytes that this process and others ([`Writer::join`]) write in
    /// parts, in any order and at the same time. Returns this process's handle.
    ///
    /// # Errors
    /// As [`Staging::reserve`].
    pub fn create(&mut self, path: &str, bytes: u64) -> Result<SharedFile> {
        let file = self.allocate(path, bytes)?;
        self.shared.insert(path.to_owned(), bytes);

        let (vfs, folder, block_bytes) = (&self.vfs, &self.folder, self.block_bytes);
        let own = self.own.get_or_insert_with(|| {
            Writer::new(Arc::clone(vfs), folder.clone(), COORDINATOR, block_bytes)
        });
        Ok(own.add(path, file, bytes))
    }

    /// Creates safetensors files and writes their headers; their tensors are written in parts.
    pub(crate) fn create_planned<'a>(
        &mut self,
        files: impl Iterator<Item = (&'a str, &'a PlannedFile)> + Clone,
    ) -> Result<()> {
        let mut created = Vec::new();
        for (path, planned) in files.clone() {
            created.push(self.create(path, planned.bytes)?);
            let tensors = planned.tensors.clone();
            self.tensors.insert(path.to_owned(), tensors);
        }
        for (file, (_, planned)) in created.iter().zip(files) {
            file.write_at(0, &planned.start)?;
        }
        Ok(())
    }

    /// Adds expected writers. The commit fails if one of them does not report.
    pub fn expect_writers<N: Into<String>>(&mut self, names: impl IntoIterator<Item = N>) {
        self.expected.extend(names.into_iter().map(Into::into));
    }

    /// Accepts a writer's report.
    ///
    /// # Errors
    /// When the writer has already reported, or the report names impossible files or blocks.
    pub fn accept(&mut self, report: WriteReport) -> Result<()> {
        let (writer, path) = (&report.writer, self.target.display());
        ensure!(
            !self.reports.contains_key(writer),
            Invalid,
            "invalid report of writer `{writer}` for {path}: a writer with this name has already \
             reported; names must be unique"
        );
        report.check(&self.shared).map_err(|problem| {
            problem.context(format_args!("invalid report of writer `{writer}` for {path}"))
        })?;
        self.reports.insert(report.writer.clone(), report);
        Ok(())
    }

    fn allocate(&self, path: &str, bytes: u64) -> Result<Box<dyn VfsFile>> {
        let full = self.full_path(path)?;
        self.make_folder_of(path)?;
        let file = output_file::create_new(&*self.vfs, &full)?;
        match file.allocate(bytes) {
            Ok(()) => Ok(file),
            Err(error) => {
                let _ = self.vfs.unlink(&full);
                Err(write_error(&full, bytes, error))
            }
        }
    }

    /// Creates the parent folders of a file.
    fn make_folder_of(&self, path: &str) -> Result<()> {
        let Some(below) = Path::new(path).parent() else {
            return Ok(());
        };
        vfs::make_dirs(&*self.vfs, &self.folder, below)
            .map_err(|error| write_error(&self.folder.join(below), 0, error))
    }

    fn full_path(&self, path: &str) -> Result<PathBuf> {
        let problem = match check_relative_path(path) {
            Err(problem) => problem,
            Ok(()) if path == MANIFEST_FILE => TAKEN,
            Ok(()) => return Ok(self.folder.join(path)),
        };
        Err(bad_file_name(&self.folder, path, problem))
    }

    /// Seals the checkpoint and renames it to its final name. All of it is on disk when this
    /// returns.
    ///
    /// # Errors
    /// When writers or parts are missing, another process has published this name meanwhile or has
    /// changed a file, or the disk is full or fails. Nothing is published then, with one exception:
    /// after a failed sync of the parent the checkpoint exists, but a power cut may still undo it.
    pub fn commit(mut self) -> Result<Committed> {
        let files = self.finish_files()?;
        let sealer =
            Sealer { vfs: &*self.vfs, folder: &self.folder, block_bytes: self.block_bytes };
        sealer.seal(files, std::mem::take(&mut self.about))?;
        self.publish()
    }

    /// Completes all files and returns their content.
    fn finish_files(&mut self) -> Result<BTreeMap<String, Content>> {
        for (path, &bytes) in &self.reserved {
            check_length(&self.folder.join(path), bytes, 0)?;
        }
        if let Some(own) = self.own.take() {
            self.accept(own.finish()?)?;
        }

        let is_missing = |name: &&String| !self.reports.contains_key(*name);
        let missing: Vec<&String> = self.expected.iter().filter(is_missing).collect();
        ensure!(
            missing.is_empty(),
            Invalid,
            "cannot seal {}: no report from {}; they failed or have not finished",
            self.target.display(),
            Listed(&missing)
        );

        let mut files = std::mem::take(&mut self.written);
        for (path, &bytes) in &self.shared {
            files.insert(path.clone(), self.covered_content(path, bytes)?);
        }
        Ok(files)
    }

    fn covered_content(&self, path: &str, bytes: u64) -> Result<Content> {
        let mut parts = Vec::new();
        for (writer, report) in &self.reports {
            let blocks = report.parts.get(path).into_iter().flatten();
            parts.extend(blocks.map(|block| (writer.as_str(), *block)));
        }
        let blocks = check_coverage(bytes, parts).map_err(|uncovered| {
            let tensors = match &self.tensors_in(path, &uncovered.range)[..] {
                [] => String::new(),
                [name] => format!("; they belong to tensor `{}`", name.escape_debug()),
                names => format!("; they belong to tensors {}", Listed(names)),
            };
            let path = self.folder.join(path);
            error!(Invalid, "{} is not complete: {}{tensors}", path.display(), uncovered.problem)
        })?;
        let blocks = match merged_blocks::are_small(&blocks, bytes) {
            true => merged_blocks::merge_in_folder(
                &*self.vfs,
                &self.folder,
                path,
                &blocks,
                self.block_bytes,
            )?,
            false => blocks,
        };
        Ok(Content { bytes, blocks })
    }

    /// The tensors that contain some of these bytes, if known.
    fn tensors_in(&self, path: &str, bytes: &Range<u64>) -> Vec<&str> {
        let tensors = self.tensors.get(path).into_iter().flatten();
        tensors
            .filter(|it| it.range.start < bytes.end && bytes.start < it.range.end)
            .map(|it| it.name.as_str())
            .collect()
    }

    fn publish(mut self) -> Result<Committed> {
        let replaced = self.move_incomplete_aside()?;

        let renamed = self.vfs.rename_no_replace(&self.folder, &self.target);
        renamed.map_err(|error| match error.kind() {
            io::ErrorKind::DirectoryNotEmpty
            | io::ErrorKind::AlreadyExists
            | io::ErrorKind::NotADirectory => already_exists(&self.target),
            _ => io_error("publish", &self.target, error),
        })?;
        self.is_published = true;

        let parent = disk::folder_of(&self.target);
        self.vfs.sync_dir(parent).map_err(|error| io_error("sync", parent, error))?;

        if let Some(replaced) = replaced {
            // On failure, the next call of `sweep` removes it.
            let _ = vfs::remove_all(&*self.vfs, &replaced);
        }
        Committed::open_in(Arc::clone(&self.vfs), &self.target)
    }

    /// Moves an incomplete checkpoint with this name aside and returns its temporary path.
    fn move_incomplete_aside(&self) -> Result<Option<PathBuf>> {
        if staging_folder::name_state(&self.vfs, &self.target)? == NameState::Free {
            return Ok(None);
        }
        let trash = temp_name::path(&*self.vfs, &self.target, TempKind::Trash);
        self.vfs
            .rename_no_replace(&self.target, &trash)
            .map_err(|error| io_error("move aside", &self.target, error))?;
        Ok(Some(trash))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.is_published {
            // On failure, the next call of `sweep` removes it.
            let _ = vfs::remove_all(&*self.vfs, &self.folder);
        }
    }
}

fn check_length(path: &Path, expected: u64, actual: u64) -> Result<()> {
    ensure!(
        expected == actual,
        Invalid,
        "{} was reserved with {expected} bytes, but {actual} were written; reserve the final size",
        path.display()
    );
    Ok(())
}
