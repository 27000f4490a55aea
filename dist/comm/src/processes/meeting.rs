//! Where ranks meet rank 0, and the secret that admits them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use meshgrad_error::{Error, Result, bail, ensure, error};

use super::secret::Secret;

/// An address and a secret, or a file that has both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Meeting {
    At(Point),
    File(PathBuf),
}

/// Where rank 0 listens, and the secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Point {
    pub(super) address: String,
    pub(super) secret: Secret,
}

impl Meeting {
    /// The meeting point. Rank 0 may not have written the file yet.
    pub(super) fn point(&self) -> Result<Point> {
        match self {
            Meeting::At(point) => Ok(point.clone()),
            Meeting::File(path) => read(path),
        }
    }
}

/// A file for the ranks of one host, which only its user can read. It is removed when dropped.
pub(super) struct MeetingFile(PathBuf);

impl MeetingFile {
    /// Writes the file in one step, and replaces that of an earlier run.
    pub(super) fn write(path: &Path, point: &Point) -> Result<MeetingFile> {
        let failed = |error| error!(System, "{}: cannot be written: {error}", path.display());
        let new = path.with_extension(format!("new-{}", std::process::id()));
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&new)
            .map_err(failed)?;
        let content = [point.address.as_bytes(), b"\n", point.secret.expose()].concat();
        let written = file.write_all(&content).and_then(|()| fs::rename(&new, path));
        if let Err(error) = written {
            let _ = fs::remove_file(&new); // the first error counts
            return Err(failed(error));
        }
        Ok(MeetingFile(path.to_owned()))
    }
}

impl Drop for MeetingFile {
    fn drop(&mut self) {
        // An error does not matter: no later run uses the file, and its rank 0 overwrites it.
        let _ = fs::remove_file(&self.0);
    }
}

fn read(path: &Path) -> Result<Point> {
    let failed = |error| unreadable(path, &error);
    // Opening a FIFO would otherwise block until another process writes it.
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits() as i32)
        .open(path)
        .map_err(failed)?;
    check_owner(path, &file)?;
    let mut content = Vec::new();
    file.take(4096).read_to_end(&mut content).map_err(failed)?;
    let mut lines = content.splitn(2, |byte| *byte == b'\n');
    match (lines.next().map(std::str::from_utf8), lines.next()) {
        (Some(Ok(address)), Some(secret)) => {
            Ok(Point { address: address.to_owned(), secret: Secret::new(secret)? })
        }
        _ => bail!(Malformed, "{}: is not a meeting file; delete it", path.display()),
    }
}

/// Checks that it is a regular file that only this user may have written and read.
fn check_owner(path: &Path, file: &File) -> Result<()> {
    let metadata = file.metadata().map_err(|error| unreadable(path, &error))?;
    let name = path.display();
    ensure!(metadata.is_file(), Invalid, "{name}: is not a regular file; delete it");
    let (owner, user) = (metadata.uid(), rustix::process::geteuid().as_raw());
    ensure!(
        owner == user,
        Invalid,
        "{name}: belongs to user {owner}, but this is user {user}; delete it"
    );
    let mode = metadata.mode() & 0o777;
    ensure!(mode & 0o077 == 0, Invalid, "{name}: has mode {mode:o}, but must be 600; delete it");
    Ok(())
}

fn unreadable(path: &Path, error: &io::Error) -> Error {
    error!(System, "{}: cannot be read: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(address: &str) -> Point {
        Point { address: address.to_owned(), secret: Secret::random().unwrap() }
    }

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("meshgrad-meeting-{name}-{}", std::process::id()))
    }

    #[test]
    fn a_file_is_read_as_it_was_written_and_removed() {
        let path = path("written");
        assert!(Meeting::File(path.clone()).point().is_err());
        for point in [point("127.0.0.1:1"), point("[::1]:65535")] {
            let file = MeetingFile::write(&path, &point).unwrap();
            assert_eq!(Meeting::File(path.clone()).point(), Ok(point));
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
            drop(file);
            assert!(!path.exists());
        }
    }

    /// A secret that others could have read, or a link to another file, is refused.
    #[test]
    fn readable_linked_and_foreign_files_are_refused() {
        let path = path("open");
        let file = MeetingFile::write(&path, &point("127.0.0.1:1")).unwrap();
        let readable = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        fs::set_permissions(&path, readable).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("has mode 644, but must be 600"), "{error}");

        let link = path.with_extension("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(read(&link).is_err());
        fs::remove_file(&link).unwrap();
        drop(file);

        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("is not a meeting file"), "{error}");
        fs::remove_file(&path).unwrap();
    }
}
