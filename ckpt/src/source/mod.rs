//! Sources: open files, with several ways to read them.
//!
//! A [`Source`] is one open file that returns exactly the requested bytes, or an error. There are
//! three backends:
//!
//! - [`Backend::Pread`]: positioned reads through the page cache. The right choice in nearly all
//!   cases.
//! - [`Backend::Direct`]: `O_DIRECT`, which bypasses the page cache. For files far larger than
//!   memory that are read once: it evicts nothing useful from the cache and reads at the speed of
//!   the disk.
//! - [`Backend::Mapped`]: a memory map, for files that are already in the page cache. Bytes are
//!   copied from it and never borrowed, because a file may change under a map.
//!
//! **A file that changes is an error.** A source keeps the state of its file when it was opened:
//! length, modification time, and that it has a name. After each read it compares the current
//! state, before the bytes are used. A file that is truncated, written in place or replaced is an
//! error, never a mixture of old and new bytes and never a signal. A change within
//! the resolution of the file system's clock that keeps the length can go undetected; checksums
//! detect it.
//!
//! **Which backend.** [`BackendChoice::Auto`] asks the [`FileSystem`], which gives a reason:
//!
//! | file system | backend | reads |
//! |---|---|---|
//! | local, or unknown | `Pread` | as fast as a map on cached files, without page tables |
//! | network (NFS, Lustre ..) | `Pread` | larger ones ([`Options::on`]); a map would request single pages |
//!
//! Choose the other two after a measurement. A backend that a file system does not support is
//! replaced by `Pread`, and [`Opened::fallback_reason`] has the reason.
//!
//! [`Options::on`]: crate::plan::Options::on

mod aligned;
mod backend;
mod direct;
mod file_change;
mod file_system;
mod mapped;
mod open_file;
mod pread;
mod sealed;
#[cfg(target_os = "linux")]
mod sigbus;
#[cfg(test)]
mod tests;
mod windows;

use std::fs::File;
use std::path::{Path, PathBuf};

pub(crate) use aligned::{ALIGNMENT, Aligned};
pub use backend::{Backend, BackendChoice, Source};
pub(crate) use file_change::FileChange;
pub use file_system::FileSystem;

use meshgrad_error::Result;

use crate::committed::Committed;
use crate::error::{io_error, not_a_file};
use crate::folder::Folder;
use crate::index::INDEX_FILE;
use crate::tensor_file::TensorFile;
use direct::Direct;
use mapped::Mapped;
use open_file::{BackendError, OpenFile};
use pread::Pread;
use sealed::Sealed;
pub(crate) use windows::Windows;

/// An open source, and why it does not have the requested backend.
#[derive(Debug)]
pub struct Opened {
    /// The source.
    pub source: Box<dyn Source>,
    /// Its backend.
    pub backend: Backend,
    /// Why it is not the requested backend.
    pub fallback_reason: Option<String>,
}

/// Opens a file.
///
/// # Errors
/// When the file cannot be opened, or is not a regular file.
pub fn open(path: impl AsRef<Path>, choice: BackendChoice) -> Result<Opened> {
    let path = path.as_ref().to_owned();
    // Checked before opening: opening a pipe blocks.
    let metadata = std::fs::metadata(&path).map_err(|error| io_error("open", &path, error))?;
    if !metadata.is_file() {
        return Err(not_a_file(&path));
    }
    let file = File::open(&path).map_err(|error| io_error("open", &path, error))?;
    let file_system = FileSystem::of_file(&file);
    open_handle(path, file, file_system, choice)
}

/// A source for a file that is open.
fn open_handle(
    path: PathBuf,
    file: File,
    file_system: FileSystem,
    choice: BackendChoice,
) -> Result<Opened> {
    let file = OpenFile::new(path, file)?;
    let asked = match choice {
        BackendChoice::Auto => file_system.backend().0,
        BackendChoice::Only(backend) => backend,
    };

    let made: Result<Box<dyn Source>, BackendError> = match asked {
        Backend::Pread => Ok(Box::new(Pread(file))),
        Backend::Direct => Direct::new(file).map(|it| Box::new(it) as Box<dyn Source>),
        Backend::Mapped => Mapped::new(file).map(|it| Box::new(it) as Box<dyn Source>),
    };
    Ok(match made {
        Ok(source) => Opened { source, backend: asked, fallback_reason: None },
        Err(BackendError::Unsupported { file, reason }) => Opened {
            source: Box::new(Pread(file)),
            backend: Backend::Pread,
            fallback_reason: Some(reason),
        },
        Err(BackendError::Failed(error)) => return Err(error),
    })
}

