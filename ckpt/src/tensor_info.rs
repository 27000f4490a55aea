//! A tensor of a safetensors file, without its data.

use std::ops::Range;

use crate::dtype::Dtype;

/// A tensor of a safetensors file, without its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name, unique in its file.
    pub name: String,
    /// Its element type.
    pub dtype: Dtype,
    /// Its extents, row-major.
    pub shape: Vec<usize>,
    /// The byte range of its elements in the file, little-endian, not necessarily aligned.
    pub range: Range<u64>,
}

impl TensorInfo {
    /// Bytes of its elements.
    pub fn byte_len(&self) -> usize {
        // Sizes are computed in `usize` before an info is created.
        (self.range.end - self.range.start) as usize
    }
}
