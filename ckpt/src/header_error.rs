//! What can be wrong with the header of a safetensors file, one variant a rule.

use crate::dtype::Dtype;
use crate::limits::{MAX_DEPTH, MAX_DIMS, MAX_HEADER_BYTES};
use crate::names::NameError;

/// A rule of the safetensors format that a file breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// Fewer than the 8 bytes of the header's length.
    #[error("it has {file_len} bytes, a header's length alone takes 8; it is cut short or empty")]
    TooShort {
        /// Bytes of the file.
        file_len: u64,
    },
    /// The header's length was written with its bytes reversed.
    #[error(
        "its header's length is {header_len}, but {swapped} with the bytes reversed; it was \
         written on a big-endian machine, where it must be converted"
    )]
    BigEndian {
        /// The length as it stands.
        header_len: u64,
        /// The length that was probably meant.
        swapped: u64,
    },
    /// The header is larger than the format allows.
    #[error(
        "its header's length is {header_len} bytes, the format allows {MAX_HEADER_BYTES}; it is \
         damaged or not a safetensors file"
    )]
    HeaderTooLarge {
        /// The header's length.
        header_len: u64,
    },
    /// The header does not fit the file.
    #[error(
        "its header's length is {header_len} bytes but only {available} follow; it is cut short or \
         not a safetensors file"
    )]
    HeaderBeyondFile {
        /// The header's length.
        header_len: u64,
        /// Bytes after the length field.
        available: u64,
    },
    /// The header does not begin with `{`.
    #[error("its header begins with {} instead of `{{`", first_text(.first))]
    NotAnObject {
        /// The first byte, if there is one.
        first: Option<u8>,
    },
    /// The header is not UTF-8.
    #[error("its header is not UTF-8 from byte {at} on")]
    NotUtf8 {
        /// The first bad byte, counted from the header's start.
        at: usize,
    },
    /// The header is not JSON of the expected form.
    #[error("its header cannot be read: {message}")]
    Json {
        /// What is wrong, with line and column.
        message: String,
    },
    /// The header has two `__metadata__`, or one with a key twice.
    #[error("its metadata has `{}` twice", key.escape_debug())]
    DuplicateMetadata {
        /// The key.
        key: String,
    },
    /// Two tensors have one name.
    #[error("two tensors are called `{}`", name.escape_debug())]
    DuplicateTensor {
        /// The name.
        name: String,
    },
    /// A name that no tensor may have.
    #[error("a tensor is called `{}`: {problem}", name.escape_debug())]
    TensorName {
        /// The name.
        name: String,
        /// What is wrong with it.
        problem: NameError,
    },
    /// A dtype that the format does not have.
    #[error("tensor `{}` has the unknown dtype `{}`", name.escape_debug(), dtype.escape_debug())]
    UnknownDtype {
        /// The tensor.
        name: String,
        /// The dtype's name.
        dtype: String,
    },
    /// A value is nested too deeply, in a field that readers skip.
    #[error("tensor `{}` has values nested more than {MAX_DEPTH} deep", name.escape_debug())]
    TooDeep {
        /// The tensor.
        name: String,
    },
    /// Too many dims.
    #[error("tensor `{}` has {dims} dims, {MAX_DIMS} are allowed", name.escape_debug())]
    TooManyDims {
        /// The tensor.
        name: String,
        /// How many dims.
        dims: usize,
    },
    /// The size in bytes does not fit 64 bits.
    #[error(
        "tensor `{}` of {dtype} {shape:?} has more bytes than 64 bits count",
        name.escape_debug()
    )]
    Overflow {
        /// The tensor.
        name: String,
        /// Its dtype.
        dtype: Dtype,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// The elements do not fill whole bytes.
    #[error(
        "tensor `{}` of {dtype} {shape:?} has {bits} bits, no whole number of bytes",
        name.escape_debug()
    )]
    PartOfAByte {
        /// The tensor.
        name: String,
        /// Its dtype.
        dtype: Dtype,
        /// Its shape.
        shape: Vec<usize>,
        /// Bits of all elements.
        bits: usize,
    },
    /// The offsets run backwards.
    #[error("tensor `{}` begins at {begin} and ends before, at {end}", name.escape_debug())]
    Backwards {
        /// The tensor.
        name: String,
        /// First byte, counted from the data's start.
        begin: u64,
        /// Byte after the last.
        end: u64,
    },
    /// Dtype and shape need another number of bytes than the offsets span.
    #[error(
        "tensor `{}` of {dtype} {shape:?} has {expected} bytes but its offsets span {spanned}",
        name.escape_debug()
    )]
    WrongSize {
        /// The tensor.
        name: String,
        /// Its dtype.
        dtype: Dtype,
        /// Its shape.
        shape: Vec<usize>,
        /// Bytes by dtype and shape.
        expected: usize,
        /// Bytes by the offsets.
        spanned: u64,
    },
    /// A tensor ends after the file.
    #[error(
        "tensor `{}` ends at byte {end} of the data, of which there are {data_len}; the file is \
         cut short", name.escape_debug()
    )]
    BeyondFile {
        /// The tensor.
        name: String,
        /// Byte after the tensor's last, counted from the data's start.
        end: u64,
        /// Bytes of data in the file.
        data_len: u64,
    },
    /// Bytes before a tensor belong to none.
    #[error(
        "bytes {begin}..{end} of the data, before tensor `{}`, belong to no tensor",
        name.escape_debug()
    )]
    Hole {
        /// The tensor after the hole.
        name: String,
        /// First byte of the hole, counted from the data's start.
        begin: u64,
        /// Byte after the hole.
        end: u64,
    },
    /// Two tensors share bytes.
    #[error(
        "tensor `{}` begins at byte {begin} of the data, before `{}` ends at {previous_end}",
        name.escape_debug(), previous.escape_debug()
    )]
    Overlap {
        /// The tensor that begins too early.
        name: String,
        /// Its first byte, counted from the data's start.
        begin: u64,
        /// The tensor before it.
        previous: String,
        /// Byte after the last of the tensor before it.
        previous_end: u64,
    },
    /// Bytes after the last tensor.
    #[error("{extra} bytes follow its last tensor, which ends at byte {end} of the data")]
    TrailingBytes {
        /// Byte after the last tensor, counted from the data's start.
        end: u64,
        /// Bytes after it.
        extra: u64,
    },
}

fn first_text(first: &Option<u8>) -> String {
    match first {
        Some(byte) => format!("`{}`", byte.escape_ascii()),
        None => "nothing".to_owned(),
    }
}