/// A source for an open file.
///
/// # Errors
/// When the system cannot duplicate the file's handle.
pub fn open_file(file: &TensorFile, choice: BackendChoice) -> Result<Opened> {
    let path = file.path().to_owned();
    let handle = file.handle().try_clone();
    let handle = handle.map_err(|error| io_error("open", &path, error))?;
    let file_system = FileSystem::of_file(&handle);
    open_handle(path, handle, file_system, choice)
}

impl Opened {
    /// Compares reads with the manifest from now on, and the header at once.
    fn sealed(self, file: &TensorFile, checkpoint: &Committed) -> Result<Opened> {
        let (name, blocks) = checkpoint.blocks_of(file.path())?;
        let sealed = Sealed::new(self.source, checkpoint.path(), &name, blocks);
        let data = file.tensors().iter().map(|tensor| tensor.range.start).min();
        let header = data.unwrap_or(sealed.byte_len());
        sealed.read_at(0, &mut vec![0; header as usize])?;
        Ok(Opened { source: Box::new(sealed), ..self })
    }
}

/// The open files of a folder, in the folder's order.
#[derive(Debug)]
pub struct Sources {
    files: Vec<Opened>,
}

impl Sources {
    /// Uses the folder's open files, whose headers are checked, even if their names now refer to
    /// other files.
    ///
    /// # Errors
    /// When a file cannot be opened, or has to be opened again and has been replaced.
    pub fn open(folder: &Folder, choice: BackendChoice) -> Result<Sources> {
        let mut files = Vec::with_capacity(folder.files().len());
        let file_system = FileSystem::of(folder);
        for file in folder.files() {
            let path = file.path().to_owned();
            let handle = file.handle().try_clone();
            let handle = handle.map_err(|error| io_error("open", &path, error))?;
            files.push(open_handle(path, handle, file_system, choice)?);
        }
        Ok(Sources { files })
    }

    /// As [`Sources::open`], for files of a checkpoint. Reads compare all bytes with the digests of
    /// the manifest and fail with [`Incomplete`](crate::Incomplete) if they differ. Headers and
    /// index are compared now.
    ///
    /// # Errors
    /// As [`Sources::open`]; [`Incomplete`](crate::Incomplete) for damaged headers, and for files
    /// that the manifest does not list.
    pub fn open_sealed(
        folder: &Folder,
        choice: BackendChoice,
        checkpoint: &Committed,
    ) -> Result<Sources> {
        checkpoint.verify_file(INDEX_FILE)?;
        let opened = Sources::open(folder, choice)?.files.into_iter();
        let sealed =
            opened.zip(folder.files()).map(|(opened, file)| opened.sealed(file, checkpoint));
        let files = sealed.collect::<Result<_>>()?;
        Ok(Sources { files })
    }

    /// Opens one file of a checkpoint, as [`Sources::open_sealed`] does.
    ///
    /// # Errors
    /// As [`Sources::open_sealed`].
    pub fn open_sealed_file(
        file: &TensorFile,
        choice: BackendChoice,
        checkpoint: &Committed,
    ) -> Result<Opened> {
        open_file(file, choice)?.sealed(file, checkpoint)
    }

    /// Sources of any kind.
    pub fn new(sources: impl IntoIterator<Item = Opened>) -> Sources {
        Sources { files: sources.into_iter().collect() }
    }

    /// The number of files.
    pub fn count(&self) -> usize {
        self.files.len()
    }

    /// The files, each with its backend.
    pub fn files(&self) -> &[Opened] {
        &self.files
    }

    pub(crate) fn get(&self, file: usize) -> &dyn Source {
        &*self.files[file].source
    }
}
