//! Copies from a memory map.
//!
//! A map shows the current content of its file, and an access after the file's end kills the
//! process with SIGBUS. So nothing here borrows from the map. A read
//!
//! 1. asks the system to load the pages (`MADV_POPULATE_READ`): missing bytes are an error here,
//!    not a signal;
//! 2. copies them;
//! 3. checks with the [guard](super::sigbus) that the file was not truncated between the two;
//! 4. releases the pages, so that a pass over a large file does not fill the memory of the process
//!    (they stay in the page cache);
//! 5. checks that the file has not changed since it was opened.

#[cfg(target_os = "linux")]
pub(super) use linux::Mapped;
#[cfg(not(target_os = "linux"))]
pub(super) use other::Mapped;

#[cfg(target_os = "linux")]
mod linux {
    use std::io;
    use std::path::Path;

    use memmap2::{Advice, Mmap, UncheckedAdvice};
    use meshgrad_error::Result;

    use crate::source::backend::Source;
    use crate::source::file_system::FileSystem;
    use crate::source::open_file::{BackendError, OpenFile};
    use crate::source::sigbus::Guard;

    /// A file, its map, and the map's guard. An empty file has no map.
    #[derive(Debug)]
    pub(crate) struct Mapped {
        file: OpenFile,
        // Declared before the map, so that it is dropped first: a later mapping at the same address
        // must not be guarded.
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

            // SAFETY: no reference to the mapped bytes is ever created, so nothing relies on them
            // staying the same; they are only copied through the raw pointer.
            let map = match unsafe { Mmap::map(&file.file) } {
                Ok(map) => map,
                Err(error) => {
                    let reason = format!("the file system cannot map it: {error}");
                    return Err(BackendError::Unsupported { file, reason });
                }
            };
            match Guard::over(map.as_ptr().addr(), map.len()) {
                Ok(guard) => Ok(Mapped { file, guard: Some(guard), map: Some(map) }),
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
                // Linux before 5.14 lacks this advice; the guard is enough.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
                populated => populated?,
            }
            // SAFETY: `start..start + len` is inside the map, which lives as long as `self`, and
            // does not overlap `data`, which is borrowed exclusively. The bytes may change during
            // the copy: any value is a valid `u8`, and the caller discards them if the file
            // changed. If pages disappear during the copy, the guard replaces them.
            unsafe { map.as_ptr().add(start).copy_to_nonoverlapping(data.as_mut_ptr(), len) };

            if guard.was_hit() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            // SAFETY: the map is of a file and never written, so the system reads the pages from
            // the file again on the next access.
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

        fn read_at(&self, offset: u64, data: &mut [u8]) -> Result<()> {
            let attempt = self.try_read(offset, data);
            self.file.check_read(offset, data.len(), attempt)
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod other {
    use std::path::Path;

    use meshgrad_error::Result;

    use crate::source::backend::Source;
    use crate::source::open_file::{BackendError, OpenFile};

    /// Never constructed: a map without its guard could crash the process.
    #[derive(Debug)]
    pub(crate) enum Mapped {}

    impl Mapped {
        pub(crate) fn new(file: OpenFile) -> Result<Mapped, BackendError> {
            let reason = "maps are supported on Linux only".to_owned();
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

        fn read_at(&self, _: u64, _: &mut [u8]) -> Result<()> {
            match *self {}
        }
    }
}
