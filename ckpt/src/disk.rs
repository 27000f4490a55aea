//! Files that survive: written, hashed on the way, synced, and only then given their name.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use xxhash_rust::xxh3::Xxh3;

use crate::{Error, Result};

/// Small pieces are gathered to writes of this size; larger ones are written as they come.
const BUFFER_BYTES: usize = 1 << 20;

/// Bytes that an unprivileged user may still write to the file system of `path`; `None` where the
/// system does not tell.
pub fn available_bytes(path: impl AsRef<Path>) -> Option<u64> {
    let path = path.as_ref();
    let existing = path.ancestors().find(|folder| folder.exists())?;
    let stat = rustix::fs::statvfs(existing).ok()?;

    // Some network file systems report a disk of no size at all.
    if stat.f_blocks == 0 {
        return None;
    }
    stat.f_bavail.checked_mul(stat.f_frsize)
}

/// Fails early, before the first byte is written, when `wanted` bytes do not fit.
pub(crate) fn check_space(path: &Path, wanted: u64) -> Result<()> {
    match available_bytes(path) {
        Some(available) if available < wanted => Err(Error::NoSpace {
            path: path.to_owned(),
            wanted,
            available: Some(available),
        }),
        _ => Ok(()),
    }
}

/// Makes the names in a folder durable.
pub(crate) fn sync_folder(folder: &Path) -> Result<()> {
    let synced = File::open(folder).and_then(|handle| handle.sync_all());

    match synced {
        // A file system without this operation keeps names in another way.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported
            ) =>
        {
            Ok(())
        }
        other => other.map_err(|error| Error::io("sync", folder, error)),
    }
}

/// Sixteen hexadecimal digits that no other file of this machine's processes has at this time.
pub(crate) fn unique_suffix() -> String {
    static COUNTER: AtomicU64 = AtomicU64::new(0);

    let clock = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_nanos() as u64;
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);

    let mut hash = Xxh3::new();
    for part in [clock, u64::from(process::id()), count] {
        hash.update(&part.to_le_bytes());
    }
    format!("{:016x}", hash.digest())
}

/// Size and digest of a file's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) bytes: u64,
    /// xxh3 of 64 bits: tells damage, not forgery.
    pub(crate) xxh3: u64,
}

/// A new file that is being written. Hashes what passes.
pub struct OutputFile {
    path: PathBuf,
    file: BufWriter<File>,
    hash: Xxh3,
    bytes: u64,
}

impl fmt::Debug for OutputFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "OutputFile({}, {} bytes)",
            self.path.display(),
            self.bytes
        )
    }
}

impl OutputFile {
    /// Creates a file that must not exist yet; its mode follows the umask.
    pub(crate) fn create(path: PathBuf) -> Result<OutputFile> {
        let file = OpenOptions::new().write(true).create_new(true).open(&path);

        match file {
            Ok(file) => Ok(OutputFile::new(path, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Err(Error::Exists { path })
            }
            Err(error) => Err(Error::write(&path, 0, error)),
        }
    }

    fn new(path: PathBuf, file: File) -> OutputFile {
        let file = BufWriter::with_capacity(BUFFER_BYTES, file);
        OutputFile {
            path,
            file,
            hash: Xxh3::new(),
            bytes: 0,
        }
    }

    /// Where the file is for now.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends all of `bytes`.
    ///
    /// # Errors
    /// [`Error::NoSpace`] when the disk is full, [`Error::Io`] otherwise.
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.write_all(bytes)
            .map_err(|error| Error::write(&self.path, bytes.len() as u64, error))
    }

