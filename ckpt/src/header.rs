//! The header of a safetensors file: `u64 LE N | N bytes of JSON | data`.
//!
//! [`Header::parse`] accepts a subset of what the reference crate accepts. It rejects duplicate
//! names, names that could lead out of a folder, anything before the first `{`, and deep nesting.
//! Every byte of the data belongs to exactly one tensor, so a file has one meaning and no room for
//! a second format.

use std::collections::BTreeMap;
use std::ops::Range;

use meshgrad_error::{Error, Kind, Result, bail, ensure, error};

use crate::error::duplicate_tensor;
use crate::limits::MAX_HEADER_BYTES;
use crate::tensor_info::TensorInfo;
use crate::{header_canonical, header_json};

/// Bytes before the JSON.
pub(crate) const PREFIX: usize = 8;

/// The content of a header, fully checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    tensors: Vec<TensorInfo>,
    metadata: BTreeMap<String, String>,
}

impl Header {
    /// Parses the first bytes of a file of `file_len` bytes: the header's length, the header, and
    /// possibly data, which is ignored.
    ///
    /// This is for bytes in memory. For files on disk, see [`crate::TensorFile`].
    ///
    /// ```
    /// use meshgrad_ckpt::{Dtype, Header};
    ///
    /// let json = br#"{"w":{"dtype":"BF16","shape":[3],"data_offsets":[0,6]}}"#;
    /// let start = [&(json.len() as u64).to_le_bytes(), &json[..]].concat();
    ///
    /// let header = Header::parse(&start, start.len() as u64 + 6)?;
    /// assert_eq!(header.get("w").map(|w| w.dtype), Some(Dtype::BF16));
    /// # Ok::<(), meshgrad_ckpt::Error>(())
    /// ```
    ///
    /// # Errors
    /// The rule of the format that the header breaks.
    pub fn parse(start: &[u8], file_len: u64) -> Result<Header> {
        let Some((prefix, rest)) = start.split_first_chunk() else {
            return Err(too_short(file_len.min(start.len() as u64)));
        };

        let header_len = header_len(*prefix, file_len)?;
        match rest.get(..header_len) {
            Some(json) => Header::from_json(json, file_len),
            None => Err(beyond_file(header_len as u64, rest.len() as u64)),
        }
    }

    /// Parses the JSON; `file_len` is in bytes and includes prefix and header.
    pub(crate) fn from_json(json: &[u8], file_len: u64) -> Result<Header> {
        match json.first() {
            Some(b'{') => {}
            None => bail!(Malformed, "its header starts with nothing instead of `{{`"),
            Some(byte) => {
                bail!(Malformed, "its header starts with `{}` instead of `{{`", byte.escape_ascii())
            }
        }
        let text = std::str::from_utf8(json).map_err(|invalid| {
            error!(Malformed, "its header is not UTF-8 at byte {}", invalid.valid_up_to())
        })?;

        let data_start = (PREFIX + json.len()) as u64;
        let data_len = file_len.saturating_sub(data_start);
        let (mut tensors, metadata) = match header_canonical::read(text, data_len) {
            Some(entries) => entries,
            None => header_json::read(text, data_len)?,
        };

        check_names(&mut tensors).map_err(|name| {
            error!(Malformed, "two tensors have the name `{}`", name.escape_debug())
        })?;
        check_coverage(&tensors, data_len)?;

        for tensor in &mut tensors {
            tensor.range = data_start + tensor.range.start..data_start + tensor.range.end;
        }
        Ok(Header { tensors, metadata })
    }

    /// A header for tensors at ranges that another format defines. The ranges may overlap.
    pub(crate) fn of_ranges(mut tensors: Vec<TensorInfo>) -> Result<Header> {
        match check_names(&mut tensors) {
            Ok(()) => Ok(Header { tensors, metadata: BTreeMap::new() }),
            Err(name) => Err(duplicate_tensor(Kind::Malformed, &name)),
        }
    }

    /// The same tensors, named `PREFIX/NAME`.
    pub(crate) fn with_prefix(mut self, prefix: &str) -> Header {
        for tensor in &mut self.tensors {
            tensor.name = format!("{prefix}/{}", tensor.name);
        }
        self
    }

    /// All tensors, sorted by name; ranges are in bytes of the file.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The strings that the writer stored in the header, by key.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// The tensor of this name.
    pub fn get(&self, name: &str) -> Option<&TensorInfo> {
        let at = self.tensors.binary_search_by(|tensor| tensor.name.as_str().cmp(name)).ok()?;
        Some(&self.tensors[at])
    }
}

/// Checks the first eight bytes of a file and returns the length of its header.
pub(crate) fn header_len(prefix: [u8; PREFIX], file_len: u64) -> Result<usize> {
    let header_len = u64::from_le_bytes(prefix);
    let available = file_len.saturating_sub(PREFIX as u64);
    let limit = MAX_HEADER_BYTES as u64;

    let swapped = header_len.swap_bytes();
    if header_len > limit && swapped <= limit.min(available) && swapped >= 2 {
        bail!(
            Malformed,
            "its header's length is {header_len}, or {swapped} with the bytes reversed; it was \
             written on a big-endian machine and must be converted there"
        );
    }
    ensure!(
        header_len <= limit,
        Malformed,
        "its header's length is {header_len} bytes, but the format allows {limit}; it is damaged \
         or not a safetensors file"
    );
    if header_len > available {
        return Err(beyond_file(header_len, available));
    }

    Ok(header_len as usize)
}

/// The error for a file that is shorter than the header's length field.
pub(crate) fn too_short(file_len: u64) -> Error {
    error!(
        Malformed,
        "it has {file_len} bytes, but the header's length alone has 8; it is truncated or empty"
    )
}

fn beyond_file(header_len: u64, available: u64) -> Error {
    error!(
        Malformed,
        "its header's length is {header_len} bytes, but only {available} follow; it is truncated \
         or not a safetensors file"
    )
}

/// Sorts the tensors by name; returns a name that two of them have.
fn check_names(tensors: &mut [TensorInfo]) -> Result<(), String> {
    // Writers sort the names, so this pass is usually enough.
    if tensors.is_sorted_by(|a, b| a.name < b.name) {
        return Ok(());
    }
    tensors.sort_by(|a, b| a.name.cmp(&b.name));

    match tensors.windows(2).find(|pair| pair[0].name == pair[1].name) {
        Some(pair) => Err(pair[0].name.clone()),
        None => Ok(()),
    }
}

/// Checks that every byte of the data belongs to exactly one tensor.
fn check_coverage(tensors: &[TensorInfo], data_len: u64) -> Result<()> {
    let mut by_offset: Vec<&TensorInfo> = tensors.iter().collect();
    by_offset.sort_by_key(|tensor| (tensor.range.start, tensor.range.end));

    let mut covered = 0;
    let mut previous = "";
    for tensor in by_offset {
        let Range { start, end } = tensor.range;

        ensure!(
            start <= covered,
            Malformed,
            "bytes {covered}..{start} of the data, before tensor `{}`, belong to no tensor",
            tensor.name.escape_debug()
        );
        ensure!(
            start == covered,
            Malformed,
            "tensor `{}` begins at byte {start} of the data, before `{}` ends at {covered}",
            tensor.name.escape_debug(),
            previous.escape_debug()
        );
        covered = end;
        previous = &tensor.name;
    }

    ensure!(
        data_len == covered,
        Malformed,
        "{} bytes follow its last tensor, which ends at byte {covered} of the data",
        data_len - covered
    );
    Ok(())
}
