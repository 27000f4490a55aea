//! A checkpoint that is known to be complete.
//!
//! Only a commit, discovery and [`Committed::open`] (which performs the checks of discovery on one
//! folder) create a [`Committed`]. A function that takes one cannot receive an incomplete
//! checkpoint.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use meshgrad_error::Result;

use crate::blocks::Block;
use crate::error::io_error;
use crate::integrity::{Incomplete, IntegrityError};
use crate::manifest::{About, MANIFEST_FILE, MAX_MANIFEST_BYTES, Manifest};
use crate::step_name::step_of;
use crate::verify;
use crate::vfs::{self, FileKind, Vfs};

/// A complete checkpoint: sealed, with every file present and of its recorded size.
#[derive(Clone)]
pub struct Committed {
    vfs: Arc<dyn Vfs>,
    path: PathBuf,
    manifest: Manifest,
}

impl fmt::Debug for Committed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files = self.manifest.files.len();
        write!(f, "Committed({}, {files} files)", self.path.display())
    }
}

/// Equal if they have the same folder and the same manifest.
impl PartialEq for Committed {
    fn eq(&self, other: &Committed) -> bool {
        (&self.path, &self.manifest) == (&other.path, &other.manifest)
    }
}

impl Eq for Committed {}

impl Committed {
    /// The checkpoint at `path`; `None` when nothing exists there (or no longer does).
    pub(crate) fn find(vfs: &Arc<dyn Vfs>, path: &Path) -> Result<Option<Committed>> {
        let is_gone =
            || matches!(vfs.metadata(path), Err(e) if e.kind() == io::ErrorKind::NotFound);
        match Committed::check(Arc::clone(vfs), path) {
            Err(error) if error.details::<Incomplete>().is_some() && is_gone() => Ok(None),
            checked => checked.map(Some),
        }
    }

    fn check(vfs: Arc<dyn Vfs>, path: &Path) -> Result<Committed> {
        let path = path.to_owned();
        let manifest = read_manifest(&*vfs, &path)?;
        let committed = Committed { vfs, path, manifest };

        match committed.wrong_sizes()?.into_iter().next() {
            None => Ok(committed),
            Some(problem) => Err(problem.of(&committed.path)),
        }
    }

    /// The checkpoint's folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The step in the folder's name, if the name has one.
    pub fn step(&self) -> Option<u64> {
        step_of(self.path.file_name()?.to_str()?)
    }

    /// The checkpoint's description of itself.
    pub fn about(&self) -> &About {
        &self.manifest.about
    }

    /// The files with their sizes in bytes, by path below the folder, without the manifest.
    pub fn files(&self) -> impl ExactSizeIterator<Item = (&str, u64)> {
        let files = self.manifest.files.iter();
        files.map(|(path, content)| (path.as_str(), content.bytes))
    }

