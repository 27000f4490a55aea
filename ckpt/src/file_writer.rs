//! Writing one safetensors file with the layout of the reference crate.
//!
//! Tensors are ordered by descending alignment of their dtype, then by name. The header is padded
//! with spaces to 8 bytes. So every tensor is aligned, and equal content gives equal bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use meshgrad_error::{Error, Kind, Result, bail, ensure, error};
use serde::ser::{Serialize, SerializeMap, SerializeStruct, Serializer};

use crate::disk;
use crate::error::{duplicate_tensor, io_error};
use crate::header::PREFIX;
use crate::limits::{MAX_DIMS, MAX_HEADER_BYTES};
use crate::names::{METADATA_KEY, check_tensor_name};
use crate::output_file::{OutputFile, replace_file};
use crate::space;
use crate::{Dtype, TensorInfo};

/// Offsets in a file are signed; the header needs some room too.
const MAX_DATA_BYTES: u64 = i64::MAX as u64 - (PREFIX + MAX_HEADER_BYTES) as u64;

/// Collects the tensors of a safetensors file, then writes it.
///
/// ```
/// use meshgrad_ckpt::{Dtype, Error, FileWriter, TensorFile};
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("out.safetensors");
///
/// let mut writer = FileWriter::new();
/// writer.add("loss", Dtype::F32, &[1])?;
/// writer.save(&path, |_tensor, data| data.append(&0.5f32.to_le_bytes()))?;
///
/// assert_eq!(TensorFile::open(&path)?.read("loss")?, 0.5f32.to_le_bytes());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct FileWriter {
    tensors: BTreeSet<Planned>,
    names: BTreeSet<String>,
    data_len: u64,
    metadata: BTreeMap<String, String>,
}

/// A tensor whose offset is not known yet. `Ord` is the order of tensors in a file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Planned {
    dtype: std::cmp::Reverse<Dtype>,
    pub(crate) name: String,
    shape: Vec<usize>,
    pub(crate) byte_len: usize,
}

impl Planned {
    pub(crate) fn new(name: &str, dtype: Dtype, shape: &[usize]) -> Result<Planned> {
        if let Err(problem) = check_tensor_name(name) {
            bail!(Invalid, "invalid tensor name `{}`: {problem}", name.escape_debug());
        }

        match dtype.byte_len(shape) {
            Ok(byte_len) if shape.len() <= MAX_DIMS => Ok(Planned {
                dtype: std::cmp::Reverse(dtype),
                name: name.to_owned(),
                shape: shape.to_vec(),
                byte_len,
            }),
            _ => Err(bad_size(name, dtype, shape)),
        }
    }
}

fn bad_size(name: &str, dtype: Dtype, shape: &[usize]) -> Error {
    error!(
        Invalid,
        "tensor `{}` of {dtype} {shape:?} does not fit a file: it has more than {MAX_DIMS} dims, \
         no whole number of bytes, or makes the file larger than 2^63 bytes",
        name.escape_debug()
    )
}

/// A file whose layout is complete before any byte is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedFile {
    /// The first bytes: the header's length and the header.
    pub start: Vec<u8>,
    /// Its tensors, in order.
    pub tensors: Vec<TensorInfo>,
    /// Its size.
    pub bytes: u64,
}

impl PlannedFile {
    /// Writes the header and all tensors to the end of `file`; calls `data` once per tensor.
    pub(crate) fn write_to<E: From<Error>>(
        &self,
        file: &mut OutputFile,
        mut data: impl FnMut(&TensorInfo, &mut TensorSink<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        file.append(&self.start)?;
        for tensor in &self.tensors {
            let (name, expected) = (tensor.name.as_str(), tensor.byte_len());
            let mut sink = TensorSink { file, name, expected, actual: 0 };

            data(tensor, &mut sink)?;
            if sink.actual != sink.expected {
                return Err(sink.wrong_data().into());
            }
        }
        Ok(())
    }
}

/// Receives the data of one tensor, in order, in buffers of any size.
#[derive(Debug)]
pub struct TensorSink<'a> {
    file: &'a mut OutputFile,
    name: &'a str,
    expected: usize,
    actual: usize,
}

