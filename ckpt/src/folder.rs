//! Reading a Hugging Face folder: one file, or several and an index.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::index::{INDEX_FILE, Index, SINGLE_FILE};
use crate::tensor_file::no_tensor;
use crate::{Error, Result, TensorFile, TensorInfo};

/// The tensors of a folder, whatever files they are in.
///
/// Index and files agree: each tensor is in the file that the index names and in no other, and
/// nothing is in a file that the index does not name. Links may not lead out of the folder, except
/// from a snapshot of the Hugging Face cache (`<repo>/snapshots/<revision>`) to `<repo>/blobs`.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    files: Vec<TensorFile>,
    /// File and place in that file of each tensor.
    places: BTreeMap<String, (usize, usize)>,
    declared_bytes: Option<u64>,
}

/// The index of a folder tells another size than its tensors have.
///
/// Not an error: known writers count tied tensors twice, or not at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} says that all tensors have {declared} bytes, they have {found}; the tensors themselves \
     are all there", index.display()
)]
pub struct SizeMismatch {
    /// The index.
    pub index: PathBuf,
    /// `metadata.total_size` of the index, in bytes.
    pub declared: u64,
    /// Bytes of all tensors in the files.
    pub found: u64,
}

impl Folder {
    /// Opens a folder with `model.safetensors` or `model.safetensors.index.json`, and checks index
    /// and headers completely; reads no data.
    ///
    /// # Errors
    /// [`Error::NoModel`], [`Error::TwoModels`]; what is wrong with the index or between index and
    /// files, with all names; [`Error::LinkOutside`]; what [`TensorFile::open`] gives.
    pub fn open(path: impl AsRef<Path>) -> Result<Folder> {
        let path = path.as_ref().to_owned();
        let roots = Roots::of(&path)?;

        let single = roots.resolve(&path.join(SINGLE_FILE))?;
        let index = roots.resolve(&path.join(INDEX_FILE))?;

        match (single, index) {
            (Some(single), None) => Ok(Folder::new(path, vec![TensorFile::open(single)?], None)),
            (None, None) => Err(Error::NoModel { folder: path }),
            (single, Some(index)) => {
                let index = Index::read(&index)?;
                let named = index.file_of.values().any(|file| file == SINGLE_FILE);
                if single.is_some() && !named {
                    return Err(Error::TwoModels { folder: path });
                }

                let files = open_shards(&path, &roots, &index)?;
                Ok(Folder::new(path, files, index.total_size))
            }
        }
    }

    fn new(path: PathBuf, files: Vec<TensorFile>, declared_bytes: Option<u64>) -> Folder {
        let mut places = BTreeMap::new();
        for (file_at, file) in files.iter().enumerate() {
            for (at, tensor) in file.tensors().iter().enumerate() {
                places.insert(tensor.name.clone(), (file_at, at));
            }
        }
        Folder {
            path,
            files,
            places,
            declared_bytes,
        }
    }

    /// Where the folder is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The files, sorted by name.
    pub fn files(&self) -> &[TensorFile] {
        &self.files
    }

    /// All tensors, sorted by name. Ranges are those of the file that [`Folder::file_of`] gives.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &TensorInfo> {
        self.places
            .values()
            .map(|&(file, at)| &self.files[file].tensors()[at])
    }

    /// The tensor of this name.
    pub fn get(&self, name: &str) -> Option<&TensorInfo> {
        let &(file, at) = self.places.get(name)?;
        Some(&self.files[file].tensors()[at])
    }

    /// The file that holds this tensor.
    ///
    /// # Errors
    /// [`Error::NoTensor`].
    pub fn file_of(&self, name: &str) -> Result<&TensorFile> {
        match self.places.get(name) {
            Some(&(file, _)) => Ok(&self.files[file]),
            None => Err(no_tensor(
                &self.path,
                name,
                self.places.keys().map(String::as_str),
            )),
        }
    }

    /// Reads a whole tensor.
    ///
    /// # Errors
    /// As [`TensorFile::read`].
    pub fn read(&self, name: &str) -> Result<Vec<u8>> {
        self.file_of(name)?.read(name)
    }

    /// Reads a whole tensor into `data`, which must have exactly its size in bytes.
    ///
    /// # Errors
    /// As [`TensorFile::read_into`].
    pub fn read_into(&self, name: &str, data: &mut [u8]) -> Result<()> {
        self.file_of(name)?.read_into(name, data)
    }

    /// Reads the bytes of a tensor from `offset` on, as many as `data` has.
    ///
    /// # Errors
    /// As [`TensorFile::read_range_into`].
    pub fn read_range_into(&self, name: &str, offset: usize, data: &mut [u8]) -> Result<()> {
        self.file_of(name)?.read_range_into(name, offset, data)
    }

    /// Whether the index tells another size than the tensors have: worth a warning.
    pub fn size_mismatch(&self) -> Option<SizeMismatch> {
        let found = self.tensors().map(|tensor| tensor.byte_len() as u64).sum();
        let declared = self.declared_bytes.filter(|&declared| declared != found)?;
        Some(SizeMismatch {
            index: self.path.join(INDEX_FILE),
            declared,
            found,
        })
    }
}

