//! The layout of a Hugging Face folder: the offset of every byte, before any is written.
//!
//! ```text
//!   coordinator                          each rank
//!   model.layout("")                     model.layout(""): the same
//!   layout.create(&mut staging)
//!        staging.folder() -------------> Writer::join(folder, "rank 3")
//!                                        layout.write_region(&mut writer, tensor, ..) ...
//!   staging.accept(report)  <----------- writer.finish()
//!   staging.commit()
//! ```
//!
//! Ranks that add the same tensors in the same order compute the same layout, so they agree on
//! files and offsets without communication. For any number of ranks and any distribution of the
//! tensors, the files equal those that one process writes
//! ([`FolderWriter::write`](crate::FolderWriter::write)).

use std::collections::BTreeMap;
use std::ops::Range;

use meshgrad_error::{Error, Result, ensure};

use crate::index::{self, INDEX_FILE};
use crate::tensor_file::no_tensor;
use crate::{Digest, PlannedFile, Staging, TensorInfo, TensorSink, Writer, write_region};

/// The files of a Hugging Face folder, with headers and the offsets of their tensors.
///
/// ```
/// use meshgrad_ckpt::{Dtype, Folder, FolderLayout, FolderWriter, Staging, Writer, step_name};
///
/// fn layout() -> meshgrad_ckpt::Result<FolderLayout> {
///     let mut model = FolderWriter::new().max_shard_bytes(8);
///     model.add("down.weight", Dtype::U8, &[2, 4])?;
///     model.add("norm.weight", Dtype::U8, &[4])?;
///     model.layout("")
/// }
///
/// let run = tempfile::tempdir()?;
/// let mut staging = Staging::new(run.path(), &step_name(7))?;
/// layout()?.create(&mut staging)?;
/// staging.expect_writers(["rank 0", "rank 1"]);
///
/// // Ranks are usually processes; here a loop plays both. Each has half of the columns.
/// for rank in 0..2 {
///     let (layout, half) = (layout()?, 2 * rank..2 * rank + 2);
///     let mut writer = Writer::join(staging.folder(), &format!("rank {rank}"))?;
///     layout.write_region(&mut writer, "down.weight", &[0..2, half.clone()], &[rank as u8; 4])?;
///     layout.write_region(&mut writer, "norm.weight", &[half], &[rank as u8; 2])?;
///     staging.accept(writer.finish()?)?;
/// }
///
/// let folder = Folder::open(staging.commit()?.path())?;
/// assert_eq!(folder.files().len(), 2);
/// assert_eq!(folder.read("down.weight")?, [0, 0, 1, 1, 0, 0, 1, 1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderLayout {
    files: Vec<LaidOut>,
    /// For each tensor its file and its position in that file.
    locations: BTreeMap<String, (usize, usize)>,
    /// Present if there are several files.
    index: Option<Index>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct LaidOut {
    /// Relative to the staging folder.
    path: String,
    file: PlannedFile,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Index {
    path: String,
    json: String,
}

impl FolderLayout {
    /// A layout of files, in the order of the shards, each with its name in `folder`.
    pub(crate) fn new(folder: &str, files: Vec<(PlannedFile, String)>) -> FolderLayout {
        let mut locations = BTreeMap::new();
        for (number, (file, _)) in files.iter().enumerate() {
            let tensors = file.tensors.iter().enumerate();
            locations.extend(tensors.map(|(at, tensor)| (tensor.name.clone(), (number, at))));
        }

        let index = (files.len() > 1).then(|| {
            let tensors = files.iter().flat_map(|(file, _)| &file.tensors);
            let total_size = tensors.map(|tensor| tensor.byte_len() as u64).sum();
            let file_of = |(tensor, (file, _)): (&String, &(usize, usize))| {
                (tensor.clone(), files[*file].1.clone())
            };
            Index {
                path: below(folder, INDEX_FILE),
                json: index::to_json(total_size, &locations.iter().map(file_of).collect()),
            }
        });
        let laid_out =
            |(file, name): (PlannedFile, String)| LaidOut { path: below(folder, &name), file };
        FolderLayout { files: files.into_iter().map(laid_out).collect(), locations, index }
    }

    /// The files with tensors, by path below the staging folder.
    pub fn files(&self) -> impl ExactSizeIterator<Item = (&str, &PlannedFile)> + Clone {
        self.files.iter().map(|it| (it.path.as_str(), &it.file))
    }

    /// A tensor and the path of its file below the staging folder.
    pub fn location(&self, tensor: &str) -> Option<(&str, &TensorInfo)> {
        let (file, at) = *self.locations.get(tensor)?;
        let LaidOut { path, file } = &self.files[file];
        Some((path, &file.tensors[at]))
    }

    /// Bytes of all files: headers, data, index.
    pub fn bytes(&self) -> u64 {
        let index = self.index.iter().map(|it| it.json.len() as u64);
        let files = self.files.iter().map(|it| it.file.bytes);
        files.chain(index).fold(0, u64::saturating_add)
    }

    /// A digest of all paths and headers, which ranks can compare before they write.
    pub fn digest(&self) -> Digest {
        let mut all = Vec::new();
        for LaidOut { path, file } in &self.files {
            all.extend_from_slice(path.as_bytes());
            all.extend_from_slice(&file.start);
        }
        Digest::of(&all)
    }

    /// Creates all files with their size, headers and index, so that ranks can write their parts.
    /// Called by the coordinator.
    ///
    /// # Errors
    /// [`NoSpace`](crate::NoSpace), before anything is written; errors of [`Staging::create`].
    pub fn create(&self, staging: &mut Staging) -> Result<()> {
        staging.check_space(self.bytes())?;
        staging.create_planned(self.files())?;
        self.write_index(staging)
    }

    /// Writes a rank's region of a tensor: dense row-major bytes, as in [`write_region`]. Exactly
    /// one rank must write each element.
    ///
    /// # Errors
    /// When there is no such tensor, or the files were created by another layout; errors of
    /// [`Writer::file`] and [`write_region`].
    pub fn write_region(
        &self,
        writer: &mut Writer,
        tensor: &str,
        region: &[Range<u64>],
        bytes: &[u8],
    ) -> Result<()> {
        let Some(&(number, at)) = self.locations.get(tensor) else {
            let names = self.locations.keys().map(String::as_str);
            return Err(no_tensor(writer.folder(), tensor, names));
        };
        let LaidOut { path, file } = &self.files[number];

        let shared = writer.file(path)?;
        ensure!(
            shared.size() == file.bytes,
            Mismatch,
            "{} was created with {} bytes, but this rank's layout has {}: all ranks must lay out \
             the same tensors, added in the same order",
            shared.path().display(),
            shared.size(),
            file.bytes
        );
        write_region(&shared, &file.tensors[at], region, bytes)
    }

    /// Writes everything, from one process.
    pub(crate) fn write<E: From<Error>>(
        &self,
        staging: &mut Staging,
        mut data: impl FnMut(&TensorInfo, &mut TensorSink<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        staging.check_space(self.bytes())?;
        for LaidOut { path, file } in &self.files {
            staging.reserve(path, file.bytes)?;
        }
        for LaidOut { path, file } in &self.files {
            staging.write_with(path, |out| file.write_to(out, &mut data))?;
        }
        Ok(self.write_index(staging)?)
    }

    pub(crate) fn write_index(&self, staging: &mut Staging) -> Result<()> {
        match &self.index {
            Some(index) => staging.write(&index.path, index.json.as_bytes()),
            None => Ok(()),
        }
    }
}

fn below(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }
}
