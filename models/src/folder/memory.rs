//! The tensors of a folder in memory, and the bytes of those that are written.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use half::bf16;
use meshgrad_autograd::{KeptRows, Module, Param};
use meshgrad_ckpt::Dtype;
use meshgrad_ckpt::exec::TensorBytes;
use meshgrad_ckpt::mapping::TensorSpec;
use meshgrad_error::{Result, bail, ensure};
use meshgrad_load::stored_dtype;
use meshgrad_runtime::{Element, ReadGuard, Tensor};

/// A tensor with a name: the value of a parameter or buffer, a gradient, optimizer state.
#[derive(Clone, Debug)]
pub struct NamedTensor {
    /// The name.
    pub name: String,
    /// The tensor, or the rows of it that this rank keeps.
    pub tensor: Tensor,
    pub(super) kept: KeptRows,
}

impl NamedTensor {
    /// A tensor under a name. If it has a sharding, it is this rank's part.
    pub fn new(name: impl Into<String>, tensor: Tensor) -> NamedTensor {
        let kept = KeptRows::all(tensor.sharded_shape());
        NamedTensor { name: name.into(), tensor, kept }
    }

    /// The value of a parameter; of one with a home, the rows of this rank.
    ///
    /// # Errors
    /// When a parameter has no value.
    pub fn of(param: &Param) -> Result<NamedTensor> {
        let (name, tensor) = (param.name().to_owned(), param.kept_value()?);
        Ok(NamedTensor { name, tensor, kept: param.kept() })
    }
}

/// Tensors that belong to parameters of `module` with the same names, such as gradients or optimizer
/// state. Of a parameter that is divided over ranks, they have what this rank keeps, or one element
/// that all ranks have.
///
/// # Errors
/// When a tensor beside a parameter that is divided over ranks has another shape.
pub fn beside(module: &impl Module, tensors: Vec<(String, Tensor)>) -> Result<Vec<NamedTensor>> {
    let params = module.params();
    let params: BTreeMap<&str, &Param> = params.iter().map(|it| (it.name(), it)).collect();
    let named = |(name, tensor): (String, Tensor)| {
        let Some(kept) = params.get(&*name).map(|it| it.kept()) else {
            return Ok(NamedTensor::new(name, tensor));
        };
        if kept.fit(&tensor) {
            return Ok(NamedTensor { name, tensor, kept });
        }
        let sharding = kept.shape().sharding();
        let is_whole = kept.are_all() && sharding.is_none_or(|it| it.is_replicated());
        ensure!(
            is_whole || tensor.elements() == 1,
            Invalid,
            "a tensor {} beside `{name}`, of which this rank keeps {kept}: it must have these rows, or \
             one element that is the same on all ranks",
            tensor.shape()
        );
        Ok(NamedTensor::new(name, tensor))
    };
    tensors.into_iter().map(named).collect()
}

/// Names, dtypes and global shapes.
///
/// # Errors
/// When two tensors have one name; see [`spec`].
pub(super) fn specs(tensors: &[NamedTensor]) -> Result<Vec<TensorSpec>> {
    check_names(tensors)?;
    tensors.iter().map(spec).collect()
}

/// Checks that no two tensors have one name: a folder would store one of them.
///
/// # Errors
/// When two do.
pub(super) fn check_names(tensors: &[NamedTensor]) -> Result<()> {
    let mut names = BTreeSet::new();
    if let Some(named) = tensors.iter().find(|named| !names.insert(named.name.as_str())) {
        let name = named.name.escape_debug();
        bail!(Invalid, "two tensors are named `{name}`; give each its own name");
    }
    Ok(())
}

pub(super) fn spec(named: &NamedTensor) -> Result<TensorSpec> {
    let shape = named.kept.shape();
    let shape: Vec<u64> = shape.iter().map(|extent| *extent as u64).collect();
    let dtype = stored_dtype(named.tensor.dtype())?;
    Ok(TensorSpec::new(&named.name, dtype, &shape))
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
        Ok(Elements::Borrowed(tensor.read()?, start..start + tensor.elements()))
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
