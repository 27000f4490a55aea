//! Reading a Hugging Face folder: one file, or several and an index.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use meshgrad_error::{Error, Kind, Result, bail, ensure, error};

use crate::confined::{ConfinedFolder, Links};
use crate::error::{duplicate_tensor, io_error};
use crate::index::{INDEX_FILE, Index, SINGLE_FILE};
use crate::limits::MAX_INDEX_BYTES;
use crate::names::Listed;
use crate::tensor_file::no_tensor;
use crate::{TensorFile, TensorInfo};

/// The tensors of a folder, in one or several files.
///
/// Index and files agree: each tensor is in the file that the index names and in no other, and
/// files contain no other tensors. Links are rejected, except from a snapshot of the Hugging Face
/// cache (`<repo>/snapshots/<revision>`) to a file of `<repo>/blobs`.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    files: Vec<TensorFile>,
    /// For each tensor its file and its position in that file, sorted by name.
    locations: Vec<Location>,
    declared_bytes: Option<u64>,
}

/// The position of a file in a folder, and of a tensor in that file.
type Location = (usize, usize);

/// The index of a folder declares a different size than its tensors have.
///
/// Not an error: some known writers count tied tensors twice, or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SizeMismatch {
    /// The index.
    pub index: PathBuf,
    /// `metadata.total_size` of the index, in bytes.
    pub declared: u64,
    /// Bytes of all tensors in the files.
    pub found: u64,
}

impl fmt::Display for SizeMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} declares {} bytes for all tensors, but they have {}; the tensors themselves are \
             complete",
            self.index.display(),
            self.declared,
            self.found
        )
    }
}

