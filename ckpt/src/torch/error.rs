//! Why a file is not one that PyTorch wrote, or has no plain tensors.

use crate::Dtype;
use crate::limits::MAX_HEADER_BYTES;
use crate::names::Listed;

/// The maximum nesting of dicts and lists, and of parameters in parameters.
pub(super) const MAX_NESTED: usize = 16;

/// Why a file of PyTorch cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TorchError {
    /// The format of `torch.save` before version 1.6.
    #[error(
        "it has the format of PyTorch before 1.6; save it again: python -c \"import torch; \
         torch.save(torch.load('FILE', map_location='cpu', weights_only=True), 'FILE')\""
    )]
    Legacy,

    /// The file is not a zip archive.
    #[error("it is not a zip archive of torch.save: it is truncated, or another format")]
    NotAZip,

    /// The zip archive breaks a rule of its format.
    #[error("its zip archive is damaged: {0}")]
    Zip(&'static str),

    /// A zip entry is compressed or encrypted, which PyTorch does not do.
    #[error("its entry `{}` is compressed or encrypted; save it again with torch.save", .0.escape_debug())]
    Packed(String),

    /// A zip entry is missing.
    #[error("its zip archive has no entry `{}`", .0.escape_debug())]
    NoEntry(String),

    /// A part of the file is larger than any real one.
    #[error("its {what} has {bytes} bytes, but at most {MAX_HEADER_BYTES} are supported")]
    TooLarge {
        /// The part.
        what: &'static str,
        /// Its bytes.
        bytes: u64,
    },

    /// Elements are stored with the most significant byte first.
    #[error("its byte order is big-endian; save it again on a little-endian machine")]
    BigEndian,

    /// The pickle needs a Python object that tensors do not need.
    #[error(
        "its pickle names `{}`, which a file of plain tensors does not need and which is not loaded; \
         save only the state_dict: torch.save(model.state_dict(), ..)", .0.escape_debug()
    )]
    Global(String),

    /// The pickle uses an operation of Python that tensors do not need.
    #[error(
        "its pickle uses {what} at byte {at}, which plain tensors do not need; save only the \
         state_dict: torch.save(model.state_dict(), ..)"
    )]
    UnsupportedPickle {
        /// The offset of the operation.
        at: usize,
        /// The operation.
        what: String,
    },

    /// The pickle has more values than any real one.
    #[error("its pickle has more than {0} values; save the tensors to several files")]
    TooManyValues(usize),

    /// The pickle is damaged.
    #[error("its pickle is invalid at byte {at}: {problem}")]
    Pickle {
        /// The offset of the operation.
        at: usize,
        /// The problem.
        problem: &'static str,
    },

    /// The root of the pickle is not a dict.
    #[error(
        "it contains {0} instead of a dict of tensors; save a dict: \
         torch.save({{'NAME': tensor}}, ..)"
    )]
    NotADict(&'static str),

    /// A key of a dict has no name.
    #[error(
        "{} has a key that is neither a string nor an integer; save a state_dict: \
         torch.save(model.state_dict(), ..)", dict_text(.0)
    )]
    Key(String),

    /// Two values have the same name, such as those of the keys `1` and `'1'`.
    #[error("two of its values have the name `{}`; rename one of their keys", .0.escape_debug())]
    Duplicate(String),

    /// The pickle has another structure than PyTorch writes.
    #[error("its pickle has no {0}")]
    Structure(&'static str),

    /// A value of a distributed checkpoint is neither a tensor nor bytes.
    #[error("`{}` is not a tensor; save only the state_dict", .0.escape_debug())]
    NotATensor(String),

    /// A file without tensors.
    #[error(
        "it has no tensor, but other values such as `{}`; save a state_dict: \
         torch.save(model.state_dict(), ..)", .0.escape_debug()
    )]
    NoTensors(String),

    /// Dicts and lists that are nested too deeply, or contain each other.
    #[error(
        "its values are nested more than {MAX_NESTED} deep at `{}`; save only the state_dict: \
         torch.save(model.state_dict(), ..)", .0.escape_debug()
    )]
    Nested(String),

    /// A tensor is damaged.
    #[error("tensor `{}` cannot be read: {problem}", name.escape_debug())]
    Tensor {
        /// The tensor.
        name: String,
        /// The problem.
        problem: &'static str,
    },

    /// A tensor that PyTorch can read, but this program cannot.
    #[error("tensor `{}` cannot be read: {problem}", name.escape_debug())]
    Unsupported {
        /// The tensor.
        name: String,
        /// What is not supported, and what to save instead.
        problem: String,
    },

    /// The content of a zip entry differs from its CRC-32.
    #[error(
        "its zip entry `{}` is damaged: the content has CRC-32 {found:08x}, but the archive lists \
         {listed:08x}{}", entry.escape_debug(), stored_text(.tensors)
    )]
    Checksum {
        /// The entry.
        entry: String,
        /// The CRC-32 in the archive.
        listed: u32,
        /// The CRC-32 of the content.
        found: u32,
        /// The tensors that the entry stores.
        tensors: Vec<String>,
    },

    /// A chunk has another dtype or shape than the metadata says.
    #[error(
        "the chunk of `{}` at {offsets:?} should be {dtype} {sizes:?}, but is {found_dtype} \
         {found:?}", name.escape_debug()
    )]
    Chunk {
        /// The tensor.
        name: String,
        /// The chunk's first element.
        offsets: Vec<u64>,
        /// The dtype of the metadata.
        dtype: Dtype,
        /// The chunk's shape in the metadata.
        sizes: Vec<u64>,
        /// The dtype in the file.
        found_dtype: Dtype,
        /// The shape in the file.
        found: Vec<u64>,
    },

    /// The metadata does not say where a chunk is, or the place is outside the file.
    #[error("the chunk of `{}` at {offsets:?} {problem}", name.escape_debug())]
    NoChunk {
        /// The tensor.
        name: String,
        /// The chunk's first element.
        offsets: Vec<u64>,
        /// The problem.
        problem: &'static str,
    },
}

