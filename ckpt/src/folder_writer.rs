//! Writing a Hugging Face folder: one file if it fits, otherwise several and an index.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use meshgrad_error::{Error, Kind, Result};

use crate::error::duplicate_tensor;
use crate::file_writer::Planned;
use crate::index::SINGLE_FILE;
use crate::{Dtype, FileWriter, FolderLayout, Staging, TensorInfo, TensorSink};

/// The default of `transformers`: 5 GB.
const DEFAULT_MAX_SHARD_BYTES: u64 = 5_000_000_000;

/// Collects the tensors of a model, then writes them to a folder that is being staged.
///
/// Tensors fill the files in the order in which they were added, so related tensors stay together.
/// The metadata of each file contains `format: pt`, which `transformers` requires.
#[derive(Debug, Clone)]
pub struct FolderWriter {
    tensors: Vec<Planned>,
    names: BTreeSet<String>,
    metadata: BTreeMap<String, String>,
    max_shard_bytes: u64,
}

impl Default for FolderWriter {
    fn default() -> FolderWriter {
        FolderWriter {
            tensors: Vec::new(),
            names: BTreeSet::new(),
            metadata: BTreeMap::from([("format".to_owned(), "pt".to_owned())]),
            max_shard_bytes: DEFAULT_MAX_SHARD_BYTES,
        }
    }
}

impl FolderWriter {
    /// A model without tensors, in files of at most 5 GB.
    pub fn new() -> FolderWriter {
        FolderWriter::default()
    }

    /// Limits the data of a file to `bytes`; a larger tensor gets its own file.
    pub fn max_shard_bytes(mut self, bytes: u64) -> FolderWriter {
        self.max_shard_bytes = bytes;
        self
    }

    /// Adds a string to the metadata of each file; the last value of a key counts.
    pub fn set_metadata(&mut self, key: &str, value: &str) {
        self.metadata.insert(key.to_owned(), value.to_owned());
    }

    /// Adds a tensor; its data is requested when the folder is written.
    ///
    /// # Errors
    /// As [`FileWriter::add`].
    pub fn add(&mut self, name: &str, dtype: Dtype, shape: &[usize]) -> Result<()> {
        let tensor = Planned::new(name, dtype, shape)?;

        if !self.names.insert(tensor.name.clone()) {
            return Err(duplicate_tensor(Kind::Invalid, &tensor.name));
        }
        self.tensors.push(tensor);
        Ok(())
    }

    /// Bytes of all tensors' data.
    pub fn data_len(&self) -> u64 {
        let bytes = self.tensors.iter().map(|tensor| tensor.byte_len as u64);
        bytes.fold(0, u64::saturating_add)
    }

    /// Writes all files to `folder`, a path below the staging folder; "" for the staging folder
    /// itself. A path that ends in `.safetensors` is that of a single file.
    ///
    /// `data` is called once per tensor, file after file, and must append exactly the tensor's
    /// bytes.
    ///
    /// # Errors
    /// Errors of `data`; as [`FileWriter::save`]. If the system reports free space, a lack of space
    /// is found before anything is written.
    pub fn write<E: From<Error>>(
        self,
        staging: &mut Staging,
        folder: &str,
        data: impl FnMut(&TensorInfo, &mut TensorSink<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        self.layout(folder)?.write(staging, data)
    }

    /// The layout of the files, for ranks that write them together; `folder` is as in
    /// [`FolderWriter::write`]. It depends only on the tensors and the order in which they were
    /// added.
    ///
    /// # Errors
    /// When a header is too large for the format.
    pub fn layout(&self, folder: &str) -> Result<FolderLayout> {
        let (folder, name) = match folder.ends_with(".safetensors") {
            true => folder.rsplit_once('/').unwrap_or(("", folder)),
            false => (folder, ""),
        };
        let shards = match name {
            "" => split(&self.tensors, self.max_shard_bytes),
            _ => vec![self.tensors.iter().collect()],
        };
        let count = shards.len();

        let mut files = Vec::with_capacity(count);
        for (at, tensors) in shards.into_iter().enumerate() {
            let name = match count {
                1 if !name.is_empty() => name.to_owned(),
                1 => SINGLE_FILE.to_owned(),
                _ => format!("model-{:05}-of-{count:05}.safetensors", at + 1),
            };

            let mut file = FileWriter::new();
            for (key, value) in &self.metadata {
                file.set_metadata(key, value);
            }
            for tensor in tensors {
                file.add_planned(tensor.clone())?;
            }
            files.push((file.plan_for(Path::new(&name))?, name));
        }
        Ok(FolderLayout::new(folder, files))
    }
}

/// Fills one file after the other; returns at least one.
fn split(tensors: &[Planned], max_bytes: u64) -> Vec<Vec<&Planned>> {
    let mut shards = vec![Vec::new()];
    let mut filled = 0u64;

    for tensor in tensors {
        let bytes = tensor.byte_len as u64;
        let fits = filled.saturating_add(bytes) <= max_bytes;

        match shards.last_mut() {
            Some(shard) if fits || shard.is_empty() => {
                shard.push(tensor);
                filled = filled.saturating_add(bytes);
            }
            _ => {
                shards.push(vec![tensor]);
                filled = bytes;
            }
        }
    }
    shards
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(tensors: &[usize], max_bytes: u64) -> Vec<Vec<usize>> {
        let planned = tensors
            .iter()
            .enumerate()
            .map(|(at, &bytes)| Planned::new(&format!("w{at}"), Dtype::U8, &[bytes]).unwrap());
        let planned: Vec<Planned> = planned.collect();

        let shards = split(&planned, max_bytes);
        shards.iter().map(|shard| shard.iter().map(|tensor| tensor.byte_len).collect()).collect()
    }

    #[test]
    fn files_fill_in_order_and_large_tensors_get_their_own() {
        assert_eq!(sizes(&[4, 4, 4], 8), [vec![4, 4], vec![4]]);
        assert_eq!(sizes(&[4, 20, 4, 4], 8), [vec![4], vec![20], vec![4, 4]]);
        assert_eq!(sizes(&[20, 0, 1], 8), [vec![20], vec![0, 1]]);
        assert_eq!(sizes(&[1, 2, 3], 0), [vec![1], vec![2], vec![3]]);
        assert_eq!(sizes(&[4, 4], 8), [vec![4, 4]]);
        assert_eq!(sizes(&[], 8), [Vec::<usize>::new()]);
    }
}
