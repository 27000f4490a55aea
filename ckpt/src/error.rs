//! The one error of this crate.

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
use crate::source::FileChange;
use crate::write_report::WriteReportError;

/// A `Result` whose error is this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong with a checkpoint: which file, which tensor, both values, the way out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },

    /// The disk or the quota is full. What was saved before is untouched.
    #[error(
        "no space for {}: {needed} bytes wanted{}; free some space or choose another folder \
         (what was saved before is untouched)",
        path.display(), available_text(.available)
    )]
    NoSpace {
        /// The file or folder that was being written.
        path: PathBuf,
        /// Bytes that had to be written.
        needed: u64,
        /// Bytes that were available, where the system told.
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
        /// The rule it breaks.
        problem: HeaderError,
    },

    /// The file or folder has no tensor of this name.
    #[error(
        "no tensor `{}` among the {count} of {}{}",
        name.escape_debug(), path.display(), nearest_text(.nearest)
    )]
    NoTensor {
        /// The file or folder.
        path: PathBuf,
        /// The name asked for.
        name: String,
        /// How many tensors there are.
        count: usize,
        /// The name that is most like it.
        nearest: Option<String>,
    },

    /// Bytes outside a tensor, or a buffer of another size than the tensor.
    #[error(
        "bytes {offset}..{offset}+{len} of tensor `{}` were asked for, but it has {available} \
         bytes (in {})", name.escape_debug(), path.display()
    )]
    OutsideTensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// First byte asked for, counted from the tensor's start.
        offset: usize,
        /// Bytes asked for: the size of the buffer.
        len: usize,
        /// Bytes of the tensor.
        available: usize,
    },

    /// The file became shorter after it was opened.
    #[error(
        "{} was changed while it was read: tensor `{}` is cut short; do not write to a \
         checkpoint in place", path.display(), name.escape_debug()
    )]
    Changed {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
    },

    /// A tensor with such a name cannot be written.
    #[error("a tensor cannot be called `{}`: {problem}", name.escape_debug())]
    TensorName {
        /// The name.
        name: String,
        /// What is wrong with it.
        problem: NameError,
    },

    /// Two tensors of one name were given to a writer.
    #[error("two tensors are called `{}`; rename one of them", name.escape_debug())]
    DuplicateTensor {
        /// The name.
        name: String,
    },

    /// A tensor has too many dims or bytes for a file, or no whole number of bytes.
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

    /// The header of a file to be written is larger than the format allows.
    #[error(
        "the header of {} would have {header_len} bytes, the format allows {limit}; write fewer \
         tensors a file", path.display()
    )]
    HeaderTooLarge {
        /// The file.
        path: PathBuf,
        /// Its header's size.
        header_len: usize,
        /// The format's limit.
        limit: usize,
    },

    /// The data given for a tensor is not as long as the tensor.
    #[error(
        "tensor `{}` has {expected} bytes but {actual}{} were given for {}",
        name.escape_debug(), if *actual > *expected { " or more" } else { "" }, path.display()
    )]
    WrongDataLength {
        /// The file that was being written.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Bytes of the tensor.
        expected: usize,
        /// Bytes given.
        actual: usize,
    },

    /// A file or folder with such a name cannot be written or followed.
    #[error(
        "`{}` cannot be the name of a file in {}: {problem}",
        name.escape_debug(), folder.display()
    )]
    FileName {
        /// The folder it was meant for.
        folder: PathBuf,
        /// The name.
        name: String,
        /// What is wrong with it.
        problem: NameError,
    },

    /// A folder holds no model.
    #[error(
        "{} holds neither model.safetensors nor model.safetensors.index.json; give the folder that \
         has one of them, or convert the weights to safetensors", folder.display()
    )]
    NoModel {
        /// The folder.
        folder: PathBuf,
    },

    /// A folder holds two models.
    #[error(
        "{} holds model.safetensors and an index that does not name it; remove the one that is not \
         meant", folder.display()
    )]
    TwoModels {
        /// The folder.
        folder: PathBuf,
    },

    /// A file is no index of safetensors files.
    #[error("{} is not an index of safetensors files: {problem}", path.display())]
    Index {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: IndexError,
    },

    /// A file of a folder is a link.
    #[error(
        "{} is a link, to {target:?}; links are followed only from a snapshot of the Hugging Face \
         cache into its blobs: copy the file to where the link is, or open the folder that has it",
        path.display()
    )]
    Link {
        /// The link.
        path: PathBuf,
        /// Its text.
        target: PathBuf,
    },

    /// Files that the index names do not exist.
    #[error(
        "{} names files that are not there: {}; fetch them again",
        index.display(), Listed(files)
    )]
    MissingShards {
        /// The index.
        index: PathBuf,
        /// The files.
        files: Vec<String>,
    },

    /// Tensors are not in the file that the index names for them.
    #[error(
        "{} does not hold tensors that {} says it has: {}; index and files are of different \
         models, or a file is of another version", shard.display(), index.display(), Listed(names)
    )]
    NotInShard {
        /// The index.
        index: PathBuf,
        /// The file.
        shard: PathBuf,
        /// The tensors.
        names: Vec<String>,
    },

    /// A file holds tensors that the index does not place in it.
    #[error(
        "{} holds tensors that {} does not place there: {}; index and files are of different \
         models, or a file is of another version", shard.display(), index.display(), Listed(names)
    )]
    NotInIndex {
        /// The index.
        index: PathBuf,
        /// The file.
        shard: PathBuf,
        /// The tensors.
        names: Vec<String>,
    },

    /// A checkpoint of this name is there already.
    #[error("{} exists already; remove it or choose another name", path.display())]
    Exists {
        /// The folder.
        path: PathBuf,
    },

    /// A file was changed between writing it and publishing it.
    #[error(
        "{} has {found} bytes but {written} were written; another program changed it",
        path.display()
    )]
    ChangedWhileStaged {
        /// The file.
        path: PathBuf,
        /// Bytes that were written.
        written: u64,
        /// Bytes it has.
        found: u64,
    },

    /// Replicas cannot read for each other.
    #[error(transparent)]
    Exchange(ExchangeError),

    /// Bytes that were read again before they were sealed were others than those written.
    #[error(
        "bytes {}..{} of {} have digest {found}, those that were written had {written}; another \
         program changed the file, or its disk is broken", range.start, range.end, path.display()
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

    /// A folder is no complete checkpoint.
    #[error("{} is not a complete checkpoint: {problem}", path.display())]
    Incomplete {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        problem: IntegrityError,
    },

    /// There is no folder where a checkpoint was to be opened.
    #[error("there is no {}; {}", path.display(), newest_text(.newest))]
    NoCheckpoint {
        /// The folder.
        path: PathBuf,
        /// The newest complete checkpoint beside it.
        newest: Option<PathBuf>,
    },

    /// Bytes of a file could not be read.
    #[error(
        "cannot read {len} bytes from byte {offset} of {} on{}: {source}",
        path.display(), tensor_text(.tensor)
    )]
    ReadAt {
        /// The file.
        path: PathBuf,
        /// The first byte.
        offset: u64,
        /// How many.
        len: usize,
        /// The tensor they belong to, or the first of several.
        tensor: Option<String>,
        /// The system's answer.
        source: io::Error,
    },

    /// A file is no longer what it was when it was opened.
    #[error(
        "{} was changed while it was read, found at byte {offset}{}: {change}; read it again when \
         nobody writes to it", path.display(), tensor_text(.tensor)
    )]
    FileChanged {
        /// The file.
        path: PathBuf,
        /// The first byte of the read that found it.
        offset: u64,
        /// The tensor that was being read, or the first of several.
        tensor: Option<String>,
        /// What happened to it.
        change: FileChange,
    },

    /// A plan was to be carried out with the files of another folder.
    #[error("the plan reads {planned}, the sources are {actual}: plan for the folder that is read")]
    SourceMismatch {
        /// The files of the plan.
        planned: String,
        /// The files given.
        actual: String,
    },

    /// A sink gave memory of another size than a target has.
    #[error(
        "target `{}` has {expected} bytes and was given memory for {actual}: the plan's targets tell \
         their sizes", target.escape_debug()
    )]
    TargetSize {
        /// The target.
        target: String,
        /// Its bytes.
        expected: u64,
        /// Bytes given.
        actual: u64,
    },

    /// Two tensors that a map says are one differ.
    #[error(
        "`{}` and `{}` of {} should be equal, as the map ties them, and differ: remove the one that \
         is not meant, or change the map",
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

    /// A folder is not one that a checkpoint is staged in.
    #[error(
        "nothing is staged in {}; give the folder that the coordinator's `Staging::folder` names, \
         while it is being written", path.display()
    )]
    NotStaged {
        /// The folder.
        path: PathBuf,
    },

    /// Bytes outside of a file that has its size.
    #[error(
        "bytes {offset}..{offset}+{len} of {} were to be written, but it was created with \
         {available} bytes", path.display()
    )]
    OutsideFile {
        /// The file.
        path: PathBuf,
        /// First byte.
        offset: u64,
        /// Bytes that were to be written.
        len: usize,
        /// Bytes of the file.
        available: u64,
    },

    /// A write came after the writer had given its receipt.
    #[error("{} was written to after its writer had finished", path.display())]
    WriterFinished {
        /// The file.
        path: PathBuf,
    },

    /// A reserved file was not written with the size it was reserved with.
    #[error("{actual} bytes were written to {}, which was reserved with {expected}", path.display())]
    WrongLength {
        /// The file.
        path: PathBuf,
        /// Bytes that were reserved.
        expected: u64,
        /// Bytes that were written.
        actual: u64,
    },

    /// What many writers wrote is not a whole file.
    #[error("{} is not whole: {problem}{}", path.display(), tensors_text(.tensors))]
    Coverage {
        /// The file.
        path: PathBuf,
        /// Which bytes, and who wrote them.
        problem: CoverageError,
        /// The tensors that these bytes are of, where a layout says so.
        tensors: Vec<String>,
    },

    /// A rank's layout is another one than that of the rank that created the files.
    #[error(
        "{} was created with {found} bytes, this rank's layout has {planned}: all ranks must lay \
         out the same tensors, added in the same order", path.display()
    )]
    LayoutMismatch {
        /// The file.
        path: PathBuf,
        /// Bytes by the rank's layout.
        planned: u64,
        /// Bytes of the file.
        found: u64,
    },

    /// Writers that were expected have given no receipt.
    #[error(
        "{} cannot be sealed: no receipt came from {}; they failed or are not done",
        path.display(), Listed(writers)
    )]
    MissingWriters {
        /// The checkpoint.
        path: PathBuf,
        /// Their names.
        writers: Vec<String>,
    },

    /// A writer's receipt cannot be.
    #[error("the receipt of `{writer}` for {} is wrong: {problem}", path.display())]
    BadWriteReport {
        /// The checkpoint.
        path: PathBuf,
        /// The writer's name.
        writer: String,
        /// What is wrong.
        problem: WriteReportError,
    },

    /// A manifest would be too large to be read again.
    #[error(
        "{} would have {bytes} bytes; write fewer files, or larger contiguous parts of them",
        path.display()
    )]
    ManifestTooLarge {
        /// The manifest.
        path: PathBuf,
        /// Bytes it would have.
        bytes: u64,
    },

    /// A save in the background panicked.
    #[error("saving {} in the background panicked: {message}", path.display())]
    Panicked {
        /// The checkpoint.
        path: PathBuf,
        /// What the panic said.
        message: String,
    },

    /// A part of a tensor that is none.
    #[error(
        "{actual} bytes are not region {region:?} of tensor `{}` of shape {shape:?}: the region must \
         be inside, its bytes whole, and all of them given", tensor.escape_debug()
    )]
    BadRegion {
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<usize>,
        /// The region.
        region: Vec<std::ops::Range<u64>>,
        /// Bytes that were given.
        actual: usize,
    },
}

