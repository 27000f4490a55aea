//! Errors in the header of a safetensors file, one variant per rule.

use crate::dtype::Dtype;
use crate::limits::{MAX_DEPTH, MAX_DIMS, MAX_HEADER_BYTES};
use crate::names::NameError;

/// A rule of the safetensors format that a file violates.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// The file has fewer than the 8 bytes of the header's length.
    #[error(
        "it has {file_len} bytes, but the header's length alone has 8; it is truncated or empty"
    )]
    TooShort {
        /// Bytes of the file.
        file_len: u64,
    },
    /// The header's length has reversed bytes.
    #[error(
        "its header's length is {header_len}, or {swapped} with the bytes reversed; it was \
         written on a big-endian machine and must be converted there"
    )]
    BigEndian {
        /// The length in the file.
        header_len: u64,
        /// The length that was probably intended.
        swapped: u64,
    },
    /// The header is larger than the format allows.
    #[error(
        "its header's length is {header_len} bytes, but the format allows {MAX_HEADER_BYTES}; it is \
         damaged or not a safetensors file"
    )]
    HeaderTooLarge {
        /// The header's length.
        header_len: u64,
    },
    /// The header is longer than the file.
    #[error(
        "its header's length is {header_len} bytes, but only {available} follow; it is truncated or \
         not a safetensors file"
    )]
    HeaderBeyondFile {
        /// The header's length.
        header_len: u64,
        /// Bytes after the length field.
        available: u64,
    },
    /// The header does not start with `{`.
    #[error("its header starts with {} instead of `{{`", first_text(.first))]
    NotAnObject {
        /// The first byte, if there is one.
        first: Option<u8>,
    },
    /// The header is not UTF-8.
    #[error("its header is not UTF-8 at byte {at}")]
    NotUtf8 {
        /// The first invalid byte, relative to the header's start.
        at: usize,
    },
    /// The header is not JSON of the expected form.
    #[error("its header cannot be parsed: {message}")]
    Json {
        /// The problem, with line and column.
        message: String,
    },
    /// The header has two `__metadata__`, or a duplicate key in it.
    #[error("its metadata has the key `{}` twice", key.escape_debug())]
    DuplicateMetadata {
        /// The key.
        key: String,
    },
    /// Two tensors have the same name.
    #[error("two tensors have the name `{}`", name.escape_debug())]
    DuplicateTensor {
        /// The name.
        name: String,
    },
    /// An invalid tensor name.
    #[error("invalid tensor name `{}`: {problem}", name.escape_debug())]
    TensorName {
        /// The name.
        name: String,
        /// The problem.
        problem: NameError,
    },
    /// A dtype that the format does not define.
    #[error("tensor `{}` has the unknown dtype `{}`", name.escape_debug(), dtype.escape_debug())]
    UnknownDtype {
        /// The tensor.
        name: String,
        /// The dtype's name.
        dtype: String,
    },
    /// A value is nested too deeply, in a field that readers skip.
    #[error("tensor `{}` has values nested more than {MAX_DEPTH} levels deep", name.escape_debug())]
    TooDeep {
        /// The tensor.
        name: String,
    },
    /// Too many dims.
    #[error("tensor `{}` has {dims} dims, but at most {MAX_DIMS} are allowed", name.escape_debug())]
    TooManyDims {
        /// The tensor.
        name: String,
        /// The number of dims.
        dims: usize,
    },
    /// The size in bytes does not fit in 64 bits.
    #[error(
        "tensor `{}` of {dtype} {shape:?} has more bytes than fit in 64 bits",
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
        "tensor `{}` of {dtype} {shape:?} has {bits} bits, which is not a whole number of bytes",
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
    /// The end is before the begin.
    #[error("tensor `{}` begins at byte {begin} but ends earlier, at byte {end}", name.escape_debug())]
    Backwards {
        /// The tensor.
        name: String,
        /// First byte, relative to the data's start.
        begin: u64,
        /// The end, exclusive.
        end: u64,
    },
    /// Dtype and shape need a different number of bytes than the offsets span.
    #[error(
        "tensor `{}` of {dtype} {shape:?} has {expected} bytes, but its offsets span {spanned}",
        name.escape_debug()
    )]
    WrongSize {
        /// The tensor.
        name: String,
        /// Its dtype.
        dtype: Dtype,
        /// Its shape.
        shape: Vec<usize>,
        /// Bytes according to dtype and shape.
        expected: usize,
        /// Bytes according to the offsets.
        spanned: u64,
    },
    /// A tensor ends after the end of the file.
    #[error(
        "tensor `{}` ends at byte {end} of the data, which has {data_len} bytes; the file is \
         truncated", name.escape_debug()
    )]
    BeyondFile {
        /// The tensor.
        name: String,
        /// The tensor's end, exclusive, relative to the data's start.
        end: u64,
        /// Bytes of data in the file.
        data_len: u64,
    },
    /// Bytes before a tensor belong to no tensor.
    #[error(
        "bytes {begin}..{end} of the data, before tensor `{}`, belong to no tensor",
        name.escape_debug()
    )]
    Hole {
        /// The tensor after the gap.
        name: String,
        /// First byte of the gap, relative to the data's start.
        begin: u64,
        /// The end of the gap, exclusive.
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
        /// Its first byte, relative to the data's start.
        begin: u64,
        /// The previous tensor.
        previous: String,
        /// The end of the previous tensor, exclusive.
        previous_end: u64,
    },
    /// Bytes follow the last tensor.
    #[error("{extra} bytes follow its last tensor, which ends at byte {end} of the data")]
    TrailingBytes {
        /// The end of the last tensor, exclusive, relative to the data's start.
        end: u64,
        /// The number of bytes after it.
        extra: u64,
    },
}

fn first_text(first: &Option<u8>) -> String {
    match first {
        Some(byte) => format!("`{}`", byte.escape_ascii()),
        None => "nothing".to_owned(),
    }
}
