//! Tensors of the runtime as bytes, held to be written.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use half::bf16;
use meshgrad_autograd::Param;
use meshgrad_ckpt::Dtype;
use meshgrad_ckpt::mapping::TensorSpec;
use meshgrad_load::stored_dtype;
use meshgrad_runtime::{Element, ReadGuard, Tensor};

use crate::Result;

pub(super) fn specs(tensors: &[(Param, Tensor)]) -> Result<Vec<TensorSpec>> {
    let spec = |(param, tensor): &(Param, Tensor)| {
        let shape: Vec<u64> = param.shape().iter().map(|extent| *extent as u64).collect();
        Ok(TensorSpec::new(
            param.name(),
            stored_dtype(tensor.dtype())?,
            &shape,
        ))
    };
    tensors.iter().map(spec).collect()
}

/// The tensors that others are made of, while they are needed: those of the host where they lie,
/// and those of a GPU copied, once.
pub(super) struct Held<'t> {
    tensors: BTreeMap<&'t str, &'t Tensor>,
    /// How often each is still needed.
    uses: BTreeMap<&'t str, usize>,
    open: BTreeMap<&'t str, One<'t>>,
}

enum One<'t> {
    F32(Elements<'t, f32>),
    BF16(Elements<'t, bf16>),
}

enum Elements<'t, T> {
    Here(ReadGuard<'t, T>, Range<usize>),
    Copied(Vec<T>),
}

impl<'t> Held<'t> {
    /// Nothing yet, of tensors that will be needed so: a set of names for each use.
    pub(super) fn new(tensors: &'t [(Param, Tensor)], needed: &[BTreeSet<&'t str>]) -> Held<'t> {
        let mut uses = BTreeMap::new();
        for name in needed.iter().flatten() {
            *uses.entry(*name).or_default() += 1;
        }
        let tensors = tensors.iter().map(|(param, it)| (param.name(), it));
        Held {
            tensors: tensors.collect(),
            uses,
            open: BTreeMap::new(),
        }
    }

    /// Holds what a use needs.
    pub(super) fn hold(&mut self, names: &BTreeSet<&'t str>) -> Result<()> {
        for name in names {
            if let (Some(tensor), false) = (self.tensors.get(name), self.open.contains_key(name)) {
                self.open.insert(name, One::of(tensor)?);
            }
        }
        Ok(())
    }

    /// Lets go what a use needed and no other will.
    pub(super) fn release(&mut self, names: &BTreeSet<&'t str>) {
        for name in names {
            let left = self.uses.entry(name).or_default();
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.open.remove(name);
            }
        }
    }

    pub(super) fn bytes(&self, name: &str) -> Option<&[u8]> {
        match self.open.get(name)? {
            One::F32(elements) => Some(bytemuck::cast_slice(elements.slice())),
            One::BF16(elements) => Some(bytemuck::cast_slice(elements.slice())),
        }
    }
}

impl<'t> One<'t> {
    fn of(tensor: &'t Tensor) -> Result<One<'t>> {
        match stored_dtype(tensor.dtype())? {
            Dtype::BF16 => Ok(One::BF16(Elements::of(tensor)?)),
            _ => Ok(One::F32(Elements::of(tensor)?)),
        }
    }
}

impl<'t, T: Element> Elements<'t, T> {
    fn of(tensor: &'t Tensor) -> Result<Elements<'t, T>> {
        if tensor.device().is_gpu() || !tensor.is_contiguous() {
            return Ok(Elements::Copied(tensor.to_vec()?));
        }
        let start = tensor.layout().offset();
        Ok(Elements::Here(
            tensor.read()?,
            start..start + tensor.elements(),
        ))
    }

    fn slice(&self) -> &[T] {
        match self {
            Elements::Here(read, elements) => &read[elements.clone()],
            Elements::Copied(elements) => elements,
        }
    }
}