impl TensorSink<'_> {
    /// Appends bytes of the tensor: row-major, little-endian.
    ///
    /// # Errors
    /// For more bytes than the tensor has; as [`OutputFile::append`].
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.actual = self.actual.saturating_add(bytes.len());
        if self.actual > self.expected {
            return Err(self.wrong_data());
        }
        self.file.append(bytes)
    }

    fn wrong_data(&self) -> Error {
        let TensorSink { file, name, expected, actual } = self;
        error!(
            Invalid,
            "tensor `{}` has {expected} bytes but received {actual}{} in {}",
            name.escape_debug(),
            if actual > expected { " or more" } else { "" },
            file.path().display()
        )
    }
}

impl FileWriter {
    /// A file without tensors.
    pub fn new() -> FileWriter {
        FileWriter::default()
    }

    /// Adds a tensor; its data is requested when the file is written.
    ///
    /// # Errors
    /// For an invalid or repeated name, and a tensor that does not fit the file.
    pub fn add(&mut self, name: &str, dtype: Dtype, shape: &[usize]) -> Result<()> {
        self.add_planned(Planned::new(name, dtype, shape)?)
    }

    pub(crate) fn add_planned(&mut self, tensor: Planned) -> Result<()> {
        if self.names.contains(&tensor.name) {
            return Err(duplicate_tensor(Kind::Invalid, &tensor.name));
        }

        let data_len = self.data_len.checked_add(tensor.byte_len as u64);
        match data_len.filter(|&bytes| bytes <= MAX_DATA_BYTES) {
            Some(bytes) => self.data_len = bytes,
            None => return Err(bad_size(&tensor.name, tensor.dtype.0, &tensor.shape)),
        }

        self.names.insert(tensor.name.clone());
        self.tensors.insert(tensor);
        Ok(())
    }

    /// Adds a string to the header's metadata; the last value of a key counts.
    pub fn set_metadata(&mut self, key: &str, value: &str) {
        self.metadata.insert(key.to_owned(), value.to_owned());
    }

    /// Bytes of all tensors' data.
    pub fn data_len(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.byte_len as u64).sum()
    }

    /// The size of the file in bytes.
    ///
    /// # Errors
    /// When the header is too large for the format.
    pub fn file_len(&self) -> Result<u64> {
        Ok(self.plan()?.bytes)
    }

    /// The header and the offsets of the tensors, for several writers that each write their parts
    /// to a [`SharedFile`](crate::SharedFile).
    ///
    /// # Errors
    /// When the header is too large for the format.
    pub fn plan(&self) -> Result<PlannedFile> {
        self.plan_for(Path::new("the file"))
    }

    /// As [`FileWriter::plan`]; errors name `path`.
    pub(crate) fn plan_for(&self, path: &Path) -> Result<PlannedFile> {
        let header = self.header(path)?;
        let start = [&(header.len() as u64).to_le_bytes()[..], &header].concat();
        let tensors: Vec<TensorInfo> = self.layout(start.len() as u64).collect();
        Ok(PlannedFile { bytes: start.len() as u64 + self.data_len(), start, tensors })
    }

    /// Writes a temporary file and renames it to `path`, replacing an existing file.
    ///
    /// `data` is called once per tensor, in the order of the file, and must append exactly the
    /// tensor's bytes.
    ///
    /// # Errors
    /// Errors of `data`; when it does not append the tensor's bytes, the header is too large, or
    /// the file cannot be written ([`NoSpace`](crate::NoSpace) if the disk is full). An existing
    /// file at `path` is then untouched.
    pub fn save<E: From<Error>>(
        &self,
        path: impl AsRef<Path>,
        data: impl FnMut(&TensorInfo, &mut TensorSink<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let path = path.as_ref();
        space::check_space(path, self.file_len()?, disk::available_bytes(path))?;
        replace_file(path, |file| self.write_to(file, data))
    }

    /// Writes the same content as [`FileWriter::save`] to the end of `file`.
    ///
    /// # Errors
    /// As [`FileWriter::save`].
    pub fn write_to<E: From<Error>>(
        &self,
        file: &mut OutputFile,
        data: impl FnMut(&TensorInfo, &mut TensorSink<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        self.plan_for(file.path())?.write_to(file, data)
    }

    /// The tensors in the order of the file; their data starts at `start`.
    fn layout(&self, start: u64) -> impl Iterator<Item = TensorInfo> {
        self.tensors.iter().scan(start, |end, tensor| {
            let begin = *end;
            *end += tensor.byte_len as u64;

            Some(TensorInfo {
                name: tensor.name.clone(),
                dtype: tensor.dtype.0,
                shape: tensor.shape.clone(),
                range: begin..*end,
            })
        })
    }

    fn header(&self, path: &Path) -> Result<Vec<u8>> {
        // Strings and integers always have a JSON form.
        let mut json = serde_json::to_vec(&HeaderJson(self))
            .map_err(|error| io_error("lay out", path, error.into()))?;
        json.resize(json.len().next_multiple_of(PREFIX), b' ');

        ensure!(
            json.len() <= MAX_HEADER_BYTES,
            Invalid,
            "the header of {} would have {} bytes, but the format allows {MAX_HEADER_BYTES}; write \
             fewer tensors per file",
            path.display(),
            json.len()
        );
        Ok(json)
    }
}

/// The header as JSON, with keys in the order of the reference crate.
struct HeaderJson<'a>(&'a FileWriter);

