//! Tensors in host memory as mutable bytes.

use std::ops::Range;

use half::bf16;
use meshgrad_ckpt::Dtype;
use meshgrad_runtime::{DType, Tensor, WriteGuard};

use crate::error::{Error, Result};

/// The dtype in a file for a tensor of `dtype`.
///
/// # Errors
/// [`Error::NotStored`] for any but f32 and bf16.
pub fn stored_dtype(dtype: DType) -> Result<Dtype> {
    match dtype {
        DType::F32 => Ok(Dtype::F32),
        DType::BF16 => Ok(Dtype::BF16),
        dtype => Err(Error::NotStored { dtype }),
    }
}

/// A contiguous tensor on the CPU, borrowed for writing.
pub(crate) enum HostTensor<'t> {
    F32(WriteGuard<'t, f32>, Range<usize>),
    BF16(WriteGuard<'t, bf16>, Range<usize>),
}

impl<'t> HostTensor<'t> {
    pub(crate) fn new(name: &str, tensor: &'t Tensor) -> Result<HostTensor<'t>> {
        let start = tensor.layout().offset();
        let elements = start..start + tensor.elements();
        let failed = |source| Error::not_loaded(name, source);
        match stored_dtype(tensor.dtype())? {
            Dtype::BF16 => Ok(HostTensor::BF16(
                tensor.write("load").map_err(failed)?,
                elements,
            )),
            _ => Ok(HostTensor::F32(
                tensor.write("load").map_err(failed)?,
                elements,
            )),
        }
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        match self {
            HostTensor::F32(write, elements) => {
                bytemuck::cast_slice_mut(&mut write[elements.clone()])
            }
            HostTensor::BF16(write, elements) => {
                bytemuck::cast_slice_mut(&mut write[elements.clone()])
            }
        }
    }
}