impl Folder {
    /// Opens a folder with `model.safetensors` or `model.safetensors.index.json`, and checks index
    /// and headers completely. Reads no data.
    ///
    /// # Errors
    /// When the folder has no model ([`Kind::Missing`]) or two, index and files disagree, or a file
    /// is a link; errors of [`TensorFile::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Folder> {
        Folder::open_with(path, Links::Refuse)
    }

    /// As [`Folder::open`]; files of the folder may be links if `links` allows it.
    ///
    /// # Errors
    /// As [`Folder::open`].
    pub fn open_with(path: impl AsRef<Path>, links: Links) -> Result<Folder> {
        let path = path.as_ref().to_owned();
        let confined = ConfinedFolder::new(&path, links)?;

        let single = confined.open(SINGLE_FILE)?;
        match (single, confined.open(INDEX_FILE)?) {
            (None, None) => bail!(
                Missing,
                "{} contains neither model.safetensors nor model.safetensors.index.json; pass a \
                 folder that has one of them, or convert a model of PyTorch with `meshgrad ckpt \
                 convert`",
                path.display()
            ),
            (Some(file), None) => Folder::of_file(path, &confined, SINGLE_FILE, file),
            (single, Some(index)) => Folder::of_index(path, &confined, index, single.is_some()),
        }
    }

    /// Opens the file `name` of a folder, such as that of an adapter, as [`Folder::open_with`] does;
    /// `None` if there is no such file.
    ///
    /// # Errors
    /// As [`Folder::open_with`].
    pub fn open_single(path: impl AsRef<Path>, name: &str, links: Links) -> Result<Option<Folder>> {
        let path = path.as_ref().to_owned();
        let confined = ConfinedFolder::new(&path, links)?;
        let file = confined.open(name)?;
        file.map(|file| Folder::of_file(path, &confined, name, file)).transpose()
    }

    fn of_file(path: PathBuf, confined: &ConfinedFolder, name: &str, file: File) -> Result<Folder> {
        let file = TensorFile::of(confined.path_of(name), file)?;
        Ok(Folder {
            path,
            locations: (0..file.tensors().len()).map(|at| (0, at)).collect(),
            files: vec![file],
            declared_bytes: None,
        })
    }

    fn of_index(
        path: PathBuf,
        confined: &ConfinedFolder,
        file: File,
        has_single: bool,
    ) -> Result<Folder> {
        let index = (INDEX_FILE, file);
        let folder = open_indexed(&path, confined, index, &mut TensorFile::of)?;
        let is_single = |file: &TensorFile| file.path().ends_with(SINGLE_FILE);
        ensure!(
            !has_single || folder.files.iter().any(is_single),
            System,
            "{} contains model.safetensors and an index that does not name it; remove the obsolete \
             one",
            path.display()
        );
        Ok(folder)
    }

    /// The folder's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The files, sorted by name.
    pub fn files(&self) -> &[TensorFile] {
        &self.files
    }

    /// All tensors, sorted by name. Ranges refer to the file that [`Folder::file_of`] returns.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &TensorInfo> {
        self.locations.iter().map(|&location| self.tensor(location))
    }

    /// The tensor of this name.
    pub fn get(&self, name: &str) -> Option<&TensorInfo> {
        self.location(name).map(|location| self.tensor(location))
    }

    /// The file that contains this tensor.
    ///
    /// # Errors
    /// When there is no such tensor.
    pub fn file_of(&self, name: &str) -> Result<&TensorFile> {
        match self.location(name) {
            Some((file, _)) => Ok(&self.files[file]),
            None => {
                let names = self.tensors().map(|tensor| tensor.name.as_str());
                Err(no_tensor(&self.path, name, names))
            }
        }
    }

    fn location(&self, name: &str) -> Option<Location> {
        let by_name = |&location: &Location| self.tensor(location).name.as_str().cmp(name);
        let at = self.locations.binary_search_by(by_name).ok()?;
        Some(self.locations[at])
    }

    /// The tensor at this position in the order of names, and the position of its file.
    pub(crate) fn nth(&self, at: usize) -> (usize, &TensorInfo) {
        let location = self.locations[at];
        (location.0, self.tensor(location))
    }

    fn tensor(&self, (file, at): Location) -> &TensorInfo {
        &self.files[file].tensors()[at]
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

    /// Reads `data.len()` bytes of a tensor, starting at `offset`.
    ///
    /// # Errors
    /// As [`TensorFile::read_range_into`].
    pub fn read_range_into(&self, name: &str, offset: usize, data: &mut [u8]) -> Result<()> {
        self.file_of(name)?.read_range_into(name, offset, data)
    }

    /// Whether the index declares a different size than the tensors have: worth a warning.
    pub fn size_mismatch(&self) -> Option<SizeMismatch> {
        let found = self.tensors().map(|tensor| tensor.byte_len() as u64).sum();
        let declared = self.declared_bytes.filter(|&declared| declared != found)?;
        Some(SizeMismatch { index: self.path.join(INDEX_FILE), declared, found })
    }

    /// Opens one safetensors file of any name as a folder of its tensors. Neighboring files are
    /// ignored. [`Folder::path`] is the path of the file.
    ///
    /// # Errors
    /// Errors of [`TensorFile::open`].
    pub fn open_file(path: impl AsRef<Path>) -> Result<Folder> {
        let file = TensorFile::open(&path)?;
        Ok(Folder {
            path: path.as_ref().to_owned(),
            locations: (0..file.tensors().len()).map(|at| (0, at)).collect(),
            files: vec![file],
            declared_bytes: None,
        })
    }

    /// Opens files as one folder, whose tensors are named `PREFIX/NAME` after the prefix of each
    /// file.
    ///
    /// # Errors
    /// When two tensors have the same name.
    pub fn of_files(
        path: impl AsRef<Path>,
        files: impl IntoIterator<Item = (String, TensorFile)>,
    ) -> Result<Folder> {
        let files = files.into_iter();
        let files = files.map(|(prefix, file)| file.with_prefix(&prefix));
        Folder::of_parts(path.as_ref().to_owned(), files.collect())
    }

    /// A folder of open files.
    pub(crate) fn of_parts(path: PathBuf, files: Vec<TensorFile>) -> Result<Folder> {
        let places = |(number, file): (usize, &TensorFile)| {
            (0..file.tensors().len()).map(move |at| (number, at))
        };
        let mut locations: Vec<Location> = files.iter().enumerate().flat_map(places).collect();
        let name = |&(file, at): &Location| files[file].tensors()[at].name.as_str();
        locations.sort_by(|a, b| name(a).cmp(name(b)));
        let same = locations.windows(2).find(|pair| name(&pair[0]) == name(&pair[1]));
        if let Some(pair) = same {
            return Err(duplicate_tensor(Kind::Malformed, name(&pair[0])));
        }
        Ok(Folder { path, files, locations, declared_bytes: None })
    }
}

