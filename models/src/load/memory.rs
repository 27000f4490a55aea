//! Tensors of the host as bytes to be filled.

use std::ops::Range;

use half::bf16;
use meshgrad_ckpt::Dtype;
use meshgrad_runtime::{DType, Tensor, WriteGuard};

use crate::{Error, Result};

/// The name of a runtime's dtype in a file.
pub(crate) fn dtype_of(dtype: DType) -> Result<Dtype> {
    match dtype {
        DType::F32 => Ok(Dtype::F32),
        DType::BF16 => Ok(Dtype::BF16),
        dtype => Err(Error::NotStored { dtype }),
    }
}

/// A contiguous tensor on the CPU, to be filled.
pub(super) enum Lent<'t> {
    F32(WriteGuard<'t, f32>, Range<usize>),
    BF16(WriteGuard<'t, bf16>, Range<usize>),
}

impl<'t> Lent<'t> {
    pub(super) fn of(name: &str, tensor: &'t Tensor) -> Result<Lent<'t>> {
        let start = tensor.layout().offset();
        let elements = start..start + tensor.elements();
        let failed = |source| Error::not_loaded(name, source);
        match dtype_of(tensor.dtype())? {
            Dtype::BF16 => Ok(Lent::BF16(tensor.write("load").map_err(failed)?, elements)),
            _ => Ok(Lent::F32(tensor.write("load").map_err(failed)?, elements)),
        }
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        match self {
            Lent::F32(write, elements) => bytemuck::cast_slice_mut(&mut write[elements.clone()]),
            Lent::BF16(write, elements) => bytemuck::cast_slice_mut(&mut write[elements.clone()]),
        }
    }
}
