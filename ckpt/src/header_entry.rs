//! One entry of a header: the description of a tensor, checked.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::dtype::{BadSize, Dtype};
use crate::header_error::HeaderError;
use crate::limits::MAX_DIMS;
use crate::names::check_tensor_name;
use crate::tensor_info::TensorInfo;

/// The tensors in the order of the file, with duplicates, and the metadata.
pub(crate) type Entries = (Vec<TensorInfo>, BTreeMap<String, String>);

/// The description of one tensor, unchecked.
pub(crate) struct Entry<'json> {
    pub(crate) dtype: Cow<'json, str>,
    /// At most the first [`MAX_DIMS`] extents.
    pub(crate) shape: Vec<usize>,
    /// The number of extents.
    pub(crate) dims: usize,
    pub(crate) begin: u64,
    pub(crate) end: u64,
}

/// Checks one entry on its own; its range stays relative to the data.
pub(crate) fn check_entry(
    name: String,
    entry: Entry<'_>,
    data_len: u64,
) -> Result<TensorInfo, HeaderError> {
    if let Err(problem) = check_tensor_name(&name) {
        return Err(HeaderError::TensorName { name, problem });
    }

    let Entry { dtype, shape, dims, begin, end } = entry;
    let Ok(dtype) = dtype.parse::<Dtype>() else {
        let dtype = dtype.into_owned();
        return Err(HeaderError::UnknownDtype { name, dtype });
    };
    if dims > MAX_DIMS {
        return Err(HeaderError::TooManyDims { name, dims });
    }

    let expected = match dtype.byte_len(&shape) {
        Ok(bytes) => bytes,
        Err(BadSize::Overflow) => return Err(HeaderError::Overflow { name, dtype, shape }),
        Err(BadSize::PartOfAByte { bits }) => {
            return Err(HeaderError::PartOfAByte { name, dtype, shape, bits });
        }
    };

    let Some(spanned) = end.checked_sub(begin) else {
        return Err(HeaderError::Backwards { name, begin, end });
    };
    if spanned != expected as u64 {
        return Err(HeaderError::WrongSize { name, dtype, shape, expected, spanned });
    }
    if end > data_len {
        return Err(HeaderError::BeyondFile { name, end, data_len });
    }

    Ok(TensorInfo { name, dtype, shape, range: begin..end })
}
