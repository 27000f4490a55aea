//! The error of this crate.

use std::io;
use std::path::{Path, PathBuf};

use crate::blocks::Digest;
use crate::coverage::CoverageError;
use crate::dtype::Dtype;
use crate::exec::ExchangeError;
use crate::header_error::HeaderError;
use crate::index_error::IndexError;
use crate::integrity::IntegrityError;
use crate::names::{Listed, NameError};
use crate::ranks::RanksError;
use crate::source::FileChange;
use crate::write_report::WriteReportError;

/// A `Result` whose error is this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a checkpoint operation. Messages name the file and the tensor, the conflicting
/// values, and a remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The attempted action, as a verb.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },

    /// The disk or the quota is full. Earlier checkpoints are untouched.
    #[error(
        "no space for {}: {needed} bytes needed{}; free some space or choose another folder \
         (earlier checkpoints are untouched)",
        path.display(), available_text(.available)
    )]
    NoSpace {
        /// The file or folder that was being written.
        path: PathBuf,
        /// Bytes that had to be written.
        needed: u64,
        /// Bytes that were available, if the system reports it.
        available: Option<u64>,
    },

    /// The path is a folder, a pipe or a device.
    #[error("{} is not a regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },

    /// A safetensors file breaks a rule of the format.
    #[error("{} is not a valid safetensors file: {problem}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The broken rule.
        problem: HeaderError,
    },

    /// The file or folder has no tensor of this name.
    #[error(
        "{} has {count} tensors, but no `{}`{}",
        path.display(), name.escape_debug(), nearest_text(.nearest)
    )]
    NoTensor {
        /// The file or folder.
        path: PathBuf,
        /// The requested name.
        name: String,
        /// The number of tensors.
        count: usize,
        /// The most similar name.
        nearest: Option<String>,
    },

    /// The range is outside the tensor, or the buffer has another size than the tensor.
    #[error(
        "bytes {offset}..{offset}+{len} of tensor `{}` were requested, but it has {available} \
         bytes (in {})", name.escape_debug(), path.display()
    )]
    OutsideTensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The first requested byte, relative to the tensor's start.
        offset: usize,
        /// Requested bytes: the size of the buffer.
        len: usize,
        /// Bytes of the tensor.
        available: usize,
    },

    /// The file was truncated after it was opened.
    #[error(
        "{} was modified while it was read: tensor `{}` is truncated; do not write to a \
         checkpoint in place", path.display(), name.escape_debug()
    )]
    Changed {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
    },

    /// A tensor with this name cannot be written.
    #[error("invalid tensor name `{}`: {problem}", name.escape_debug())]
    TensorName {
        /// The name.
        name: String,
        /// The problem.
        problem: NameError,
    },

    /// A writer received two tensors with the same name.
    #[error("two tensors have the name `{}`; rename one of them", name.escape_debug())]
    DuplicateTensor {
        /// The name.
        name: String,
    },

    /// A tensor has too many dims or bytes for a file, or not a whole number of bytes.
    #[error(
        "tensor `{}` of {dtype} {shape:?} does not fit a file: it has more than {} dims, no whole \
         number of bytes, or makes the file larger than 2^63 bytes",
        name.escape_debug(), crate::limits::MAX_DIMS
    )]
    TensorSize {
        /// The tensor.
        name: String,
        /// Its dtype.
        dtype: Dtype,
        /// Its shape.
        shape: Vec<usize>,
    },

    /// The header to be written is larger than the format allows.
    #[error(
        "the header of {} would have {header_len} bytes, but the format allows {limit}; write fewer \
         tensors per file", path.display()
    )]
    HeaderTooLarge {
        /// The file.
        path: PathBuf,
        /// The size of its header.
        header_len: usize,
        /// The format's limit.
        limit: usize,
    },

    /// The data for a tensor has another length than the tensor.
    #[error(
        "tensor `{}` has {expected} bytes but received {actual}{} in {}",
        name.escape_debug(), if *actual > *expected { " or more" } else { "" }, path.display()
    )]
    WrongDataLength {
        /// The file that was being written.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Bytes of the tensor.
        expected: usize,
        /// Bytes received.
        actual: usize,
    },

    /// A file or folder with this name cannot be written or opened.
    #[error(
        "invalid file name `{}` in {}: {problem}",
        name.escape_debug(), folder.display()
    )]
    FileName {
        /// The folder that would contain it.
        folder: PathBuf,
        /// The name.
        name: String,
        /// The problem.
        problem: NameError,
    },

    /// A folder contains no model.
    #[error(
        "{} contains neither model.safetensors nor model.safetensors.index.json; pass a folder that \
         has one of them, or convert a model of PyTorch with `meshgrad ckpt convert`",
        folder.display()
    )]
    NoModel {
        /// The folder.
        folder: PathBuf,
    },

    /// A folder contains two models.
    #[error(
        "{} contains model.safetensors and an index that does not name it; remove the obsolete \
         one", folder.display()
    )]
    TwoModels {
        /// The folder.
        folder: PathBuf,
    },

    /// A file is not an index of model files.
    #[error("{} is not an index of model files: {problem}", path.display())]
    Index {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: IndexError,
    },

    /// A file of a folder is a link.
    #[error(
        "{} is a link to {target:?}, and links are followed only within the Hugging Face cache; \
         replace it with a copy of the file, or pass --follow-links to `meshgrad ckpt`",
        path.display()
    )]
    Link {
        /// The link.
        path: PathBuf,
        /// Its target.
        target: PathBuf,
    },

    /// Files that the index names do not exist.
    #[error(
        "{} names missing files: {}; download them again",
        index.display(), Listed(files)
    )]
    MissingShards {
        /// The index.
        index: PathBuf,
        /// The files.
        files: Vec<String>,
    },

    /// Tensors are missing from the file that the index names for them.
    #[error(
        "{} lacks tensors that {} lists for it: {}; index and files belong to different \
         models or versions", shard.display(), index.display(), Listed(names)
    )]
    NotInShard {
        /// The index.
        index: PathBuf,
        /// The file.
        shard: PathBuf,
        /// The tensors.
        names: Vec<String>,
    },

    /// A file contains tensors that the index does not list for it.
    #[error(
        "{} contains tensors that {} does not list for it: {}; index and files belong to different \
         models or versions", shard.display(), index.display(), Listed(names)
    )]
    NotInIndex {
        /// The index.
        index: PathBuf,
        /// The file.
        shard: PathBuf,
        /// The tensors.
        names: Vec<String>,
    },

    /// A checkpoint of this name exists already.
    #[error("{} already exists; remove it or choose another name", path.display())]
    Exists {
        /// The folder.
        path: PathBuf,
    },

    /// A file changed between writing it and publishing it.
    #[error(
        "{} has {found} bytes but {written} were written; another program modified it",
        path.display()
    )]
    ChangedWhileStaged {
        /// The file.
        path: PathBuf,
        /// Bytes that were written.
        written: u64,
        /// Bytes that it has.
        found: u64,
    },

    /// Replicas cannot exchange chunks.
    #[error(transparent)]
    Exchange(ExchangeError),

    /// Ranks could not save a checkpoint together.
    #[error(transparent)]
    Ranks(#[from] RanksError),

    /// Before sealing, the bytes read back had another digest than those written.
    #[error(
        "bytes {}..{} of {} have digest {found}, but digest {written} was written; another \
         program modified the file, or the disk is faulty", range.start, range.end, path.display()
    )]
    DigestMismatch {
        /// The file.
        path: PathBuf,
        /// The bytes.
        range: std::ops::Range<u64>,
        /// The digest of what was written.
        written: Digest,
        /// The digest of what was read.
        found: Digest,
    },

    /// A folder is not a complete checkpoint.
    #[error("{} is not a complete checkpoint: {problem}", path.display())]
    Incomplete {
        /// The folder.
        path: PathBuf,
        /// The problem.
        problem: IntegrityError,
    },

    /// The folder of a checkpoint does not exist.
    #[error("{} does not exist; {}", path.display(), newest_text(.newest))]
    NoCheckpoint {
        /// The folder.
        path: PathBuf,
        /// The newest complete checkpoint in the same parent folder.
        newest: Option<PathBuf>,
    },

    /// Bytes of a file could not be read.
    #[error(
        "cannot read {len} bytes at offset {offset} of {}{}: {source}",
        path.display(), tensor_text(.tensor)
    )]
    ReadAt {
        /// The file.
        path: PathBuf,
        /// The first byte.
        offset: u64,
        /// The number of bytes.
        len: usize,
        /// The tensor that contains them, or the first of several.
        tensor: Option<String>,
        /// The system's error.
        source: io::Error,
    },

    /// A file changed since it was opened.
    #[error(
        "{} was modified while it was read, detected at offset {offset}{}: {change}; do not write \
         to a checkpoint in place", path.display(), tensor_text(.tensor)
    )]
    FileChanged {
        /// The file.
        path: PathBuf,
        /// The offset of the read that detected it.
        offset: u64,
        /// The tensor that was being read, or the first of several.
        tensor: Option<String>,
        /// The change.
        change: FileChange,
    },

    /// A file is not a model of PyTorch, is damaged, or is not supported.
    #[error("{} {}: {problem}", path.display(), problem.verdict())]
    Torch {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: crate::torch::TorchError,
    },

    /// The stored parts of a tensor do not cover it exactly once.
    #[error(
        "the parts of `{}` of shape {shape:?} do not cover it exactly once: in dim {dim}, parts end at \
         {end} and the next one starts at {start}", name.escape_debug()
    )]
    Parts {
        /// The tensor.
        name: String,
        /// Its shape.
        shape: Vec<u64>,
        /// The dim in which parts overlap or leave a gap.
        dim: usize,
        /// The end of the parts before.
        end: u64,
        /// The start of the next part, or the extent of the tensor.
        start: u64,
    },

    /// A tensor cannot be assembled from its parts.
    #[error("`{}` cannot be assembled: {problem}", name.escape_debug())]
    Assembly {
        /// The tensor.
        name: String,
        /// The problem.
        problem: crate::graph::GraphError,
    },

    /// A plan was executed with the files of another folder.
    #[error(
        "the plan reads {planned}, but the sources are {actual}: plan and read the same folder"
    )]
    SourceMismatch {
        /// The files of the plan.
        planned: String,
        /// The files that were passed.
        actual: String,
    },

    /// A sink returned memory of another size than the target.
    #[error(
        "target `{}` has {expected} bytes, but its memory has {actual}: allocate the size that the \
         plan gives for the target", target.escape_debug()
    )]
    TargetSize {
        /// The target.
        target: String,
        /// Its bytes.
        expected: u64,
        /// Bytes of the memory.
        actual: u64,
    },

    /// Two tensors differ, but the map *ties* them: it requires that they are equal.
    #[error(
        "the map ties `{}` and `{}` of {}, but they differ: remove the one that is wrong, \
         or change the map",
        first.escape_debug(), second.escape_debug(), folder.display()
    )]
    NotTied {
        /// The folder.
        folder: PathBuf,
        /// The tensor that would be used.
        first: String,
        /// The other one.
        second: String,
    },

    /// No checkpoint is being staged in this folder.
    #[error(
        "no checkpoint is being staged in {}; pass the coordinator's `Staging::folder` \
         while it is being written", path.display()
    )]
    NotStaged {
        /// The folder.
        path: PathBuf,
    },

    /// A write outside the bounds of a file of fixed size.
    #[error(
        "cannot write bytes {offset}..{offset}+{len} of {}: it was created with \
         {available} bytes", path.display()
    )]
    OutsideFile {
        /// The file.
        path: PathBuf,
        /// First byte.
        offset: u64,
        /// Bytes of the write.
        len: usize,
        /// Bytes of the file.
        available: u64,
    },

    /// A write after the writer returned its report.
    #[error(
        "cannot write to {}: its writer has finished; write all data before `Writer::finish`",
        path.display()
    )]
    WriterFinished {
        /// The file.
        path: PathBuf,
    },

    /// A reserved file was written with another size than reserved.
    #[error(
        "{} was reserved with {expected} bytes, but {actual} were written; reserve the final size",
        path.display()
    )]
    WrongLength {
        /// The file.
        path: PathBuf,
        /// Bytes reserved.
        expected: u64,
        /// Bytes written.
        actual: u64,
    },

    /// The parts of several writers do not form a whole file.
    #[error("{} is not complete: {problem}{}", path.display(), tensors_text(.tensors))]
    Coverage {
        /// The file.
        path: PathBuf,
        /// The bytes and their writers.
        problem: CoverageError,
        /// The tensors that contain these bytes, if a layout is known.
        tensors: Vec<String>,
    },

    /// A rank's layout differs from the layout of the rank that created the files.
    #[error(
        "{} was created with {found} bytes, but this rank's layout has {planned}: all ranks must lay \
         out the same tensors, added in the same order", path.display()
    )]
    LayoutMismatch {
        /// The file.
        path: PathBuf,
        /// Bytes in the rank's layout.
        planned: u64,
        /// Bytes of the file.
        found: u64,
    },

    /// Expected writers have not reported.
    #[error(
        "cannot seal {}: no report from {}; they failed or have not finished",
        path.display(), Listed(writers)
    )]
    MissingWriters {
        /// The checkpoint.
        path: PathBuf,
        /// Their names.
        writers: Vec<String>,
    },

    /// A writer's report is invalid.
    #[error("invalid report of writer `{writer}` for {}: {problem}", path.display())]
    BadWriteReport {
        /// The checkpoint.
        path: PathBuf,
        /// The writer's name.
        writer: String,
        /// The problem.
        problem: WriteReportError,
    },

    /// A manifest would exceed the size that can be read.
    #[error(
        "{} would have {bytes} bytes, but the maximum is {}; write fewer files, or larger contiguous \
         parts of them", path.display(), crate::manifest::MAX_MANIFEST_BYTES
    )]
    ManifestTooLarge {
        /// The manifest.
        path: PathBuf,
        /// Bytes that it would have.
        bytes: u64,
    },

    /// A background save panicked.
    #[error("the background save of {} panicked: {message}", path.display())]
    Panicked {
        /// The checkpoint.
        path: PathBuf,
        /// The panic message.
        message: String,
    },

    /// A region is not part of its tensor.
    #[error(
        "cannot write {actual} bytes as region {region:?} of tensor `{}` of shape {shape:?}: it must \
         lie inside the tensor and start and end at whole bytes, and the data must match its size",
        tensor.escape_debug()
    )]
    BadRegion {
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<usize>,
        /// The region.
        region: Vec<std::ops::Range<u64>>,
        /// Bytes that were passed.
        actual: usize,
    },
}