    /// Writes what is buffered and waits until the disk has it.
    pub(crate) fn finish(mut self) -> Result<Content> {
        let content = Content {
            bytes: self.bytes,
            xxh3: self.hash.digest(),
        };

        // A failed sync is final: the system may have dropped the pages, a second one would lie.
        let synced = self
            .file
            .flush()
            .and_then(|()| self.file.get_ref().sync_all());
        synced.map_err(|error| Error::write(&self.path, content.bytes, error))?;
        Ok(content)
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hash.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Writes a file and removes what there is of it when that fails.
pub(crate) fn write_new<E: From<Error>>(
    path: &Path,
    fill: impl FnOnce(&mut OutputFile) -> std::result::Result<(), E>,
) -> std::result::Result<Content, E> {
    let mut file = OutputFile::create(path.to_owned())?;

    let written = match fill(&mut file) {
        Ok(()) => file.finish().map_err(E::from),
        Err(error) => {
            // Without its buffer: flushing it now could only fail again.
            drop(file.file.into_parts());
            Err(error)
        }
    };

    if written.is_err() {
        let _ = fs::remove_file(path);
    }
    written
}

/// Writes a file beside its place, syncs it and renames it: `path` is the old file or the new one,
/// whenever the process or the machine stops.
///
/// # Errors
/// What `fill` gives; [`Error::NoSpace`] and [`Error::Io`] of the disk. The old file is untouched.
pub fn replace_file<E: From<Error>>(
    path: impl AsRef<Path>,
    fill: impl FnOnce(&mut OutputFile) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    let path = path.as_ref();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let aside = path.with_file_name(format!(".{name}.tmp-{}", unique_suffix()));

    write_new(&aside, fill)?;

    if let Err(error) = fs::rename(&aside, path) {
        let _ = fs::remove_file(&aside);
        return Err(Error::io("replace", path, error).into());
    }
    Ok(sync_folder(folder_of(path))?)
}

/// The folder a path lies in; `.` for a plain name.
pub(crate) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn names_in(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    /// `/dev/full` answers every write as a full disk does.
    #[test]
    #[cfg(target_os = "linux")]
    fn full_disk_has_its_own_error() {
        let device = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut file = OutputFile::new("/dev/full".into(), device);

        let error = file.append(&vec![1; 2 * BUFFER_BYTES]).unwrap_err();
        let Error::NoSpace { wanted, .. } = &error else {
            panic!("{error}")
        };
        assert_eq!(*wanted, 2 * BUFFER_BYTES as u64);
        assert!(
            error
                .to_string()
                .contains("no space for /dev/full: 2097152 bytes wanted")
        );
    }

    #[test]
    fn too_large_a_file_is_refused_before_it_is_begun() {
        let folder = tempfile::tempdir().unwrap();
        let available = available_bytes(folder.path()).unwrap();
        assert!(available > 0);

        assert!(check_space(folder.path(), 1).is_ok());
        let error = check_space(&folder.path().join("not/yet/there"), u64::MAX).unwrap_err();
        assert!(
            matches!(
                error,
                Error::NoSpace {
                    available: Some(_),
                    ..
                }
            ),
            "{error}"
        );
    }

    /// When the new content cannot be written, the old file stays and nothing else does.
    #[test]
    fn failed_replacement_leaves_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        replace_file::<Error>(&path, |file| file.append(b"old")).unwrap();

        let failed = replace_file(&path, |file| {
            file.append(b"half of the n")?;
            Err(Error::NotAFile { path: "x".into() })
        });

        assert!(matches!(failed, Err(Error::NotAFile { .. })));
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(names_in(folder.path()), ["state.json"]);

        replace_file::<Error>(&path, |file| file.append(b"new")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    /// Another user of the machine may read a checkpoint: the mode is that of any new file.
    #[test]
    fn mode_follows_the_umask() {
        let folder = tempfile::tempdir().unwrap();
        let (ours, plain) = (folder.path().join("ours"), folder.path().join("plain"));
        replace_file::<Error>(&ours, |file| file.append(b"x")).unwrap();
        fs::write(&plain, b"x").unwrap();

        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&ours), mode(&plain));
    }

    #[test]
    fn content_is_that_of_the_bytes_however_they_were_cut() {
        let folder = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..3 * BUFFER_BYTES)
            .map(|at| (at * 7 + at / 251) as u8)
            .collect();

        for piece in [1 << 10, 4097, BUFFER_BYTES, 5 * BUFFER_BYTES] {
            let path = folder.path().join(format!("{piece}"));
            let content = write_new::<Error>(&path, |file| {
                bytes.chunks(piece).try_for_each(|chunk| file.append(chunk))
            });

            let xxh3 = xxhash_rust::xxh3::xxh3_64(&bytes);
            assert_eq!(
                content.unwrap(),
                Content {
                    bytes: bytes.len() as u64,
                    xxh3
                }
            );
            assert_eq!(fs::read(&path).unwrap(), bytes);
        }
    }
}
