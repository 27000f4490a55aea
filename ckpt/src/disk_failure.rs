//! Recognizes a disk that does not return what it stores.

use std::error::Error;
use std::io;

use rustix::io::Errno;

/// Whether an error, or its cause, is a failure of the disk: the system could not read stored bytes
/// (EIO), or found its own data damaged (EUCLEAN, EBADMSG). Missing permissions and resources are
/// not.
pub fn is_disk_failure(error: &(dyn Error + 'static)) -> bool {
    let causes = std::iter::successors(Some(error), |error| (*error).source());
    let mut systems = causes.filter_map(|error| error.downcast_ref::<io::Error>());
    systems.any(|error| {
        let of_disk = [Errno::IO, Errno::BADMSG];
        let errno = Errno::from_io_error(error);
        errno.is_some_and(|errno| of_disk.contains(&errno) || is_damaged_file_system(errno))
    })
}

#[cfg(target_os = "linux")]
fn is_damaged_file_system(errno: Errno) -> bool {
    errno == Errno::UCLEAN
}

#[cfg(not(target_os = "linux"))]
fn is_damaged_file_system(_: Errno) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn only_disk_errors_are_disk_failures() {
        let of = |errno: Errno| {
            let error = crate::io_error("read", Path::new("x"), errno.into());
            is_disk_failure(&error)
        };
        assert!(of(Errno::IO) && of(Errno::BADMSG));
        for other in [Errno::ACCESS, Errno::PERM, Errno::NOENT, Errno::MFILE, Errno::NOMEM] {
            assert!(!of(other), "{other}");
        }
        assert!(!is_disk_failure(&io::Error::other("no number")));
    }
}
