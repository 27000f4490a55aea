//! Positioned reads through the page cache.

use std::os::unix::fs::FileExt;
use std::path::Path;

use meshgrad_error::Result;

use super::backend::Source;
use super::open_file::OpenFile;

#[derive(Debug)]
pub(super) struct Pread(pub(super) OpenFile);

impl Source for Pread {
    fn path(&self) -> &Path {
        &self.0.path
    }

    fn byte_len(&self) -> u64 {
        self.0.byte_len()
    }

    fn read_at(&self, offset: u64, data: &mut [u8]) -> Result<()> {
        let attempt = self.0.file.read_exact_at(data, offset);
        self.0.check_read(offset, data.len(), attempt)
    }
}
