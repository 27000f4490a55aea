//! Copies out of a memory map.
//!
//! A map of a file shows whatever the file is at that moment, and an access behind its end kills
//! the process with SIGBUS. So nothing here is borrowed from the map. A read
//!
//! 1. lets the system bring the pages in (`MADV_POPULATE_READ`): bytes that are not there any more
//!    are an error here, not a signal;
//! 2. copies them out;
//! 3. asks the [guard](super::sigbus) whether the file was cut between the two;
//! 4. gives the pages back, so that a pass over a large file does not fill the memory of the
//!    process (they stay in the page cache);
//! 5. compares the file with what it was when it was opened.

#[cfg(target_os = "linux")]
pub(super) use linux::Mapped;
#[cfg(not(target_os = "linux"))]
pub(super) use other::Mapped;

#[cfg(target_os = "linux")]
mod linux {
    use std::io;
    use std::path::Path;

    use memmap2::{Advice, Mmap, UncheckedAdvice};

    use crate::error::Error;
    use crate::source::backend::Source;
    use crate::source::file_system::FileSystem;
    use crate::source::open_file::{BackendError, OpenFile};
    use crate::source::sigbus::Guard;

    /// A file, its map, and the guard over the map. An empty file has no map.
    #[derive(Debug)]
    pub(crate) struct Mapped {
        file: OpenFile,
        // Before the map: dropped first, so that no address is guarded that others may get.
        guard: Option<Guard>,
        map: Option<Mmap>,
    }

    impl Mapped {
        pub(crate) fn new(file: OpenFile) -> Result<Mapped, BackendError> {
            if let FileSystem::Remote { name } = FileSystem::of_file(&file.file) {
                let reason = format!("it is on {name}, where page faults are slow");
                return Err(BackendError::Unsupported { file, reason });
            }
            if file.byte_len() == 0 {
                let (guard, map) = (None, None);
                return Ok(Mapped { file, guard, map });
            }

            // SAFETY: no reference to the mapped bytes is ever made, so that nobody relies on their
            // staying the same; they are only copied from, through the raw pointer.
            let map = match unsafe { Mmap::map(&file.file) } {
                Ok(map) => map,
                Err(error) => {
                    let reason = format!("the file system does not map it: {error}");
                    return Err(BackendError::Unsupported { file, reason });
                }
            };
            match Guard::over(map.as_ptr().addr(), map.len()) {
                Ok(guard) => Ok(Mapped {
                    file,
                    guard: Some(guard),
                    map: Some(map),
                }),
                Err(reason) => Err(BackendError::Unsupported { file, reason }),
            }
        }

        fn try_read(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
            if data.is_empty() {
                return Ok(());
            }
            let len = data.len();
            let (Some(map), Some(guard)) = (&self.map, &self.guard) else {
                return Err(io::ErrorKind::UnexpectedEof.into());
            };
            let start = usize::try_from(offset).ok();
            let inside = |start: &usize| start.checked_add(len).is_some_and(|end| end <= map.len());
            let Some(start) = start.filter(inside) else {
                return Err(io::ErrorKind::UnexpectedEof.into());
            };

            match map.advise_range(Advice::PopulateRead, start, len) {
                // Older than Linux 5.14: the guard alone.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
                populated => populated?,
            }
            // SAFETY: `start..start + len` is inside the map, which lives as long as `self`, and
            // apart from `data`, which is borrowed exclusively. The bytes may change while they are
            // copied: any value is a `u8`, and the caller throws them away if the file changed.
            // Pages that are gone are replaced under the copy by the guard.
            unsafe {
                map.as_ptr()
                    .add(start)
                    .copy_to_nonoverlapping(data.as_mut_ptr(), len)
            };

            if guard.was_hit() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            // SAFETY: the map is of a file and never written to, so that the pages come back as the
            // file has them when somebody else reads them.
            unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, start, len) }
        }
    }

    impl Source for Mapped {
        fn path(&self) -> &Path {
            &self.file.path
        }

        fn byte_len(&self) -> u64 {
            self.file.byte_len()
        }

        fn read_at(&self, offset: u64, data: &mut [u8]) -> Result<(), Error> {
            let attempt = self.try_read(offset, data);
            self.file.check_read(offset, data.len(), attempt)
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod other {
    use std::path::Path;

    use crate::error::Error;
    use crate::source::backend::Source;
    use crate::source::open_file::{BackendError, OpenFile};

    /// Never made: a map without its guard would be a crash waiting.
    #[derive(Debug)]
    pub(crate) enum Mapped {}

    impl Mapped {
        pub(crate) fn new(file: OpenFile) -> Result<Mapped, BackendError> {
            let reason = "maps are guarded on Linux only".to_owned();
            Err(BackendError::Unsupported { file, reason })
        }
    }

    impl Source for Mapped {
        fn path(&self) -> &Path {
            match *self {}
        }

        fn byte_len(&self) -> u64 {
            match *self {}
        }

        fn read_at(&self, _: u64, _: &mut [u8]) -> Result<(), Error> {
            match *self {}
        }
    }
}