impl TorchError {
    /// Whether the file is damaged, or no file of PyTorch at all. Otherwise PyTorch can read it,
    /// but this program does not support it.
    pub fn is_damage(&self) -> bool {
        match self {
            TorchError::NotAZip
            | TorchError::Zip(_)
            | TorchError::NoEntry(_)
            | TorchError::Pickle { .. }
            | TorchError::Structure(_)
            | TorchError::Tensor { .. }
            | TorchError::Checksum { .. }
            | TorchError::Chunk { .. }
            | TorchError::NoChunk { .. } => true,
            TorchError::Legacy
            | TorchError::Packed(_)
            | TorchError::TooLarge { .. }
            | TorchError::BigEndian
            | TorchError::Global(_)
            | TorchError::UnsupportedPickle { .. }
            | TorchError::TooManyValues(_)
            | TorchError::NotADict(_)
            | TorchError::Key(_)
            | TorchError::Duplicate(_)
            | TorchError::NotATensor(_)
            | TorchError::NoTensors(_)
            | TorchError::Nested(_)
            | TorchError::Unsupported { .. } => false,
        }
    }

    /// The verdict on a file, before the reason.
    pub(crate) fn verdict(&self) -> &'static str {
        match self.is_damage() {
            true => "cannot be read as a model of PyTorch",
            false => "is not supported",
        }
    }
}

fn dict_text(name: &str) -> String {
    match name {
        "" => "its dict".to_owned(),
        name => format!("its dict `{}`", name.escape_debug()),
    }
}

fn stored_text(tensors: &[String]) -> String {
    match tensors {
        [] => String::new(),
        tensors => format!("; it stores {}", Listed(tensors)),
    }
}