impl Error {
    /// Wraps a system error.
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Error {
        Error::Io { action, path: path.to_owned(), source }
    }

    /// Adds the tensor that was being read.
    pub(crate) fn while_reading(mut self, name: &str) -> Error {
        if let Error::ReadAt { tensor, .. } | Error::FileChanged { tensor, .. } = &mut self {
            tensor.get_or_insert_with(|| name.to_owned());
        }
        self
    }

    /// Wraps a system error of a write of `needed` bytes. A full disk has its own variant.
    pub(crate) fn write(path: &Path, needed: u64, source: io::Error) -> Error {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::NoSpace {
                path: path.to_owned(),
                needed,
                available: crate::disk::available_bytes(path),
            },
            _ => Error::io("write", path, source),
        }
    }
}

fn available_text(available: &Option<u64>) -> String {
    available.map(|bytes| format!(", {bytes} available")).unwrap_or_default()
}

fn tensor_text(tensor: &Option<String>) -> String {
    let quoted = |name: &String| format!(" (tensor `{}`)", name.escape_debug());
    tensor.as_ref().map(quoted).unwrap_or_default()
}

fn tensors_text(tensors: &[String]) -> String {
    match tensors {
        [] => String::new(),
        [name] => format!("; they belong to tensor `{}`", name.escape_debug()),
        names => format!("; they belong to tensors {}", Listed(names)),
    }
}

fn newest_text(newest: &Option<PathBuf>) -> String {
    match newest {
        Some(path) => {
            format!("the newest complete checkpoint in its parent folder is {}", path.display())
        }
        None => "its parent folder has no complete checkpoint".to_owned(),
    }
}

fn nearest_text(nearest: &Option<String>) -> String {
    let quoted = |name: &String| format!("; did you mean `{}`?", name.escape_debug());
    nearest.as_ref().map(quoted).unwrap_or_default()
}
