//! The header of a safetensors file: `u64 LE N | N bytes of JSON | data`.
//!
//! [`parse`] accepts a subset of what the reference crate accepts: not duplicate names, not names
//! that could lead out of a folder, nothing before the first `{`. Every byte of the data belongs to
//! exactly one tensor, so a file has one meaning and no room for a second format.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::dtype::BadSize;
use crate::header_json::{RawHeader, RawTensor};
use crate::names::{METADATA_KEY, NameProblem, check_tensor_name};
use crate::{Dtype, TensorInfo};

/// Bytes before the JSON.
pub(crate) const PREFIX: usize = 8;

/// The format's limit on the size of a header, in bytes.
pub const MAX_HEADER_BYTES: usize = 100_000_000;

/// More dims than any tensor has; keeps a hostile header from costing memory in every reader.
pub const MAX_DIMS: usize = 64;

/// A rule of the safetensors format that a file breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
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
        problem: NameProblem,
    },
    /// A dtype that the format does not have.
    #[error("tensor `{}` has the unknown dtype `{}`", name.escape_debug(), dtype.escape_debug())]
    UnknownDtype {
        /// The tensor.
        name: String,
        /// The dtype's name.
        dtype: String,
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
        "tensor `{}` of {dtype} {shape:?} has {wanted} bytes but its offsets span {spanned}",
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
        wanted: usize,
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

/// What a header says, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header {
    /// The tensors by name; ranges are in bytes of the file.
    pub(crate) tensors: Vec<TensorInfo>,
    pub(crate) metadata: BTreeMap<String, String>,
}

/// Checks the first eight bytes of a file and returns the length of its header.
pub(crate) fn header_len(prefix: [u8; PREFIX], file_len: u64) -> Result<usize, Violation> {
    let header_len = u64::from_le_bytes(prefix);
    let available = file_len.saturating_sub(PREFIX as u64);
    let limit = MAX_HEADER_BYTES as u64;

    let swapped = header_len.swap_bytes();
    if header_len > limit && swapped <= limit.min(available) && swapped >= 2 {
        return Err(Violation::BigEndian {
            header_len,
            swapped,
        });
    }
    if header_len > limit {
        return Err(Violation::HeaderTooLarge { header_len });
    }
    if header_len > available {
        return Err(Violation::HeaderBeyondFile {
            header_len,
            available,
        });
    }

    Ok(header_len as usize)
}

/// Reads and checks a header; `file_len` is in bytes and includes prefix and header.
pub(crate) fn parse(json: &[u8], file_len: u64) -> Result<Header, Violation> {
    if json.first() != Some(&b'{') {
        return Err(Violation::NotAnObject {
            first: json.first().copied(),
        });
    }
    let text = std::str::from_utf8(json).map_err(|error| Violation::NotUtf8 {
        at: error.valid_up_to(),
    })?;

    let raw: RawHeader = serde_json::from_str(text).map_err(|error| Violation::Json {
        message: error.to_string(),
    })?;

    let metadata = check_metadata(raw.metadata)?;
    let data_start = (PREFIX + json.len()) as u64;
    let data_len = file_len.saturating_sub(data_start);

    let mut tensors = Vec::with_capacity(raw.tensors.len());
    for (name, tensor) in raw.tensors {
        tensors.push(check_tensor(name, tensor, data_len)?);
    }

    check_names(&mut tensors)?;
    check_coverage(&tensors, data_len)?;

    for tensor in &mut tensors {
        tensor.range = data_start + tensor.range.start..data_start + tensor.range.end;
    }
    Ok(Header { tensors, metadata })
}

fn check_metadata(raw: Vec<Vec<(String, String)>>) -> Result<BTreeMap<String, String>, Violation> {
    if raw.len() > 1 {
        return Err(Violation::DuplicateMetadata {
            key: METADATA_KEY.to_owned(),
        });
    }

    let mut metadata = BTreeMap::new();
    for (key, value) in raw.into_iter().flatten() {
        if metadata.contains_key(&key) {
            return Err(Violation::DuplicateMetadata { key });
        }
        metadata.insert(key, value);
    }
    Ok(metadata)
}

/// Checks what one entry says of itself; its range stays relative to the data.
fn check_tensor(name: String, raw: RawTensor, data_len: u64) -> Result<TensorInfo, Violation> {
    if let Err(problem) = check_tensor_name(&name) {
        return Err(Violation::TensorName { name, problem });
    }

    let RawTensor {
        dtype,
        shape,
        begin,
        end,
    } = raw;
    let Ok(dtype) = dtype.parse::<Dtype>() else {
        return Err(Violation::UnknownDtype { name, dtype });
    };
    if shape.len() > MAX_DIMS {
        return Err(Violation::TooManyDims {
            name,
            dims: shape.len(),
        });
    }

    let wanted = match dtype.byte_len(&shape) {
        Ok(bytes) => bytes,
        Err(BadSize::Overflow) => return Err(Violation::Overflow { name, dtype, shape }),
        Err(BadSize::PartOfAByte { bits }) => {
            return Err(Violation::PartOfAByte {
                name,
                dtype,
                shape,
                bits,
            });
        }
    };

    let Some(spanned) = end.checked_sub(begin) else {
        return Err(Violation::Backwards { name, begin, end });
    };
    if spanned != wanted as u64 {
        return Err(Violation::WrongSize {
            name,
            dtype,
            shape,
            wanted,
            spanned,
        });
    }
    if end > data_len {
        return Err(Violation::BeyondFile {
            name,
            end,
            data_len,
        });
    }

    Ok(TensorInfo {
        name,
        dtype,
        shape,
        range: begin..end,
    })
}

/// Sorts the tensors by name and refuses names that occur twice.
fn check_names(tensors: &mut [TensorInfo]) -> Result<(), Violation> {
    tensors.sort_by(|a, b| a.name.cmp(&b.name));

    match tensors.windows(2).find(|pair| pair[0].name == pair[1].name) {
        Some(pair) => Err(Violation::DuplicateTensor {
            name: pair[0].name.clone(),
        }),
        None => Ok(()),
    }
}

/// Every byte of the data belongs to exactly one tensor.
fn check_coverage(tensors: &[TensorInfo], data_len: u64) -> Result<(), Violation> {
    let mut by_offset: Vec<&TensorInfo> = tensors.iter().collect();
    by_offset.sort_by_key(|tensor| (tensor.range.start, tensor.range.end));

    let mut covered = 0;
    let mut previous = "";
    for tensor in by_offset {
        let Range { start, end } = tensor.range;

        if start > covered {
            return Err(Violation::Hole {
                name: tensor.name.clone(),
                begin: covered,
                end: start,
            });
        }
        if start < covered {
            return Err(Violation::Overlap {
                name: tensor.name.clone(),
                begin: start,
                previous: previous.to_owned(),
                previous_end: covered,
            });
        }
        covered = end;
        previous = &tensor.name;
    }

    match data_len - covered {
        0 => Ok(()),
        extra => Err(Violation::TrailingBytes {
            end: covered,
            extra,
        }),
    }
}
