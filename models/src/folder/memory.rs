//! The bytes of the tensors that are written.

use std::ops::Range;

use half::bf16;
use meshgrad_ckpt::Dtype;
use meshgrad_ckpt::exec::TensorBytes;
use meshgrad_ckpt::mapping::TensorSpec;
use meshgrad_load::stored_dtype;
use meshgrad_runtime::{Element, ReadGuard, Tensor};

use super::error::Result;

/// A tensor with a name: the value of a parameter or buffer, a gradient, optimizer state.
pub type NamedTensor = (String, Tensor);

/// Names, dtypes and global shapes.
pub(super) fn specs(tensors: &[NamedTensor]) -> Result<Vec<TensorSpec>> {
    tensors.iter().map(spec).collect()
}

pub(super) fn spec((name, tensor): &NamedTensor) -> Result<TensorSpec> {
    let shape = tensor.global_shape();
    let shape: Vec<u64> = shape.iter().map(|extent| *extent as u64).collect();
    Ok(TensorSpec::new(name, stored_dtype(tensor.dtype())?, &shape))
}

/// The local elements of a tensor. Contiguous tensors in host memory are read in place; others are
/// copied.
///
/// # Errors
/// A dtype that folders do not store; errors of the device.
pub(super) fn bytes(tensor: &Tensor) -> Result<TensorBytes<'_>> {
    Ok(match stored_dtype(tensor.dtype())? {
        Dtype::BF16 => Box::new(Elements::<bf16>::of(tensor)?),
        _ => Box::new(Elements::<f32>::of(tensor)?),
    })
}

enum Elements<'t, T> {
    Borrowed(ReadGuard<'t, T>, Range<usize>),
    Copied(Vec<T>),
}

impl<'t, T: Element> Elements<'t, T> {
    fn of(tensor: &'t Tensor) -> Result<Elements<'t, T>> {
        if tensor.device().is_gpu() || !tensor.is_contiguous() {
            return Ok(Elements::Copied(tensor.local().to_vec()?));
        }
        let start = tensor.layout().offset();
        Ok(Elements::Borrowed(
            tensor.read()?,
            start..start + tensor.elements(),
        ))
    }
}

impl<T: Element> AsRef<[u8]> for Elements<'_, T> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(match self {
            Elements::Borrowed(read, elements) => &read[elements.clone()],
            Elements::Copied(elements) => elements,
        })
    }
}
