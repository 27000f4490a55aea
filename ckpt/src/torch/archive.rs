//! An archive of `torch.save`, and where its tensors are in the file.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use meshgrad_error::{Result, error};

use super::crc32::Crc32;
use super::error::{bad_zip, damaged, no_entry, not_a_zip, too_large, unsupported, wrong_checksum};
use super::failure::Read;
use super::pickle::Pickle;
use super::tensor::TorchTensor;
use super::view::View;
use super::zip::Zip;
use crate::limits::MAX_HEADER_BYTES;
use crate::{Dtype, TensorInfo};

pub(super) struct Archive<'f> {
    file: &'f File,
    zip: Zip,
    /// The folder of all entries.
    root: String,
    pub(super) pickle: Pickle,
}

/// A stored tensor: the bytes of a contiguous tensor, or the storage that it is a view of.
pub(super) struct Stored {
    pub(super) info: TensorInfo,
    pub(super) view: Option<View>,
    /// The tensor's own shape.
    pub(super) shape: Vec<u64>,
}

impl<'f> Archive<'f> {
    /// Reads the pickle of the archive at `range` of a file.
    pub(super) fn open(file: &'f File, range: Range<u64>) -> Read<Archive<'f>> {
        check_format(file, &range)?;
        let zip = Zip::open(file, range)?;
        let folder = |name: &str| {
            let folder = name.strip_suffix("/data.pkl")?;
            (!folder.contains('/')).then(|| folder.to_owned())
        };
        let root = zip.names().find_map(folder).ok_or_else(|| no_entry("data.pkl"))?;

        let order = format!("{root}/byteorder");
        if zip.names().any(|name| name == order) {
            let range = zip.find(file, &order)?;
            match &read(file, range, "byte order")?[..] {
                b"little" => {}
                b"big" => {
                    let problem = error!(
                        Unsupported,
                        "its byte order is big-endian; save it again on a little-endian machine"
                    );
                    return Err(problem.into());
                }
                _ => return Err(bad_zip("it has an unknown byte order").into()),
            }
        }
        let name = format!("{root}/data.pkl");
        let range = zip.find(file, &name)?;
        let bytes = read(file, range, "pickle")?;
        check_pickle(&zip, &name, &bytes)?;
        let pickle = Pickle::read(bytes)?;
        Ok(Archive { file, zip, root, pickle })
    }

    /// Finds the bytes of a tensor in the file and gives them the name `stored`.
    pub(super) fn locate(&self, tensor: &TorchTensor, name: &str, stored: &str) -> Read<Stored> {
        let invalid = |problem| damaged(name, problem);
        let path = format!("{}/data/{}", self.root, tensor.storage);
        let storage = self.zip.find(self.file, &path)?;
        if storage.end - storage.start != tensor.storage_bytes {
            return Err(invalid("its storage has another size than its data").into());
        }
        let size = tensor.dtype.bytes();
        let elements = tensor.elements();
        let elements = elements.ok_or_else(|| invalid("it has too many elements"))?;
        if !tensor.is_contiguous() {
            let view = View::new(tensor, name)?;
            let whole = tensor.storage_bytes / size;
            let bytes = storage.start..storage.start + whole * size;
            return Ok(Stored {
                info: info(stored, tensor.dtype.dtype, &[whole], bytes),
                view: Some(view),
                shape: tensor.shape.clone(),
            });
        }
        let mut shape = tensor.shape.clone();
        let start = tensor.offset.checked_mul(size);
        let bytes = elements.checked_mul(size);
        let bytes = start.zip(bytes).and_then(|(start, bytes)| {
            let start = storage.start.checked_add(start)?;
            Some(start..start.checked_add(bytes)?)
        });
        let bytes = bytes.filter(|it| it.end <= storage.end || it.is_empty());
        let bytes = bytes.ok_or_else(|| invalid("it exceeds its storage"))?;
        if tensor.dtype.packed > 1 {
            let last = shape.last_mut();
            let half = || unsupported(name, "its element is half a byte; save tensor.view(1)");
            let last = last.ok_or_else(half)?;
            *last = last.saturating_mul(tensor.dtype.packed);
        }
        // An empty tensor may have any offset.
        let bytes = if bytes.is_empty() { storage.start..storage.start } else { bytes };
        Ok(Stored { info: info(stored, tensor.dtype.dtype, &shape, bytes), view: None, shape })
    }

    /// The bytes and the CRC-32 of each entry, by name.
    pub(super) fn entries(&self) -> Read<Vec<(String, Range<u64>, u32)>> {
        let entry = |name: &str| {
            let range = self.zip.find(self.file, name)?;
            let crc32 = self.zip.crc32(name).unwrap_or(0);
            Ok((name.to_owned(), range, crc32))
        };
        self.zip.names().map(entry).collect()
    }
}

fn info(name: &str, dtype: Dtype, shape: &[u64], range: Range<u64>) -> TensorInfo {
    TensorInfo {
        name: name.to_owned(),
        dtype,
        shape: shape.iter().map(|extent| *extent as usize).collect(),
        range,
    }
}

/// Compares a pickle with its CRC-32. Changed bytes could otherwise pass for values that are not
/// supported, or for other shapes. Archives without checksums list zeros.
fn check_pickle(zip: &Zip, name: &str, bytes: &[u8]) -> Result<()> {
    let mut crc32 = Crc32::new();
    crc32.update(bytes);
    let found = crc32.finish();
    match zip.crc32(name) {
        Some(listed) if listed != 0 && listed != found => {
            Err(wrong_checksum(name, listed, found, &[]))
        }
        _ => Ok(()),
    }
}

/// Recognizes the formats before PyTorch 1.6: a pickle, or a tar archive.
fn check_format(file: &File, range: &Range<u64>) -> Read<()> {
    let mut start = [0; 262];
    let len = (range.end - range.start).min(start.len() as u64) as usize;
    let start = &mut start[..len];
    file.read_exact_at(start, range.start)?;
    if start.starts_with(b"PK\x03\x04") {
        return Ok(());
    }
    let is_pickle = start.starts_with(&[super::opcodes::PROTO]);
    if !is_pickle && !start.ends_with(b"ustar") {
        return Err(not_a_zip().into());
    }
    let problem = error!(
        Unsupported,
        "it has the format of PyTorch before 1.6; save it again: python -c \"import torch; \
         torch.save(torch.load('FILE', map_location='cpu', weights_only=True), 'FILE')\""
    );
    Err(problem.into())
}

/// Reads an entry of limited size.
fn read(file: &File, range: Range<u64>, what: &'static str) -> Read<Vec<u8>> {
    let bytes = range.end - range.start;
    if bytes > MAX_HEADER_BYTES as u64 {
        return Err(too_large(what, bytes).into());
    }
    let mut data = vec![0; bytes as usize];
    file.read_exact_at(&mut data, range.start)?;
    Ok(data)
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    /// An error of the system is not damage of the file, and is kept.
    #[test]
    fn errors_of_the_system_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.bin");
        // Reading a file that is open for writing only fails.
        let file = File::create(&path).unwrap();
        file.write_all_at(b"PK\x03\x04 and more", 0).unwrap();
        for failure in [
            Archive::open(&file, 0..12).err().unwrap(),
            Zip::open(&file, 0..12).unwrap_err(),
            read(&file, 0..12, "pickle").unwrap_err(),
        ] {
            let error = failure.at(&path);
            let source = error.source().and_then(|it| it.downcast_ref::<std::io::Error>());
            let bad_descriptor = rustix::io::Errno::BADF.raw_os_error();
            assert_eq!(source.unwrap().raw_os_error(), Some(bad_descriptor));
        }
    }
}
