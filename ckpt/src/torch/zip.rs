//! The entries of a zip archive, which may be a part of a larger file.
//!
//! PKWARE APPNOTE 6.3.10: local file header (4.3.7), central directory (4.3.12), zip64 end of
//! central directory and its locator (4.3.14, 4.3.15), end of central directory (4.3.16), zip64
//! extra field (4.5.3).

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use meshgrad_error::{Result, bail};

use super::error::{bad_zip, no_entry, not_a_zip, too_large};
use super::failure::Read;
use crate::limits::MAX_HEADER_BYTES;

const LOCAL: &[u8] = b"PK\x03\x04";
const CENTRAL: &[u8] = b"PK\x01\x02";
const END: &[u8] = b"PK\x05\x06";
const END_64: &[u8] = b"PK\x06\x06";
const LOCATOR_64: &[u8] = b"PK\x06\x07";

const LOCAL_LEN: u64 = 30;
const CENTRAL_LEN: usize = 46;
const END_LEN: usize = 22;
const END_64_LEN: u64 = 56;
const LOCATOR_64_LEN: usize = 20;
const MAX_COMMENT: usize = u16::MAX as usize;

/// The entries of an archive.
#[derive(Debug)]
pub(super) struct Zip {
    /// The archive in its file.
    range: Range<u64>,
    /// The end of the entries, relative to the archive.
    entries_end: u64,
    entries: BTreeMap<String, Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The local header, relative to the archive.
    header: u64,
    bytes: u64,
    crc32: u32,
}

/// The place of the central directory, relative to the archive.
struct Directory {
    offset: u64,
    bytes: u64,
    entries: u64,
}

impl Zip {
    /// Reads the central directory of the archive at `range` of a file.
    pub(super) fn open(file: &File, range: Range<u64>) -> Read<Zip> {
        let archive = Archive { file, range };
        let directory = archive.directory()?;
        if directory.bytes > MAX_HEADER_BYTES as u64 {
            return Err(too_large("zip directory", directory.bytes).into());
        }
        let mut bytes = vec![0; directory.bytes as usize];
        archive.read(directory.offset, &mut bytes)?;
        let mut entries = BTreeMap::new();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (name, entry, after) = central(rest)?;
            if entries.insert(name, entry).is_some() {
                return Err(bad_zip("two entries have one name").into());
            }
            rest = after;
        }
        if entries.len() as u64 != directory.entries {
            return Err(bad_zip("its directory has another number of entries").into());
        }
        Ok(Zip { range: archive.range, entries_end: directory.offset, entries })
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// The CRC-32 of an entry's content in the directory.
    pub(super) fn crc32(&self, name: &str) -> Option<u32> {
        self.entries.get(name).map(|entry| entry.crc32)
    }

    /// The bytes of an entry in the file.
    pub(super) fn find(&self, file: &File, name: &str) -> Read<Range<u64>> {
        let entry = self.entries.get(name);
        let entry = entry.ok_or_else(|| no_entry(name))?;
        let archive = Archive { file, range: self.range.clone() };
        let mut header = [0; LOCAL_LEN as usize];
        archive.read(entry.header, &mut header)?;
        if !header.starts_with(LOCAL) {
            return Err(bad_zip("an entry has no local header").into());
        }
        let skipped = LOCAL_LEN + u64::from(u16_at(&header, 26)) + u64::from(u16_at(&header, 28));
        let start = entry.header.checked_add(skipped);
        let end = start.and_then(|start| start.checked_add(entry.bytes));
        match (start, end) {
            (Some(start), Some(end)) if end <= self.entries_end => {
                Ok(self.range.start + start..self.range.start + end)
            }
            _ => Err(bad_zip("an entry exceeds the archive").into()),
        }
    }
}

/// A part of a file.
struct Archive<'a> {
    file: &'a File,
    range: Range<u64>,
}

