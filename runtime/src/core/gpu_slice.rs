//! Contiguous elements in the memory of a GPU, for copies and reductions between GPUs.

use std::ops::Range;
use std::sync::Arc;

use crate::core::storage::Storage;
use crate::{DType, Device, Error, Result};

/// Contiguous elements of a tensor on a GPU, which work on a stream reads
/// ([`StreamWork`](crate::StreamWork)). It keeps their memory.
#[derive(Clone)]
pub struct GpuSlice {
    storage: Arc<Storage>,
    dtype: DType,
    /// The elements in the storage.
    range: Range<usize>,
}

impl GpuSlice {
    pub(super) fn new(storage: Arc<Storage>, dtype: DType, range: Range<usize>) -> GpuSlice {
        GpuSlice {
            storage,
            dtype,
            range,
        }
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

    /// Whether both are the same memory.
    pub fn is(&self, other: &GpuSlice) -> bool {
        Arc::ptr_eq(&self.storage, &other.storage) && self.range == other.range
    }

    /// Some of the elements.
    ///
    /// # Errors
    /// [`Error::Argument`] when the range is outside.
    pub fn part(&self, range: Range<usize>) -> Result<GpuSlice> {
        if range.start > range.end || range.end > self.elements() {
            let problem = format!(
                "elements {range:?} are outside of a slice of {}",
                self.elements()
            );
            return Err(Error::Argument {
                op: "GpuSlice::part",
                problem,
            });
        }
        let start = self.range.start;
        Ok(GpuSlice {
            range: start + range.start..start + range.end,
            ..self.clone()
        })
    }

    pub(crate) fn storage(&self) -> &Arc<Storage> {
        &self.storage
    }

    /// Where it starts in its storage, in bytes.
    pub(crate) fn offset(&self) -> usize {
        self.dtype.bytes(self.range.start)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.dtype.bytes(self.elements())
    }

    /// The address of the first element; on a meta device, the one that it would have.
    pub(crate) fn address(&self) -> Result<u64> {
        Ok(self.storage.uninit_address()? + self.offset() as u64)
    }
}

/// A [`GpuSlice`] that work on a stream writes.
#[derive(Clone)]
pub struct GpuSliceMut(GpuSlice);

impl GpuSliceMut {
    pub(super) fn new(slice: GpuSlice) -> GpuSliceMut {
        GpuSliceMut(slice)
    }

    /// The elements, for reading.
    pub fn as_slice(&self) -> &GpuSlice {
        &self.0
    }

    /// Some of the elements.
    ///
    /// # Errors
    /// As [`GpuSlice::part`].
    pub fn part(&self, range: Range<usize>) -> Result<GpuSliceMut> {
        self.0.part(range).map(GpuSliceMut)
    }
}
