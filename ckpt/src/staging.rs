//! Writing a checkpoint so that it is there completely or not at all.
//!
//! ```text
//! stage    mkdir  .step-000123.tmp-<unique>/      locked while its process lives
//! write    each file: write, hash, fsync
//! seal     manifest.json, fsync; fsync the folders
//! publish  rename to step-000123; fsync the parent
//! ```
//!
//! A kill before the rename leaves a hidden folder that [`sweep`](crate::sweep) removes; a kill
//! after it leaves the new checkpoint.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::disk::{self, Content, OutputFile};
use crate::hidden::{self, Kind};
use crate::manifest::{self, Flaw, MANIFEST_FILE, Manifest};
use crate::names::{NameProblem, check_file_name, check_relative_path};
use crate::{Error, Published, Result};

/// A checkpoint that is being written, in a hidden folder beside its place.
///
/// Dropped without [`Staging::commit`], the folder is removed.
#[derive(Debug)]
pub struct Staging {
    target: PathBuf,
    folder: PathBuf,
    written: BTreeMap<String, Content>,
    published: bool,
    /// Tells other processes that this folder is alive; the system lets go of it when we die.
    _lock: Option<File>,
}

impl Staging {
    /// Begins the checkpoint `parent/name`; `parent` must exist.
    ///
    /// # Errors
    /// [`Error::Exists`] when that is there already, unless it is a checkpoint of a step
    /// ([`step_name`](crate::step_name)) that is not complete: then the commit replaces it.
    /// [`Error::FileName`] when `name` is no plain name; [`Error::Io`].
    pub fn new(parent: impl AsRef<Path>, name: &str) -> Result<Staging> {
        let parent = parent.as_ref();
        let refuse = |problem| Error::FileName {
            folder: parent.to_owned(),
            name: name.to_owned(),
            problem,
        };
        check_file_name(name).map_err(refuse)?;
        if name.starts_with('.') {
            return Err(refuse(NameProblem::Taken));
        }

        let target = parent.join(name);
        check_free(&target)?;

        let (folder, lock) = make_locked(&target)?;
        Ok(Staging {
            target,
            folder,
            written: BTreeMap::new(),
            published: false,
            _lock: lock,
        })
    }