    /// Reads every file and compares the digests, which detects damage on the disk.
    ///
    /// # Errors
    /// [`Incomplete`] with the first damage; when a file cannot be read.
    pub fn verify(&self) -> Result<()> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        match self.find_damage(threads, |_bytes| {})?.into_iter().next() {
            None => Ok(()),
            Some(problem) => Err(problem.of(&self.path)),
        }
    }

    /// Reads one file and compares its digests. Files that the manifest does not list are accepted.
    ///
    /// # Errors
    /// As [`Committed::verify`].
    pub fn verify_file(&self, file: &str) -> Result<()> {
        let Some(content) = self.manifest.files.get(file) else {
            return Ok(());
        };
        let listed = verify::ListedFile { name: file, blocks: &content.blocks };
        let folder = verify::SealedFiles { vfs: &*self.vfs, folder: &self.path, files: &[listed] };
        match folder.wrong_blocks(1, &|_bytes| {})?.into_iter().next() {
            None => Ok(()),
            Some(problem) => Err(problem.of(&self.path)),
        }
    }

    /// Whether its folder no longer exists: another process removed the checkpoint.
    pub fn is_removed(&self) -> bool {
        let metadata = self.vfs.metadata(&self.path);
        metadata.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    }

    /// The name of a file below the folder, and its blocks.
    pub(crate) fn blocks_of(&self, path: &Path) -> Result<(String, &[Block])> {
        let name = path.strip_prefix(&self.path).unwrap_or(path);
        let name = name.to_string_lossy().into_owned();
        match self.manifest.files.get(&name) {
            Some(content) => Ok((name, &content.blocks)),
            None => Err(IntegrityError::Unlisted { file: name }.of(&self.path)),
        }
    }

    /// Reads every file and returns all damage: missing files, files of another size, then wrong
    /// digests in the order of [`Committed::files`]. Each thread uses a window of 1 MiB. Any thread
    /// may call `progress` with the number of bytes just read.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn find_damage(
        &self,
        threads: usize,
        progress: impl Fn(u64) + Sync,
    ) -> Result<Vec<IntegrityError>> {
        let mut problems = self.wrong_sizes()?;
        problems.extend(self.wrong_digests(threads, &progress)?);
        Ok(problems)
    }

    /// Finds missing files and files of another size.
    fn wrong_sizes(&self) -> Result<Vec<IntegrityError>> {
        let (mut missing, mut problems) = (Vec::new(), Vec::new());

        for (file, expected) in self.files() {
            match file_size(&*self.vfs, &self.path, file)? {
                None => missing.push(file.to_owned()),
                Some(found) if found == expected => {}
                Some(found) => problems.push(IntegrityError::WrongSize {
                    file: file.to_owned(),
                    expected,
                    found,
                }),
            }
        }
        if !missing.is_empty() {
            problems.insert(0, IntegrityError::MissingFiles { files: missing });
        }
        Ok(problems)
    }

    /// Finds damage in files that have the right size.
    fn wrong_digests(
        &self,
        threads: usize,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Vec<IntegrityError>> {
        let mut files = Vec::new();
        for (file, content) in &self.manifest.files {
            if file_size(&*self.vfs, &self.path, file)? == Some(content.bytes) {
                files.push(verify::ListedFile { name: file, blocks: &content.blocks });
            }
        }
        let folder = verify::SealedFiles { vfs: &*self.vfs, folder: &self.path, files: &files };
        folder.wrong_blocks(threads, progress)
    }
}

/// Reads and checks the manifest of a folder.
fn read_manifest(vfs: &dyn Vfs, folder: &Path) -> Result<Manifest> {
    let incomplete = |problem: IntegrityError| problem.of(folder);
    file_size(vfs, folder, MANIFEST_FILE)?.ok_or_else(|| incomplete(IntegrityError::NoManifest))?;

    let path = folder.join(MANIFEST_FILE);
    let error = |error| io_error("read", &path, error);
    let file = vfs.open_below(folder, MANIFEST_FILE).map_err(error)?;
    let bytes = file.size().map_err(error)?;
    if bytes > MAX_MANIFEST_BYTES {
        let message = format!("it has {bytes} bytes, more than the limit of {MAX_MANIFEST_BYTES}");
        return Err(incomplete(IntegrityError::BadManifest { message }));
    }

    let mut json = vec![0; bytes as usize];
    let read = vfs::read_full_at(&*file, &mut json, 0).map_err(error)?;
    Manifest::from_json(&json[..read]).map_err(incomplete)
}

/// The size of a file below `folder`; `None` if it does not exist or is not a regular file. Links
/// are not followed, because their targets may change.
fn file_size(vfs: &dyn Vfs, folder: &Path, file: &str) -> Result<Option<u64>> {
    let mut path = folder.to_owned();
    let mut parts = file.split('/').peekable();
    while let Some(part) = parts.next() {
        path.push(part);
        match (vfs.metadata(&path), parts.peek()) {
            (Ok(metadata), Some(_)) if metadata.kind == FileKind::Folder => {}
            (Ok(metadata), None) if metadata.kind == FileKind::File => {
                return Ok(Some(metadata.bytes));
            }
            (Ok(_), _) => return Ok(None),
            (Err(error), _) => match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => return Ok(None),
                _ => return Err(io_error("read", &path, error)),
            },
        }
    }
    Ok(None)
}
