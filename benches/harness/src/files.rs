//! File access that bypasses the page cache, and memory that is mapped in advance.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

use memmap2::MmapMut;

/// The alignment of direct reads and writes, in bytes.
pub const PAGE: usize = 4096;

/// Opens a file with `O_DIRECT`, which bypasses the page cache.
#[cfg(target_os = "linux")]
pub fn open_direct(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;

    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    options.custom_flags(direct).open(path)
}

/// Direct I/O is supported on Linux only.
#[cfg(not(target_os = "linux"))]
pub fn open_direct(_: &mut OpenOptions, _: &Path) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Syncs a file and drops its pages from the page cache.
#[cfg(target_os = "linux")]
pub fn drop_pages(file: &File) -> io::Result<()> {
    // Only pages that are on disk can be dropped.
    file.sync_all()?;
    Ok(rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?)
}

/// Dropping pages is supported on Linux only.
#[cfg(not(target_os = "linux"))]
pub fn drop_pages(_: &File) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Maps at least one page of untouched memory, in huge pages if the system has them.
pub fn map_new(bytes: usize) -> io::Result<MmapMut> {
    let memory = MmapMut::map_anon(bytes.max(PAGE))?;
    // Fails if the kernel has no huge pages.
    #[cfg(target_os = "linux")]
    let _ = memory.advise(memmap2::Advice::HugePage);
    Ok(memory)
}

/// Maps memory and touches all its pages.
pub fn map_touched(bytes: usize) -> io::Result<MmapMut> {
    let mut memory = map_new(bytes)?;
    memory.fill(1);
    Ok(memory)
}