impl Error {
    /// Wraps an error of the system.
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Error {
        Error::Io {
            action,
            path: path.to_owned(),
            source,
        }
    }

    /// The same, of a read for this tensor.
    pub(crate) fn while_reading(mut self, name: &str) -> Error {
        if let Error::ReadAt { tensor, .. } | Error::FileChanged { tensor, .. } = &mut self {
            tensor.get_or_insert_with(|| name.to_owned());
        }
        self
    }

    /// Wraps an error of the system while `needed` bytes were being written: a full disk gets its
    /// own variant.
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
    available
        .map(|bytes| format!(", {bytes} available"))
        .unwrap_or_default()
}

fn tensor_text(tensor: &Option<String>) -> String {
    let quoted = |name: &String| format!(" (tensor `{}`)", name.escape_debug());
    tensor.as_ref().map(quoted).unwrap_or_default()
}

fn tensors_text(tensors: &[String]) -> String {
    match tensors {
        [] => String::new(),
        [name] => format!("; they are of tensor `{}`", name.escape_debug()),
        names => format!("; they are of tensors {}", Listed(names)),
    }
}

fn newest_text(newest: &Option<PathBuf>) -> String {
    match newest {
        Some(path) => format!(
            "the newest complete checkpoint beside it is {}",
            path.display()
        ),
        None => "no complete checkpoint is beside it either".to_owned(),
    }
}

fn nearest_text(nearest: &Option<String>) -> String {
    let quoted = |name: &String| format!("; did you mean `{}`?", name.escape_debug());
    nearest.as_ref().map(quoted).unwrap_or_default()
}
