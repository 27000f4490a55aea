//! Reading one file of tensors.
//!
//! Uses positioned reads instead of a memory map: a file that shrinks under a map kills the
//! process, and a network file system serves page faults slowly.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use meshgrad_error::{Error, Result, error};

use crate::confined::open_file;
use crate::error::io_error;
use crate::header::{self, Header, PREFIX, header_len};
use crate::tensor_info::TensorInfo;

/// An open safetensors file with a fully checked header.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    file: File,
    header: Header,
    bytes: u64,
}

impl TensorFile {
    /// Opens a file and checks its header; reads no data.
    ///
    /// # Errors
    /// When the file cannot be read, is not a regular file, or violates a rule of the format.
    pub fn open(path: impl AsRef<Path>) -> Result<TensorFile> {
        let path = path.as_ref();
        TensorFile::of(path.to_owned(), open_file(path)?)
    }

    /// Checks the header of an open regular file.
    pub(crate) fn of(path: PathBuf, file: File) -> Result<TensorFile> {
        let file_len = file.metadata().map_err(|error| io_error("open", &path, error))?.len();

        let malformed = |problem: Error| {
            problem.context(format_args!("{} is not a valid safetensors file", path.display()))
        };
        if file_len < PREFIX as u64 {
            return Err(malformed(header::too_short(file_len)));
        }

        let mut prefix = [0; PREFIX];
        let read_error = |error| io_error("read", &path, error);
        file.read_exact_at(&mut prefix, 0).map_err(read_error)?;

        let header_len = header_len(prefix, file_len).map_err(malformed)?;
        let mut json = vec![0; header_len];
        file.read_exact_at(&mut json, PREFIX as u64).map_err(read_error)?;

        let header = Header::from_json(&json, file_len).map_err(malformed)?;
        Ok(TensorFile { path, file, header, bytes: file_len })
    }

    /// An open file of another format, with tensors at known ranges inside it.
    pub(crate) fn of_ranges(
        path: PathBuf,
        file: File,
        bytes: u64,
        tensors: Vec<TensorInfo>,
    ) -> Result<TensorFile> {
        let header = Header::of_ranges(tensors)?;
        Ok(TensorFile { path, file, header, bytes })
    }

    /// The same file with all tensors named `PREFIX/NAME`.
    pub(crate) fn with_prefix(self, prefix: &str) -> TensorFile {
        TensorFile { header: self.header.with_prefix(prefix), ..self }
    }

    /// The length of the file when it was opened.
    pub(crate) fn byte_len(&self) -> u64 {
        self.bytes
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file.
    pub(crate) fn handle(&self) -> &File {
        &self.file
    }

    /// The header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// All tensors, sorted by name.
    pub fn tensors(&self) -> &[TensorInfo] {
        self.header.tensors()
    }

    /// The strings that the writer stored in the header, by key.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        self.header.metadata()
    }

    /// The tensor of this name.
    pub fn get(&self, name: &str) -> Option<&TensorInfo> {
        self.header.get(name)
    }

    /// Reads a whole tensor.
    ///
    /// # Errors
    /// When there is no such tensor; errors of [`TensorFile::read_into`].
    pub fn read(&self, name: &str) -> Result<Vec<u8>> {
        let mut data = vec![0; self.find(name)?.byte_len()];
        self.read_into(name, &mut data)?;
        Ok(data)
    }

    /// Reads a whole tensor into `data`, which must have exactly its size in bytes.
    ///
    /// # Errors
    /// When there is no such tensor, the buffer has another size, the file was truncated after it
    /// was opened, or it cannot be read.
    pub fn read_into(&self, name: &str, data: &mut [u8]) -> Result<()> {
        let tensor = self.find(name)?;
        if data.len() != tensor.byte_len() {
            return Err(self.outside(tensor, 0, data.len()));
        }
        self.read_range_into(name, 0, data)
    }

    /// Reads `data.len()` bytes of a tensor, starting at `offset`.
    ///
    /// # Errors
    /// When there is no such tensor, the bytes are not inside it, the file was truncated after it
    /// was opened, or it cannot be read.
    pub fn read_range_into(&self, name: &str, offset: usize, data: &mut [u8]) -> Result<()> {
        let tensor = self.find(name)?;

        let end = offset.checked_add(data.len());
        if end.is_none_or(|end| end > tensor.byte_len()) {
            return Err(self.outside(tensor, offset, data.len()));
        }

        let at = tensor.range.start + offset as u64;
        self.file.read_exact_at(data, at).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => error!(
                Malformed,
                "{} was modified while it was read: tensor `{}` is truncated; do not write to a \
                 checkpoint in place",
                self.path.display(),
                name.escape_debug()
            ),
            _ => io_error("read", &self.path, error),
        })
    }

    fn find(&self, name: &str) -> Result<&TensorInfo> {
        self.get(name).ok_or_else(|| {
            let names = self.tensors().iter().map(|tensor| tensor.name.as_str());
            no_tensor(&self.path, name, names)
        })
    }

    fn outside(&self, tensor: &TensorInfo, offset: usize, len: usize) -> Error {
        error!(
            Invalid,
            "bytes {offset}..{offset}+{len} of tensor `{}` were requested, but it has {} bytes (in \
             {})",
            tensor.name.escape_debug(),
            tensor.byte_len(),
            self.path.display()
        )
    }
}

/// The error for a name that is not among `names`, with the most similar one.
pub(crate) fn no_tensor<'a>(
    path: &Path,
    name: &str,
    names: impl ExactSizeIterator<Item = &'a str>,
) -> Error {
    let count = names.len();
    let nearest = names.min_by_key(|other| strsim::levenshtein(name, other));
    let hint = nearest.map(|it| format!("; did you mean `{}`?", it.escape_debug()));

    error!(
        Missing,
        "{} has {count} tensors, but no `{}`{}",
        path.display(),
        name.escape_debug(),
        hint.unwrap_or_default()
    )
}
