//! The CRC-32 of zip entries, to find damage in files without a manifest.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use meshgrad_error::Result;

use super::archive::Archive;
use super::crc32::Crc32;
use super::error::wrong_checksum;
use super::failure::Failure;
use super::model::{ArchiveAt, Format, TorchModel};
use crate::TensorFile;
use crate::error::{io_error, not_a_file};

/// Bytes that are read at once.
const WINDOW: u64 = 1 << 20;

/// The checksums of a model's files.
#[derive(Clone, Debug)]
pub struct Checksums {
    /// One for each entry, in the order of files and names.
    pub entries: Vec<Checksum>,
    /// Archives that were written without checksums (`set_crc32_options(False)`).
    pub without: usize,
}

/// An entry of a zip archive, and the CRC-32 of its content.
#[derive(Clone, Debug)]
pub struct Checksum {
    file: PathBuf,
    name: String,
    range: Range<u64>,
    crc32: u32,
}

impl Checksum {
    /// The file.
    pub fn path(&self) -> &Path {
        &self.file
    }

    /// The name of the entry.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its content, in bytes of the file.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Bytes of its content.
    pub fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }
}

impl TorchModel {
    /// The checksums of all zip entries. Reads no data of tensors.
    ///
    /// # Errors
    /// When a file cannot be read, or has changed since it was opened.
    pub fn checksums(&self) -> Result<Checksums> {
        let (mut entries, mut without) = (Vec::new(), 0);
        for ArchiveAt { file, range } in &self.archives {
            let handle = self.file(file)?.handle();
            let of_archive = Archive::open(handle, range.clone());
            let of_archive = of_archive.and_then(|archive| archive.entries());
            let of_archive = of_archive.map_err(|failure| failure.at(file))?;
            // Without checksums, torch writes zeros.
            if of_archive.iter().all(|(_, _, crc32)| *crc32 == 0) {
                without += 1;
                continue;
            }
            entries.extend(of_archive.into_iter().map(|(name, range, crc32)| Checksum {
                file: file.clone(),
                name,
                range,
                crc32,
            }));
        }
        Ok(Checksums { entries, without })
    }

    /// Reads an entry and compares its content with the checksum.
    ///
    /// # Errors
    /// When they differ, or the file cannot be read.
    pub fn verify(&self, entry: &Checksum) -> Result<()> {
        let file = self.file(&entry.file)?;
        let found = crc32(file.handle(), &entry.range)
            .map_err(|error| io_error("read", &entry.file, error))?;
        if found == entry.crc32 {
            return Ok(());
        }
        let tensors = self.stored_in(file, &entry.range);
        let wrong = wrong_checksum(&entry.name, entry.crc32, found, &tensors);
        Err(Failure::Content(wrong).at(&entry.file))
    }

    fn file(&self, path: &PathBuf) -> Result<&TensorFile> {
        let mut files = self.assembly.folder().files().iter();
        let found = files.find(|file| file.path() == path);
        found.ok_or_else(|| not_a_file(path))
    }

    /// The tensors that have elements in these bytes of a file.
    fn stored_in(&self, file: &TensorFile, range: &Range<u64>) -> Vec<String> {
        let stored = file.tensors().iter();
        let stored = stored.filter(|it| it.range.start < range.end && range.start < it.range.end);
        let name = |name: &str| match self.format {
            // A chunk has the name of its tensor after a number.
            Format::Distributed => name.split_once(':').map_or(name, |it| it.1).to_owned(),
            Format::File | Format::Folder => name.to_owned(),
        };
        stored.map(|it| name(&it.name)).collect()
    }
}

fn crc32(file: &File, range: &Range<u64>) -> std::io::Result<u32> {
    let mut window = vec![0; (range.end - range.start).min(WINDOW) as usize];
    let (mut crc, mut at) = (Crc32::new(), range.start);
    while at < range.end {
        let part = &mut window[..(range.end - at).min(WINDOW) as usize];
        file.read_exact_at(part, at)?;
        crc.update(part);
        at += part.len() as u64;
    }
    Ok(crc.finish())
}
