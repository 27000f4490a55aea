//! Tensors of a pickle: views of storages.

use meshgrad_error::{Error, Result};

use super::error::{MAX_NESTED, damaged, nested, unsupported};
use super::globals::{Global, TorchDtype};
use super::pickle::{Id, Pickle, Value};
use crate::limits::MAX_DIMS;

/// A tensor as a view of a storage, in elements of PyTorch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TorchTensor {
    pub(super) dtype: TorchDtype,
    /// The key of its storage: the name of a file in the archive.
    pub(super) storage: String,
    pub(super) storage_bytes: u64,
    pub(super) offset: u64,
    pub(super) shape: Vec<u64>,
    pub(super) strides: Vec<u64>,
}

/// Converts a value to a tensor; `None` if it is not one.
pub(super) fn tensor(pickle: &Pickle, mut value: Id, name: &str) -> Result<Option<TorchTensor>> {
    for _ in 0..MAX_NESTED {
        let Some((global, arguments)) = pickle.call(value) else {
            return Ok(None);
        };
        match (global, arguments) {
            (Global::Parameter, [data, ..]) => value = *data,
            (Global::Tensor, [storage, offset, shape, strides, _, _, more @ ..]) => {
                let view = (*offset, *shape, *strides);
                return view_of(pickle, name, *storage, view, None, more).map(Some);
            }
            (Global::TensorOfDtype, [storage, offset, shape, strides, _, _, dtype, more @ ..]) => {
                let dtype = dtype_of(pickle, *dtype, name)?;
                let view = (*offset, *shape, *strides);
                return view_of(pickle, name, *storage, view, Some(dtype), more).map(Some);
            }
            (Global::Parameter | Global::Tensor | Global::TensorOfDtype, _) => {
                return Err(damaged(name, "it has too few arguments"));
            }
            _ => return Ok(None),
        }
    }
    Err(nested(name))
}

/// The dtype that a value names.
pub(super) fn dtype_of(pickle: &Pickle, value: Id, name: &str) -> Result<TorchDtype> {
    match *pickle.get(value) {
        Value::Global(Global::Dtype(dtype)) => Ok(dtype),
        Value::Global(Global::OtherDtype(dtype)) => Err(no_counterpart(name, dtype)),
        _ => Err(damaged(name, "it has no dtype")),
    }
}

/// The error for a tensor with more than [`MAX_DIMS`] dims.
pub(super) fn too_many_dims(name: &str, dims: usize) -> Error {
    let problem =
        format!("it has {dims} dims, but at most {MAX_DIMS} are supported; save tensor.flatten()");
    unsupported(name, &problem)
}

fn no_counterpart(name: &str, dtype: &str) -> Error {
    let problem = format!(
        "safetensors has no {dtype}; save tensor.to(torch.complex64), or its parts as \
         torch.view_as_real(tensor)"
    );
    unsupported(name, &problem)
}

fn view_of(
    pickle: &Pickle,
    name: &str,
    storage: Id,
    (offset, shape, strides): (Id, Id, Id),
    dtype: Option<TorchDtype>,
    more: &[Id],
) -> Result<TorchTensor> {
    let has_flags = more.iter().any(|it| match pickle.get(*it) {
        Value::None => false,
        Value::Dict(flags) => !flags.is_empty(),
        _ => true,
    });
    if has_flags {
        let problem =
            "it is a conjugate or negative view; save tensor.resolve_conj().resolve_neg()";
        return Err(unsupported(name, problem));
    }
    let (of_storage, key, storage_bytes) = storage_of(pickle, storage, name)?;
    let dtype = match (of_storage, dtype) {
        (Some(dtype), None) | (None, Some(dtype)) => dtype,
        _ => return Err(damaged(name, "it has no dtype")),
    };
    let offset = pickle.number(offset);
    let offset = offset.ok_or_else(|| damaged(name, "its offset is not a number"))?;
    let (shape, strides) = match (pickle.numbers(shape), pickle.numbers(strides)) {
        (Some(shape), Some(strides)) if shape.len() == strides.len() => (shape, strides),
        _ => return Err(damaged(name, "its shape and strides do not match")),
    };
    if shape.len() > MAX_DIMS {
        return Err(too_many_dims(name, shape.len()));
    }
    Ok(TorchTensor { dtype, storage: key, storage_bytes, offset, shape, strides })
}

/// Reads `("storage", class, key, location, elements)`. Returns the dtype of the class, the key and
/// the size in bytes.
fn storage_of(pickle: &Pickle, id: Id, name: &str) -> Result<(Option<TorchDtype>, String, u64)> {
    let no_storage = || damaged(name, "it has no storage");
    let Value::Persistent(id) = *pickle.get(id) else {
        return Err(no_storage());
    };
    let Some(&[kind, class, key, _, elements]) = pickle.tuple(id) else {
        return Err(no_storage());
    };
    let dtype = match *pickle.get(class) {
        Value::Global(Global::Storage(dtype)) => dtype,
        Value::Global(Global::OtherDtype(dtype)) => return Err(no_counterpart(name, dtype)),
        _ => return Err(no_storage()),
    };
    let element = dtype.map_or(1, TorchDtype::bytes);
    let bytes = pickle.number(elements);
    let bytes = bytes.and_then(|elements| elements.checked_mul(element));
    match (pickle.text(kind), pickle.text(key), bytes) {
        (Some("storage"), Some(key), Some(bytes)) => Ok((dtype, key.to_owned(), bytes)),
        _ => Err(no_storage()),
    }
}

impl TorchTensor {
    /// Whether its elements are consecutive and row-major.
    pub(super) fn is_contiguous(&self) -> bool {
        if self.shape.contains(&0) {
            return true;
        }
        let mut stride = 1u64;
        for (extent, own) in self.shape.iter().zip(&self.strides).rev() {
            if *extent > 1 && *own != stride {
                return false;
            }
            stride = stride.saturating_mul(*extent);
        }
        true
    }

    /// The number of elements, unless it overflows.
    pub(super) fn elements(&self) -> Option<u64> {
        let mut dims = self.shape.iter();
        dims.try_fold(1u64, |all, extent| all.checked_mul(*extent))
    }
}