/// Opens all files that the index names and checks that they and the index agree.
fn open_shards(folder: &Path, roots: &Roots, index: &Index) -> Result<Vec<TensorFile>> {
    let index_path = folder.join(INDEX_FILE);
    let names: BTreeSet<&str> = index.file_of.values().map(String::as_str).collect();

    let mut resolved = Vec::new();
    let mut missing = Vec::new();
    for name in names {
        match roots.resolve(&folder.join(name))? {
            Some(path) => resolved.push((name, path)),
            None => missing.push(name.to_owned()),
        }
    }
    if !missing.is_empty() {
        return Err(Error::MissingShards {
            index: index_path,
            files: missing,
        });
    }

    let mut files = Vec::new();
    for (name, path) in resolved {
        let file = TensorFile::open(path)?;
        check_shard(&index_path, index, name, &file)?;
        files.push(file);
    }
    Ok(files)
}

fn check_shard(index_path: &Path, index: &Index, name: &str, file: &TensorFile) -> Result<()> {
    let placed_here = index.file_of.iter().filter(|(_, file)| *file == name);
    let absent: Vec<String> = placed_here
        .map(|(tensor, _)| tensor)
        .filter(|tensor| file.get(tensor).is_none())
        .cloned()
        .collect();

    let (index_path, shard) = (index_path.to_owned(), file.path().to_owned());
    if !absent.is_empty() {
        return Err(Error::NotInShard {
            index: index_path,
            shard,
            names: absent,
        });
    }

    let unexpected: Vec<String> = file
        .tensors()
        .iter()
        .filter(|tensor| {
            index
                .file_of
                .get(&tensor.name)
                .is_none_or(|file| file != name)
        })
        .map(|tensor| tensor.name.clone())
        .collect();
    if !unexpected.is_empty() {
        return Err(Error::NotInIndex {
            index: index_path,
            shard,
            names: unexpected,
        });
    }
    Ok(())
}

/// The folders that links may lead to, without links themselves.
struct Roots(Vec<PathBuf>);

impl Roots {
    fn of(folder: &Path) -> Result<Roots> {
        let real = fs::canonicalize(folder).map_err(|error| Error::io("open", folder, error))?;
        let mut roots = vec![real.clone()];

        // The cache of huggingface_hub: a snapshot holds links to files named by digest.
        let snapshots = real.parent().filter(|parent| parent.ends_with("snapshots"));
        if let Some(repository) = snapshots.and_then(Path::parent) {
            roots.push(repository.join("blobs"));
        }
        Ok(Roots(roots))
    }

    /// The file a path leads to; `None` if there is none.
    fn resolve(&self, path: &Path) -> Result<Option<PathBuf>> {
        let target = match fs::canonicalize(path) {
            Ok(target) => target,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io("open", path, error)),
        };

        if !self.0.iter().any(|root| target.starts_with(root)) {
            return Err(Error::LinkOutside {
                path: path.to_owned(),
                target,
            });
        }
        if !target.is_file() {
            return Err(Error::NotAFile {
                path: path.to_owned(),
            });
        }

        // A path that is no link keeps the form the user gave it.
        let is_link = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink());
        Ok(Some(if is_link { target } else { path.to_owned() }))
    }
}
