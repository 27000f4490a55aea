//! A new file that is written and digested from start to end, then synced.

use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use meshgrad_error::{Error, Result};

use crate::blocks::{BlockHasher, Content, MAX_BLOCK_BYTES};
use crate::error::{already_exists, io_error, write_error};
use crate::vfs::{self, Vfs, VfsFile, WRITE_BYTES};

/// A new file that is being written and digested.
pub struct OutputFile {
    path: PathBuf,
    file: Box<dyn VfsFile>,
    /// Bytes after `flushed`: less than one write.
    buffer: Vec<u8>,
    flushed: u64,
    /// The error of a failed append. All later appends fail with it.
    failed: Option<io::ErrorKind>,
    hasher: BlockHasher,
    blocks: Vec<crate::Block>,
}

impl fmt::Debug for OutputFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OutputFile({}, {} bytes)", self.path.display(), self.len())
    }
}

impl OutputFile {
    /// Wraps a file that is open and empty, or allocated and not yet written.
    pub(crate) fn new(path: PathBuf, file: Box<dyn VfsFile>, block_bytes: u64) -> OutputFile {
        OutputFile {
            path,
            file,
            buffer: Vec::new(),
            flushed: 0,
            failed: None,
            hasher: BlockHasher::new(0, block_bytes),
            blocks: Vec::new(),
        }
    }

    /// The file's current path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes appended so far.
    fn len(&self) -> u64 {
        self.hasher.end()
    }

    /// Appends all of `bytes`.
    ///
    /// # Errors
    /// When the bytes cannot be written; [`NoSpace`](crate::NoSpace) if the disk is full.
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.put(bytes).map_err(|error| write_error(&self.path, bytes.len() as u64, error))
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.unless_failed(|file| file.put_pieces(bytes))
    }

    fn unless_failed(
        &mut self,
        work: impl FnOnce(&mut OutputFile) -> io::Result<()>,
    ) -> io::Result<()> {
        if let Some(kind) = self.failed {
            return Err(kind.into());
        }
        let done = work(self);
        self.failed = done.as_ref().err().map(io::Error::kind);
        done
    }

    /// Writes chunks of [`WRITE_BYTES`], so that each starts at a multiple of this size, and
    /// buffers the rest.
    fn put_pieces(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let room = WRITE_BYTES - self.buffer.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            bytes = later;

            if now.len() == WRITE_BYTES {
                vfs::write_all_at(&*self.file, now, self.flushed)?;
                self.flushed += now.len() as u64;
            } else {
                self.buffer.extend_from_slice(now);
            }
            if self.buffer.len() == WRITE_BYTES {
                self.put_buffer()?;
            }
            self.hasher.update(now, &mut self.blocks);
        }
        Ok(())
    }

    fn put_buffer(&mut self) -> io::Result<()> {
        vfs::write_all_at(&*self.file, &self.buffer, self.flushed)?;
        self.flushed += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Writes the buffer and waits until the whole file is on disk.
    pub(crate) fn finish(mut self) -> Result<Content> {
        let bytes = self.len();

        // A failed sync is final: the system may have dropped the pages, so a second sync would
        // report false success.
        let synced = self.unless_failed(|file| {
            file.put_buffer()?;
            file.file.sync_data()
        });
        synced.map_err(|error| write_error(&self.path, bytes, error))?;

        self.hasher.flush(&mut self.blocks);
        let blocks = self.blocks;
        Ok(Content { bytes, blocks })
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.put(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.unless_failed(OutputFile::put_buffer)
    }
}

/// Creates, fills and syncs a file that must not exist. On failure it removes the file.
pub(crate) fn write_new<E: From<Error>>(
    vfs: &dyn Vfs,
    path: &Path,
    block_bytes: u64,
    fill: impl FnOnce(&mut OutputFile) -> std::result::Result<(), E>,
) -> std::result::Result<Content, E> {
    let file = OutputFile::new(path.to_owned(), create_new(vfs, path)?, block_bytes);
    fill_and_finish(vfs, file, fill)
}

/// Creates a file that must not exist.
pub(crate) fn create_new(vfs: &dyn Vfs, path: &Path) -> Result<Box<dyn VfsFile>> {
    vfs.create_new(path).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => already_exists(path),
        _ => write_error(path, 0, error),
    })
}

/// Fills and syncs a file. On failure it removes the file.
pub(crate) fn fill_and_finish<E: From<Error>>(
    vfs: &dyn Vfs,
    mut file: OutputFile,
    fill: impl FnOnce(&mut OutputFile) -> std::result::Result<(), E>,
) -> std::result::Result<Content, E> {
    let path = file.path.clone();
    let written = match fill(&mut file) {
        Ok(()) => file.finish().map_err(E::from),
        Err(error) => Err(error),
    };

    if written.is_err() {
        // The first error is returned instead of an error of the removal.
        let _ = vfs.unlink(&path);
    }
    written
}

/// Replaces a file atomically: writes a temporary file in the same folder, syncs and renames it.
/// Whenever the process or the machine stops, `path` is the old file or the new one.
///
/// # Errors
/// Errors of `fill`; when the file cannot be written ([`NoSpace`](crate::NoSpace) if the disk is
/// full). The old file is untouched then.
pub fn replace_file<E: From<Error>>(
    path: impl AsRef<Path>,
    fill: impl FnOnce(&mut OutputFile) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    replace_file_in(&vfs::RealFs, path, fill)
}

/// [`replace_file`] in any file system.
///
/// # Errors
/// As [`replace_file`].
pub fn replace_file_in<E: From<Error>>(
    vfs: &dyn Vfs,
    path: impl AsRef<Path>,
    fill: impl FnOnce(&mut OutputFile) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    let path = path.as_ref();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.tmp-{:016x}", vfs.unique()));

    write_new(vfs, &temporary, MAX_BLOCK_BYTES, fill)?;

    if let Err(error) = vfs.rename(&temporary, path) {
        let _ = vfs.unlink(&temporary);
        return Err(io_error("replace", path, error).into());
    }
    let folder = crate::disk::folder_of(path);
    vfs.sync_dir(folder).map_err(|error| io_error("sync", folder, error).into())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::Digest;
    use crate::vfs::RealFs;

    /// When the new content cannot be written, only the old file remains.
    #[test]
    fn failed_replacement_leaves_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        replace_file::<Error>(&path, |file| file.append(b"old")).unwrap();

        let failed = replace_file(&path, |file| {
            file.append(b"half of the n")?;
            Err(crate::error::not_a_file(Path::new("x")))
        });

        assert_eq!(failed.unwrap_err().to_string(), "x is not a regular file");
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);

        replace_file::<Error>(&path, |file| file.append(b"new")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn content_does_not_depend_on_the_size_of_appends() {
        let folder = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..3 * WRITE_BYTES).map(|at| (at * 7 + at / 251) as u8).collect();

        for piece in [1 << 10, 4097, WRITE_BYTES, 5 * WRITE_BYTES] {
            let path = folder.path().join(format!("{piece}"));
            let content = write_new::<Error>(&RealFs, &path, 1 << 21, |file| {
                bytes.chunks(piece).try_for_each(|chunk| file.append(chunk))
            });

            let content = content.unwrap();
            assert_eq!(content.bytes, bytes.len() as u64);
            let digests: Vec<_> = content.blocks.iter().map(|block| block.xxh3).collect();
            assert_eq!(digests, [&bytes[..1 << 21], &bytes[1 << 21..]].map(Digest::of));
            assert_eq!(fs::read(&path).unwrap(), bytes);
        }
    }
}