impl Archive<'_> {
    fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Reads bytes at an offset in the archive.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Read<()> {
        let end = offset.checked_add(bytes.len() as u64);
        if end.is_none_or(|end| end > self.len()) {
            return Err(bad_zip("it is truncated").into());
        }
        Ok(self.file.read_exact_at(bytes, self.range.start + offset)?)
    }

    fn directory(&self) -> Read<Directory> {
        let tail_len = self.len().min((LOCATOR_64_LEN + END_LEN + MAX_COMMENT) as u64);
        let mut tail = vec![0; tail_len as usize];
        self.read(self.len() - tail_len, &mut tail)?;
        let is_end = |at: &usize| {
            tail[*at..].starts_with(END)
                && at + END_LEN + usize::from(u16_at(&tail, at + 20)) == tail.len()
        };
        let last = tail.len().checked_sub(END_LEN).ok_or_else(not_a_zip)?;
        let at = (0..=last).rev().find(is_end).ok_or_else(not_a_zip)?;
        let (end, end_at) = (&tail[at..], self.len() - tail_len + at as u64);
        let directory = Directory {
            entries: u16_at(end, 10).into(),
            bytes: u32_at(end, 12).into(),
            offset: u32_at(end, 16).into(),
        };
        let directory = match at.checked_sub(LOCATOR_64_LEN) {
            Some(locator) if tail[locator..].starts_with(LOCATOR_64) => {
                self.directory_64(u64_at(&tail, locator + 8))?
            }
            _ => directory,
        };
        let directory_end = directory.offset.checked_add(directory.bytes);
        match directory_end.is_some_and(|it| it <= end_at) {
            true => Ok(directory),
            false => Err(bad_zip("its directory exceeds the archive").into()),
        }
    }

    fn directory_64(&self, offset: u64) -> Read<Directory> {
        let mut end = [0; END_64_LEN as usize];
        self.read(offset, &mut end)?;
        if !end.starts_with(END_64) {
            return Err(bad_zip("it has no zip64 end").into());
        }
        Ok(Directory {
            entries: u64_at(&end, 32),
            bytes: u64_at(&end, 40),
            offset: u64_at(&end, 48),
        })
    }
}

/// The first entry of a central directory, and the rest.
fn central(bytes: &[u8]) -> Result<(String, Entry, &[u8])> {
    let damaged = || bad_zip("its directory is damaged");
    if bytes.len() < CENTRAL_LEN || !bytes.starts_with(CENTRAL) {
        return Err(damaged());
    }
    let [name_len, extra_len, comment_len] = [28, 30, 32].map(|at| u16_at(bytes, at) as usize);
    let rest = &bytes[CENTRAL_LEN..];
    if rest.len() < name_len + extra_len + comment_len {
        return Err(damaged());
    }
    let (name, rest) = rest.split_at(name_len);
    let (extra, rest) = rest.split_at(extra_len);
    let name = std::str::from_utf8(name).map_err(|_| damaged())?;

    let mut wide = extra_64(extra);
    let mut field = |at: usize| match u32_at(bytes, at) {
        u32::MAX => wide.next().ok_or_else(damaged),
        value => Ok(value.into()),
    };
    let (bytes_unpacked, bytes_packed, header) = (field(24)?, field(20)?, field(42)?);
    let is_encrypted = u16_at(bytes, 8) & 1 != 0;
    let is_stored = u16_at(bytes, 10) == 0 && bytes_packed == bytes_unpacked;
    if is_encrypted || !is_stored {
        bail!(
            Unsupported,
            "its entry `{}` is compressed or encrypted; save it again with torch.save",
            name.escape_debug()
        );
    }
    let entry = Entry { header, bytes: bytes_unpacked, crc32: u32_at(bytes, 16) };
    Ok((name.to_owned(), entry, &rest[comment_len..]))
}

/// The numbers of the zip64 extra field: one for each 32-bit field that is full, in a fixed order.
fn extra_64(mut extra: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let mut found: &[u8] = &[];
    while extra.len() >= 4 {
        let (tag, len) = (u16_at(extra, 0), usize::from(u16_at(extra, 2)));
        let Some(content) = extra[4..].get(..len) else {
            break;
        };
        if tag == 1 {
            found = content;
            break;
        }
        extra = &extra[4 + len..];
    }
    found.chunks_exact(8).map(|it| u64_at(it, 0))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(number)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}