impl Serialize for HeaderJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;

        if !self.0.metadata.is_empty() {
            map.serialize_entry(METADATA_KEY, &self.0.metadata)?;
        }
        for tensor in self.0.layout(0) {
            map.serialize_entry(&tensor.name, &EntryJson(&tensor))?;
        }
        map.end()
    }
}

struct EntryJson<'a>(&'a TensorInfo);

impl Serialize for EntryJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut entry = serializer.serialize_struct("TensorInfo", 3)?;
        entry.serialize_field("dtype", self.0.dtype.name())?;
        entry.serialize_field("shape", &self.0.shape)?;
        entry.serialize_field("data_offsets", &(self.0.range.start, self.0.range.end))?;
        entry.end()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn invalid_tensors_are_rejected_when_added() {
        let mut writer = FileWriter::new();
        writer.add("w", Dtype::F32, &[2]).unwrap();

        let error = writer.add("w", Dtype::F16, &[2]).unwrap_err();
        assert!(error.to_string().starts_with("two tensors have the name `w`"), "{error}");

        let error = writer.add("", Dtype::F32, &[2]).unwrap_err();
        assert_eq!(error.to_string(), "invalid tensor name ``: it is empty");

        let error = writer.add("huge", Dtype::F32, &[usize::MAX, 2]).unwrap_err();
        assert!(error.to_string().contains("does not fit a file"), "{error}");

        for name in ["a", "b"] {
            let _ = writer.add(name, Dtype::U8, &[usize::MAX / 9]);
        }
        let error = writer.add("too much", Dtype::U8, &[usize::MAX / 2]).unwrap_err();
        assert!(error.to_string().contains("does not fit a file"), "{error}");

        let error = writer.add("half", Dtype::F4, &[3]).unwrap_err();
        assert!(error.to_string().contains("`half` of F4 [3]"), "{error}");
    }

    /// Too few and too many bytes are errors; the old file is kept in both cases.
    #[test]
    fn data_of_the_wrong_length_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        fs::write(&path, b"old").unwrap();

        let mut writer = FileWriter::new();
        writer.add("w", Dtype::F32, &[2]).unwrap();

        for given in [0, 7, 9] {
            let error = writer.save(&path, |_, data| data.append(&vec![0; given])).unwrap_err();
            let found = format!("tensor `w` has 8 bytes but received {given} ");
            assert!(error.to_string().replace(" or more", "").starts_with(&found), "{error}");
            assert_eq!(fs::read(&path).unwrap(), b"old");
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        }
    }

    #[test]
    fn file_length_is_known_before_writing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        let mut writer = FileWriter::new();

        for (at, dtype) in Dtype::all().enumerate() {
            writer.add(&format!("w{at}"), dtype, &[at, 8]).unwrap();
            writer.set_metadata(&format!("key{at}"), "\"\n\u{1f600}");

            let zeros = |tensor: &TensorInfo, data: &mut TensorSink<'_>| {
                data.append(&vec![0; tensor.byte_len()])
            };
            writer.save(&path, zeros).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().len(), writer.file_len().unwrap());
        }
    }
}
