//! A folder of `torch.distributed.checkpoint`: `.metadata` and files of chunks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use meshgrad_error::{Error, Result, bail, error};

use super::archive::{Archive, Stored};
use super::error::{damaged, lacks, no_chunk, not_a_tensor, too_large, unsupported};
use super::failure::{Failure, Read};
use super::globals::{Global, TorchDtype};
use super::model::{ArchiveAt, Format, TorchModel};
use super::pickle::{Id, Pickle, Value};
use super::tensor::{dtype_of, tensor, too_many_dims};
use crate::assembly::Assembly;
use crate::confined::ConfinedFolder;
use crate::error::io_error;
use crate::limits::{MAX_DIMS, MAX_HEADER_BYTES};
use crate::names::{Listed, check_file_name};
use crate::{Folder, TensorFile};

const METADATA_FILE: &str = ".metadata";

/// A tensor of the metadata.
struct Tensor {
    name: String,
    dtype: TorchDtype,
    shape: Vec<u64>,
    chunks: Vec<Chunk>,
}

struct Chunk {
    offsets: Vec<u64>,
    sizes: Vec<u64>,
    place: Place,
}

/// Bytes of a file.
#[derive(Clone)]
struct Place {
    file: String,
    range: Range<u64>,
}

pub(super) fn open(path: &Path, confined: &ConfinedFolder) -> Result<Option<TorchModel>> {
    let Some(file) = confined.open(METADATA_FILE)? else {
        return Ok(None);
    };
    let metadata_path = confined.path_of(METADATA_FILE);
    let pickle = read(&metadata_path, &file)?;
    let read = metadata(&pickle);
    let (tensors, left_out) = read.map_err(|it| Failure::Content(it).at(&metadata_path))?;

    let mut files: BTreeMap<&str, ChunkFile> = BTreeMap::new();
    let mut stored = Vec::new();
    let chunks = tensors.iter().flat_map(|tensor| tensor.chunks.iter().map(move |it| (tensor, it)));
    for (number, (tensor, chunk)) in chunks.enumerate() {
        let name = chunk.place.file.as_str();
        if !files.contains_key(name) {
            files.insert(name, ChunkFile::open(path, confined, name)?);
        }
        if let Some(file) = files.get_mut(name) {
            stored.push(file.add(tensor, chunk, number)?);
        }
    }

    let files = files
        .into_values()
        .map(|file| TensorFile::of_ranges(file.path, file.file, file.bytes, file.chunks));
    let folder = Folder::of_parts(path.to_owned(), files.collect::<Result<_>>()?)?;
    let mut assembly = Assembly::new(folder);
    let mut stored = stored.into_iter();
    for tensor in &tensors {
        let mut parts = Vec::with_capacity(tensor.chunks.len());
        for (chunk, stored) in tensor.chunks.iter().zip(&mut stored) {
            let offsets = packed(&chunk.offsets, tensor.dtype);
            let region = region(&offsets, &stored.shape);
            parts.push(stored.part(&mut assembly, Some(region))?);
        }
        assembly.add(&tensor.name, &packed(&tensor.shape, tensor.dtype), parts)?;
    }
    let places = tensors.iter().flat_map(|it| &it.chunks).map(|it| &it.place);
    let places: BTreeSet<(&str, u64, u64)> =
        places.map(|it| (it.file.as_str(), it.range.start, it.range.end)).collect();
    let archives = places
        .into_iter()
        .map(|(file, start, end)| ArchiveAt { file: confined.path_of(file), range: start..end });
    Ok(Some(TorchModel {
        assembly,
        left_out,
        format: Format::Distributed,
        archives: archives.collect(),
    }))
}

/// A chunk's region. Its ends saturate at the largest number.
fn region(offsets: &[u64], shape: &[u64]) -> Vec<Range<u64>> {
    let dims = offsets.iter().zip(shape);
    dims.map(|(start, extent)| *start..start.saturating_add(*extent)).collect()
}