/// Opens the files that an index names, and checks that they match it.
pub(crate) fn open_indexed(
    path: &Path,
    confined: &ConfinedFolder,
    (name, file): (&str, File),
    open: OpenShard<'_>,
) -> Result<Folder> {
    let index_path = confined.path_of(name);
    let json = read_index(&index_path, &file)?;
    let index = Index::parse(&json).map_err(|problem| not_an_index(&index_path, problem))?;
    Ok(Folder {
        path: path.to_owned(),
        files: open_shards(confined, &index_path, &index, open)?,
        locations: locations(&index),
        declared_bytes: index.total_size,
    })
}

/// Parses the header of a file that an index names.
type OpenShard<'a> = &'a mut dyn FnMut(PathBuf, File) -> Result<TensorFile>;

fn read_index(path: &Path, file: &File) -> Result<Vec<u8>> {
    let failed = |error| io_error("read", path, error);

    let bytes = file.metadata().map_err(failed)?.len();
    if bytes > MAX_INDEX_BYTES {
        let problem =
            error!(Malformed, "it has {bytes} bytes, more than the limit of {MAX_INDEX_BYTES}");
        return Err(not_an_index(path, problem));
    }
    let mut json = vec![0; bytes as usize];
    file.read_exact_at(&mut json, 0).map_err(failed)?;
    Ok(json)
}

fn not_an_index(path: &Path, problem: Error) -> Error {
    problem.context(format_args!("{} is not an index of model files", path.display()))
}

/// Opens all files that the index names and checks that they match the index.
fn open_shards(
    confined: &ConfinedFolder,
    index_path: &Path,
    index: &Index,
    open: OpenShard<'_>,
) -> Result<Vec<TensorFile>> {
    let mut opened = Vec::new();
    let mut missing = Vec::new();
    for name in &index.files {
        match confined.open(name)? {
            Some(file) => opened.push((confined.path_of(name), file)),
            None => missing.push(name.to_string()),
        }
    }
    ensure!(
        missing.is_empty(),
        Malformed,
        "{} names missing files: {}; download them again",
        index_path.display(),
        Listed(&missing)
    );

    let mut placed = vec![Vec::new(); index.files.len()];
    for (tensor, file) in &index.file_of {
        placed[*file].push(tensor.as_ref());
    }

    let mut files = Vec::with_capacity(opened.len());
    for ((path, file), placed) in opened.into_iter().zip(placed) {
        let file = open(path, file)?;
        check_shard(index_path, &placed, &file)?;
        files.push(file);
    }
    Ok(files)
}

/// A file must contain exactly the tensors listed for it; both are sorted by name.
fn check_shard(index_path: &Path, placed: &[&str], file: &TensorFile) -> Result<()> {
    let found = file.tensors().iter().map(|tensor| tensor.name.as_str());
    if found.clone().eq(placed.iter().copied()) {
        return Ok(());
    }

    let absent = placed.iter().copied().filter(|name| file.get(name).is_none());
    let absent: Vec<&str> = absent.collect();
    let unexpected: Vec<&str> = found.filter(|name| placed.binary_search(name).is_err()).collect();

    let (index, shard) = (index_path.display(), file.path().display());
    ensure!(
        absent.is_empty(),
        Malformed,
        "{shard} lacks tensors that {index} lists for it: {}; index and files belong to different \
         models or versions",
        Listed(&absent)
    );
    bail!(
        Malformed,
        "{shard} contains tensors that {index} does not list for it: {}; index and files belong to \
         different models or versions",
        Listed(&unexpected)
    )
}

/// The location of each tensor, sorted by name; the files match the index.
fn locations(index: &Index) -> Vec<Location> {
    let mut next = vec![0; index.files.len()];
    let location = |&(_, file): &(_, usize)| {
        let at = next[file];
        next[file] += 1;
        (file, at)
    };
    index.file_of.iter().map(location).collect()
}
