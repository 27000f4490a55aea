//! Contiguous elements in the memory of a GPU, for copies and reductions between GPUs.

use std::ops::Range;
use std::sync::Arc;

use meshgrad_error::bail;

use crate::core::storage::Storage;
use crate::{DType, Device, Result};

/// Contiguous elements of a tensor on a GPU, read by work on a stream
/// ([`StreamWork`](crate::StreamWork)). It borrows the tensor's loan ([`Lent`](crate::Lent)).
#[derive(Clone)]
pub struct GpuSlice<'a> {
    storage: &'a Arc<Storage>,
    dtype: DType,
    /// The range of the elements in the storage.
    range: Range<usize>,
}

impl<'a> GpuSlice<'a> {
    pub(super) fn new(storage: &'a Arc<Storage>, dtype: DType, range: Range<usize>) -> Self {
        GpuSlice { storage, dtype, range }
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.storage.device()
    }

    /// The dtype of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The number of elements.
    pub fn elements(&self) -> usize {
        self.range.len()
    }

    /// Whether both slices are the same memory.
    pub fn is(&self, other: &GpuSlice<'_>) -> bool {
        Arc::ptr_eq(self.storage, other.storage) && self.range == other.range
    }

    /// The elements in `range`, counted from the start of this slice.
    ///
    /// # Errors
    /// When `range` is not in the slice.
    pub fn part(&self, range: Range<usize>) -> Result<GpuSlice<'a>> {
        if range.start > range.end || range.end > self.elements() {
            bail!(
                Invalid,
                "GpuSlice::part: elements {range:?} are outside of a slice of {}",
                self.elements()
            );
        }
        let start = self.range.start;
        Ok(GpuSlice { range: start + range.start..start + range.end, ..self.clone() })
    }

    pub(crate) fn storage(&self) -> &'a Arc<Storage> {
        self.storage
    }

    /// Where it starts in its storage, in bytes.
    pub(crate) fn offset(&self) -> usize {
        self.dtype.bytes(self.range.start)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.dtype.bytes(self.elements())
    }

    /// The address of the first element; on a meta device, the address that it would have on a GPU.
    ///
    /// # Errors
    /// On a CPU device.
    pub fn address(&self) -> Result<u64> {
        Ok(self.storage.raw_address("GpuSlice::address")? + self.offset() as u64)
    }
}

/// A [`GpuSlice`] that work on a stream writes.
#[derive(Clone)]
pub struct GpuSliceMut<'a>(GpuSlice<'a>);

impl<'a> GpuSliceMut<'a> {
    pub(super) fn new(slice: GpuSlice<'a>) -> Self {
        GpuSliceMut(slice)
    }

    /// The elements, for reading.
    pub fn as_slice(&self) -> &GpuSlice<'a> {
        &self.0
    }

    /// The elements in `range`, counted from the start of this slice.
    ///
    /// # Errors
    /// As [`GpuSlice::part`].
    pub fn part(&self, range: Range<usize>) -> Result<GpuSliceMut<'a>> {
        self.0.part(range).map(GpuSliceMut)
    }
}