/// Converts extents or offsets from elements of PyTorch to ours, which may be smaller.
fn packed(shape: &[u64], dtype: TorchDtype) -> Vec<u64> {
    let mut shape = shape.to_vec();
    if let Some(last) = shape.last_mut() {
        *last = last.saturating_mul(dtype.packed);
    }
    shape
}

fn read(path: &Path, file: &File) -> Result<Pickle> {
    let failed = |error| io_error("read", path, error);
    let bytes = file.metadata().map_err(failed)?.len();
    let invalid = |problem: Error| Failure::Content(problem).at(path);
    if bytes > MAX_HEADER_BYTES as u64 {
        return Err(invalid(too_large("pickle", bytes)));
    }
    let mut pickle = vec![0; bytes as usize];
    file.read_exact_at(&mut pickle, 0).map_err(failed)?;
    Pickle::read(pickle).map_err(invalid)
}

/// The tensors of the metadata, and the names of other values.
fn metadata(pickle: &Pickle) -> Result<(Vec<Tensor>, Vec<String>)> {
    let root = pickle.root();
    if pickle.object(root).is_none_or(|(class, _)| class != Global::Metadata) {
        return Err(lacks("Metadata"));
    }
    let values = pickle.field(root, "state_dict_metadata");
    let values = values.and_then(|it| pickle.dict(it));
    let values = values.ok_or_else(|| lacks("state_dict_metadata"))?;
    let places = places(pickle)?;
    let (mut tensors, mut left_out) = (Vec::new(), Vec::new());
    for (name, value) in values {
        let name = pickle.text(*name).ok_or_else(|| lacks("names of tensors"))?;
        match pickle.get(*value) {
            Value::Object { of: Global::TensorMetadata, .. } => {
                tensors.push(Tensor::of(pickle, name, *value, &places)?)
            }
            Value::Object { of: Global::BytesMetadata, .. } => left_out.push(name.to_owned()),
            _ => return Err(not_a_tensor(name)),
        }
    }
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    left_out.sort();
    Ok((tensors, left_out))
}

/// Where each chunk is, by the name of its tensor and its offsets.
type Places<'a> = BTreeMap<(&'a str, Vec<u64>), Place>;

fn places(pickle: &Pickle) -> Result<Places<'_>> {
    let data = pickle.field(pickle.root(), "storage_data");
    let data = data.and_then(|it| pickle.dict(it));
    let data = data.ok_or_else(|| lacks("storage_data"))?;
    let mut places = BTreeMap::new();
    for (index, info) in data {
        let name = pickle.field(*index, "fqn").and_then(|it| pickle.text(it));
        let name = name.ok_or_else(|| lacks("names in storage_data"))?;
        // Values that are not tensors have no offset.
        let offsets = pickle.field(*index, "offset");
        let Some(offsets) = offsets.and_then(|it| pickle.numbers(it)) else {
            continue;
        };
        let place = place(pickle, *info).ok_or_else(|| lacks("places in storage_data"))?;
        if let Some(problem) = place.1 {
            return Err(unsupported(name, &format!("its chunk at {offsets:?} {problem}")));
        }
        places.insert((name, offsets), place.0);
    }
    Ok(places)
}

/// A file and a range of its bytes, with the reason if they cannot be used.
fn place(pickle: &Pickle, info: Id) -> Option<(Place, Option<&'static str>)> {
    let number = |name| pickle.field(info, name).and_then(|it| pickle.number(it));
    let file = pickle.field(info, "relative_path");
    let file = file.and_then(|it| pickle.text(it))?.to_owned();
    let (start, bytes) = (number("offset")?, number("length")?);
    let range = start..start.checked_add(bytes)?;
    let transforms = pickle.field(info, "transform_descriptors");
    let is_plain = transforms.is_none_or(|it| match pickle.get(it) {
        Value::List(all) => all.is_empty(),
        other => *other == Value::None,
    });
    let problem = match check_file_name(&file) {
        Err(_) => Some("is in a file of another folder; move all files to one folder"),
        Ok(()) if !is_plain => Some("is compressed or encrypted; save it without extensions"),
        Ok(()) => None,
    };
    Some((Place { file, range }, problem))
}

