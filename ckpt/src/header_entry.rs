//! One entry of a header: the description of a tensor, checked.

use std::borrow::Cow;
use std::collections::BTreeMap;

use meshgrad_error::{Result, bail, ensure};

use crate::dtype::{BadSize, Dtype};
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
pub(crate) fn check_entry(name: String, entry: Entry<'_>, data_len: u64) -> Result<TensorInfo> {
    let Entry { dtype, shape, dims, begin, end } = entry;
    let shown = || name.escape_debug();
    if let Err(problem) = check_tensor_name(&name) {
        bail!(Malformed, "invalid tensor name `{}`: {problem}", shown());
    }
    let Ok(dtype) = dtype.parse::<Dtype>() else {
        let dtype = dtype.escape_debug();
        bail!(Malformed, "tensor `{}` has the unknown dtype `{dtype}`", shown());
    };
    ensure!(
        dims <= MAX_DIMS,
        Malformed,
        "tensor `{}` has {dims} dims, but at most {MAX_DIMS} are allowed",
        shown()
    );

    let expected = match dtype.byte_len(&shape) {
        Ok(bytes) => bytes,
        Err(BadSize::Overflow) => bail!(
            Malformed,
            "tensor `{}` of {dtype} {shape:?} has more bytes than fit in 64 bits",
            shown()
        ),
        Err(BadSize::PartOfAByte { bits }) => bail!(
            Malformed,
            "tensor `{}` of {dtype} {shape:?} has {bits} bits, which is not a whole number of \
             bytes",
            shown()
        ),
    };

    let Some(spanned) = end.checked_sub(begin) else {
        bail!(
            Malformed,
            "tensor `{}` begins at byte {begin} but ends earlier, at byte {end}",
            shown()
        );
    };
    ensure!(
        spanned == expected as u64,
        Malformed,
        "tensor `{}` of {dtype} {shape:?} has {expected} bytes, but its offsets span {spanned}",
        shown()
    );
    ensure!(
        end <= data_len,
        Malformed,
        "tensor `{}` ends at byte {end} of the data, which has {data_len} bytes; the file is \
         truncated",
        shown()
    );

    Ok(TensorInfo { name, dtype, shape, range: begin..end })
}
