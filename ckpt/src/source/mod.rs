//! Sources: the files that data is read from, whatever the way.
//!
//! A [`Source`] is one open file that gives exactly the bytes asked for, or an error. Three
//! backends:
//!
//! - [`Backend::Pread`]: plain positioned reads through the page cache. Right nearly always.
//! - [`Backend::Direct`]: `O_DIRECT`, past the page cache. For files far larger than the memory,
//!   read once: nothing useful is pushed out of the cache, and the speed is the disk's.
//! - [`Backend::Mapped`]: a memory map, for files that are in the page cache already. Bytes are
//!   copied out of it here and never borrowed, since a file may change under a map.
//!
//! **A file that changes is an error.** What was opened is remembered (length, time of
//! modification, whether it still has a name), and compared after each read, before anybody uses
//! the bytes. A file cut short, written in place or replaced gives [`Error::FileChanged`], never a
//! mixture of old and new and never a signal. A change within the resolution of the file system's
//! clock that leaves the length alone can pass; checksums tell that.
//!
//! **Which backend.** [`BackendChoice::Auto`] asks the [`FileSystem`], which says why:
//!
//! | file system | backend | reads |
//! |---|---|---|
//! | local, or not known | `Pread` | as fast as a map on warm files, without page tables |
//! | network (NFS, Lustre ..) | `Pread` | larger ones ([`Options::on`]); a map asks by the page |
//!
//! The other two are for who has measured. A backend that a file system refuses is replaced by
//! `Pread`, and [`Opened::refused`] says why.
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
#[cfg(target_os = "linux")]
mod sigbus;
#[cfg(test)]
mod tests;
mod windows;

use std::fs::File;
use std::path::{Path, PathBuf};

pub(crate) use aligned::{ALIGNMENT, Aligned};
pub use backend::{Backend, BackendChoice, Source};
pub use file_change::FileChange;
pub use file_system::FileSystem;

use crate::error::Error;
use crate::folder::Folder;
use direct::Direct;
use mapped::Mapped;
use open_file::{BackendError, OpenFile};
use pread::Pread;
pub(crate) use windows::Windows;

/// An open source, and why it is not of the backend that was asked for.
#[derive(Debug)]
pub struct Opened {
    /// The source.
    pub source: Box<dyn Source>,
    /// How it reads.
    pub backend: Backend,
    /// Why not in the way that was asked for.
    pub refused: Option<String>,
}

/// Opens a file.
///
/// # Errors
/// [`Error::Io`], [`Error::NotAFile`].
pub fn open(path: impl AsRef<Path>, choice: BackendChoice) -> Result<Opened, Error> {
    let path = path.as_ref().to_owned();
    // Before opening: to open a pipe blocks.
    let metadata = std::fs::metadata(&path).map_err(|error| Error::io("open", &path, error))?;
    if !metadata.is_file() {
        return Err(Error::NotAFile { path });
    }
    let file = File::open(&path).map_err(|error| Error::io("open", &path, error))?;
    let file_system = FileSystem::of_file(&file);
    open_handle(path, file, file_system, choice)
}

/// A source for a file that is open.
fn open_handle(
    path: PathBuf,
    file: File,
    file_system: FileSystem,
    choice: BackendChoice,
) -> Result<Opened, Error> {
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
        Ok(source) => Opened {
            source,
            backend: asked,
            refused: None,
        },
        Err(BackendError::Unsupported { file, reason }) => Opened {
            source: Box::new(Pread(file)),
            backend: Backend::Pread,
            refused: Some(reason),
        },
        Err(BackendError::Failed(error)) => return Err(error),
    })
}

/// The open files of a folder, in the folder's order.
#[derive(Debug)]
pub struct Sources {
    files: Vec<Opened>,
}

impl Sources {
    /// The files that the folder has open: the same ones whose headers it has checked, even if
    /// others have their names by now.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::FileChanged`] where a file has to be opened once more and is
    /// another.
    pub fn open(folder: &Folder, choice: BackendChoice) -> Result<Sources, Error> {
        let mut files = Vec::with_capacity(folder.files().len());
        let file_system = FileSystem::of(folder);
        for file in folder.files() {
            let path = file.path().to_owned();
            let handle = file.handle().try_clone();
            let handle = handle.map_err(|error| Error::io("open", &path, error))?;
            files.push(open_handle(path, handle, file_system, choice)?);
        }
        Ok(Sources { files })
    }

    /// Sources of any origin.
    pub fn new(sources: impl IntoIterator<Item = Opened>) -> Sources {
        Sources {
            files: sources.into_iter().collect(),
        }
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.files.len()
    }

    /// The files with the way in which each is read.
    pub fn files(&self) -> &[Opened] {
        &self.files
    }

    pub(crate) fn get(&self, file: usize) -> &dyn Source {
        &*self.files[file].source
    }
}