impl Tensor {
    fn of(pickle: &Pickle, name: &str, value: Id, places: &Places<'_>) -> Result<Tensor> {
        let invalid = |problem| damaged(name, problem);
        let properties = pickle.field(value, "properties");
        let properties = properties.and_then(|it| pickle.object(it));
        let dtype = properties.and_then(|(_, state)| pickle.tuple(state)?.first());
        let dtype = dtype.ok_or_else(|| invalid("it has no dtype"))?;
        let dtype = dtype_of(pickle, *dtype, name)?;
        let numbers = |of, field| pickle.field(of, field).and_then(|it| pickle.numbers(it));
        let shape = numbers(value, "size").ok_or_else(|| invalid("it has no size"))?;
        if shape.len() > MAX_DIMS {
            return Err(too_many_dims(name, shape.len()));
        }
        let chunks = pickle.field(value, "chunks").map(|it| pickle.get(it));
        let Some(Value::List(chunks)) = chunks else {
            return Err(invalid("it has no chunks"));
        };
        let chunk = |chunk: &Id| {
            let (offsets, sizes) = (numbers(*chunk, "offsets"), numbers(*chunk, "sizes"));
            let dims = shape.len();
            let (Some(offsets), Some(sizes)) = (offsets, sizes) else {
                return Err(invalid("a chunk has no offsets or sizes"));
            };
            if offsets.len() != dims || sizes.len() != dims {
                return Err(invalid("a chunk has another number of dims"));
            }
            match places.get(&(name, offsets.clone())) {
                Some(place) => Ok(Chunk { offsets, sizes, place: place.clone() }),
                None => Err(no_chunk(name, &offsets, "is not in storage_data")),
            }
        };
        Ok(Tensor {
            name: name.to_owned(),
            dtype,
            chunks: chunks.iter().map(chunk).collect::<Result<_>>()?,
            shape,
        })
    }
}

/// A file of chunks, and the chunks found in it so far.
struct ChunkFile {
    path: PathBuf,
    file: File,
    bytes: u64,
    chunks: Vec<crate::TensorInfo>,
}

impl ChunkFile {
    fn open(folder: &Path, confined: &ConfinedFolder, name: &str) -> Result<ChunkFile> {
        let path = confined.path_of(name);
        let Some(file) = confined.open(name)? else {
            bail!(
                Malformed,
                "{} names missing files: {}; download them again",
                folder.join(METADATA_FILE).display(),
                Listed(&[name])
            );
        };
        let metadata = file.metadata().map_err(|error| io_error("open", &path, error))?;
        Ok(ChunkFile { path, file, bytes: metadata.len(), chunks: Vec::new() })
    }

    /// Checks a chunk and adds it under a unique name.
    fn add(&mut self, tensor: &Tensor, chunk: &Chunk, number: usize) -> Result<Stored> {
        let stored = self.find(tensor, chunk, number);
        let stored = stored.map_err(|failure| failure.at(&self.path))?;
        self.chunks.push(stored.info.clone());
        Ok(stored)
    }

    fn find(&self, of: &Tensor, chunk: &Chunk, number: usize) -> Read<Stored> {
        if chunk.place.range.end > self.bytes {
            let problem = "is after the end of its file, which is truncated";
            return Err(no_chunk(&of.name, &chunk.offsets, problem).into());
        }
        let archive = Archive::open(&self.file, chunk.place.range.clone())?;
        let found = tensor(&archive.pickle, archive.pickle.root(), &of.name)?;
        let found = found.ok_or_else(|| not_a_tensor(&of.name))?;
        if (found.dtype, &found.shape) != (of.dtype, &chunk.sizes) {
            let Chunk { offsets, sizes, .. } = chunk;
            let mismatch = error!(
                Malformed,
                "the chunk of `{}` at {offsets:?} should be {} {sizes:?}, but is {} {:?}",
                of.name.escape_debug(),
                of.dtype.dtype,
                found.dtype.dtype,
                found.shape
            );
            return Err(mismatch.into());
        }
        archive.locate(&found, &of.name, &format!("{number}:{}", of.name))
    }
}