    /// The hidden folder. Files that are put there by other means are published with the rest.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Fails with [`Error::NoSpace`] when the file system has less than `bytes` left. Call it with
    /// the size of all that will be written, before the work begins.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub fn check_space(&self, bytes: u64) -> Result<()> {
        disk::check_space(&self.folder, bytes)
    }

    /// Writes and syncs a file; `path` is below the folder, its parts joined by `/`.
    ///
    /// # Errors
    /// As [`Staging::write_with`].
    pub fn write(&mut self, path: &str, bytes: &[u8]) -> Result<()> {
        self.write_with(path, |file| file.append(bytes))
    }

    /// Writes and syncs a file that `fill` produces piece by piece.
    ///
    /// # Errors
    /// What `fill` gives; [`Error::FileName`] for a path that leaves the folder;
    /// [`Error::Exists`] for one that was written before; [`Error::NoSpace`], [`Error::Io`].
    pub fn write_with<E: From<Error>>(
        &mut self,
        path: &str,
        fill: impl FnOnce(&mut OutputFile) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        self.check_path(path)?;

        let full = self.folder.join(path);
        let folder = disk::folder_of(&full);
        fs::create_dir_all(folder).map_err(|error| Error::write(folder, 0, error))?;

        let content = disk::write_new(&full, fill)?;
        self.written.insert(path.to_owned(), content);
        Ok(())
    }

    fn check_path(&self, path: &str) -> Result<()> {
        let problem = match check_relative_path(path) {
            Err(problem) => problem,
            Ok(()) if path == MANIFEST_FILE => NameProblem::Taken,
            Ok(()) => return Ok(()),
        };
        Err(Error::FileName {
            folder: self.folder.clone(),
            name: path.to_owned(),
            problem,
        })
    }

    /// Seals the checkpoint and gives it its name, all on disk when this returns.
    ///
    /// # Errors
    /// [`Error::Exists`] when somebody else published this name meanwhile;
    /// [`Error::ChangedWhileStaged`]; [`Error::NoSpace`], [`Error::Io`]. Nothing is published then,
    /// except that after a failed sync of the parent the checkpoint is there but a power cut may
    /// still undo it.
    pub fn commit(mut self) -> Result<Published> {
        self.seal()?;
        let replaced = self.move_incomplete_aside()?;

        fs::rename(&self.folder, &self.target).map_err(|error| match error.kind() {
            io::ErrorKind::DirectoryNotEmpty
            | io::ErrorKind::AlreadyExists
            | io::ErrorKind::NotADirectory => Error::Exists {
                path: self.target.clone(),
            },
            _ => Error::io("publish", &self.target, error),
        })?;
        self.published = true;
        disk::sync_folder(disk::folder_of(&self.target))?;

        if let Some(replaced) = replaced {
            // Left for the next sweep if it fails.
            let _ = fs::remove_dir_all(replaced);
        }
        Published::open(&self.target)
    }

    /// Writes the manifest; everything below the folder is on disk then.
    fn seal(&mut self) -> Result<()> {
        let mut found = Found::default();
        found.walk(&self.folder, "")?;

        let mut files = BTreeMap::new();
        for (path, bytes) in found.files {
            let full = self.folder.join(&path);

            let content = match self.written.get(&path) {
                Some(content) if content.bytes == bytes => *content,
                Some(content) => {
                    let written = content.bytes;
                    return Err(Error::ChangedWhileStaged {
                        path: full,
                        written,
                        found: bytes,
                    });
                }
                None => sync_and_digest(&full)?,
            };
            files.insert(path, content);
        }

        if let Some((path, content)) = self
            .written
            .iter()
            .find(|(path, _)| !files.contains_key(*path))
        {
            let path = self.folder.join(path);
            return Err(Error::ChangedWhileStaged {
                path,
                written: content.bytes,
                found: 0,
            });
        }

        // Folders after their files, the manifest after everything.
        for folder in &found.folders {
            disk::sync_folder(folder)?;
        }
        let json = Manifest { files }.to_json();
        let path = self.folder.join(MANIFEST_FILE);
        disk::write_new::<Error>(&path, |file| file.append(json.as_bytes()))?;
        disk::sync_folder(&self.folder)
    }

    /// Frees the name if an incomplete checkpoint has it; returns where that is now.
    fn move_incomplete_aside(&self) -> Result<Option<PathBuf>> {
        check_free(&self.target)?;
        if fs::symlink_metadata(&self.target).is_err() {
            return Ok(None);
        }

        let trash = hidden::path(&self.target, Kind::Trash);
        fs::rename(&self.target, &trash)
            .map_err(|error| Error::io("move aside", &self.target, error))?;
        Ok(Some(trash))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.published {
            // Left for the next sweep if it fails.
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

/// A name is free if nothing has it, or only an incomplete checkpoint of a step: what else lies
/// there may be dear to somebody.
fn check_free(target: &Path) -> Result<()> {
    let metadata = match fs::symlink_metadata(target) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::io("open", target, error)),
        Ok(metadata) => metadata,
    };

    let is_step = target
        .file_name()
        .and_then(|name| crate::published::step_of(name.to_str()?));
    if metadata.is_dir() && is_step.is_some() {
        match Manifest::open(target) {
            Ok(_)
            | Err(Error::Incomplete {
                flaw: Flaw::NewerVersion { .. },
                ..
            }) => {}
            Err(Error::Incomplete { .. }) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Err(Error::Exists {
        path: target.to_owned(),
    })
}

/// Makes the hidden folder and locks it.
fn make_locked(target: &Path) -> Result<(PathBuf, Option<File>)> {
    loop {
        let folder = hidden::path(target, Kind::Staging);
        fs::create_dir(&folder).map_err(|error| Error::write(&folder, 0, error))?;

        let Ok(handle) = File::open(&folder) else {
            // Swept by somebody between the two calls.
            continue;
        };
        match handle.try_lock() {
            Ok(()) if is_same(&handle, &folder) => return Ok((folder, Some(handle))),
            Ok(()) | Err(fs::TryLockError::WouldBlock) => {}
            // No locks on this file system: then no sweep can take one either.
            Err(fs::TryLockError::Error(_)) => return Ok((folder, None)),
        }
    }
}

/// Whether the path still leads to the opened folder.
fn is_same(handle: &File, folder: &Path) -> bool {
    match (handle.metadata(), fs::metadata(folder)) {
        (Ok(opened), Ok(named)) => (opened.dev(), opened.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

fn sync_and_digest(path: &Path) -> Result<Content> {
    File::open(path)
        .and_then(|file| file.sync_all())
        .map_err(|error| Error::io("sync", path, error))?;
    manifest::digest(path)
}

/// All files below a folder, with their sizes, and all folders, the deepest first.
#[derive(Default)]
struct Found {
    files: BTreeMap<String, u64>,
    folders: Vec<PathBuf>,
}

impl Found {
    fn walk(&mut self, root: &Path, below: &str) -> Result<()> {
        let folder = root.join(below);
        let read_error = |error| Error::io("read", &folder, error);

        for entry in fs::read_dir(&folder).map_err(read_error)? {
            let entry = entry.map_err(read_error)?;
            let full = entry.path();

            let name = entry.file_name();
            let name = name.to_string_lossy();
            let path = if below.is_empty() {
                name.into_owned()
            } else {
                format!("{below}/{name}")
            };

            let metadata = entry
                .metadata()
                .map_err(|error| Error::io("read", &full, error))?;
            if metadata.is_dir() {
                self.walk(root, &path)?;
            } else if metadata.is_file() {
                self.files.insert(path, metadata.len());
            } else {
                // A link would make the checkpoint depend on what it leads to.
                return Err(Error::NotAFile { path: full });
            }
        }

        self.folders.push(folder);
        Ok(())
    }
}
