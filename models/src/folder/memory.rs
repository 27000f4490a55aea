//! The bytes of the tensors that are written.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use half::bf16;
use meshgrad_ckpt::Dtype;
use meshgrad_ckpt::mapping::TensorSpec;
use meshgrad_ckpt::ranks::{Cause, ShardMemory};
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

/// The local tensors of a rank by name, open while they are needed.
pub(super) struct LocalMemory<'t> {
    tensors: &'t [NamedTensor],
    open: BTreeMap<&'t str, Bytes<'t>>,
}

impl<'t> LocalMemory<'t> {
    pub(super) fn new(tensors: &'t [NamedTensor]) -> LocalMemory<'t> {
        LocalMemory {
            tensors,
            open: BTreeMap::new(),
        }
    }
}

impl ShardMemory for LocalMemory<'_> {
    fn open(&mut self, name: &str) -> Result<(), Cause> {
        let found = self.tensors.iter().find(|(it, _)| it == name);
        if let Some((name, tensor)) = found {
            self.open.insert(name, Bytes::of(tensor)?);
        }
        Ok(())
    }

    fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.open.get(name).map(Bytes::as_slice)
    }

    fn close(&mut self, name: &str) {
        self.open.remove(name);
    }
}

/// The source tensors of an export, open while they are needed. Contiguous tensors in host memory
/// are read in place; others are copied.
pub(super) struct SourceBytes<'t> {
    tensors: BTreeMap<&'t str, &'t Tensor>,
    /// The remaining uses of each tensor.
    uses: BTreeMap<&'t str, usize>,
    open: BTreeMap<&'t str, Bytes<'t>>,
}

enum Bytes<'t> {
    F32(Elements<'t, f32>),
    BF16(Elements<'t, bf16>),
}

enum Elements<'t, T> {
    Borrowed(ReadGuard<'t, T>, Range<usize>),
    Copied(Vec<T>),
}

impl<'t> SourceBytes<'t> {
    /// Opens no tensor yet. `needed` has, for each use, the names of its tensors.
    pub(super) fn new(tensors: &'t [NamedTensor], needed: &[BTreeSet<&'t str>]) -> SourceBytes<'t> {
        let mut uses = BTreeMap::new();
        for name in needed.iter().flatten() {
            *uses.entry(*name).or_default() += 1;
        }
        let tensors = tensors.iter().map(|(name, it)| (name.as_str(), it));
        SourceBytes {
            tensors: tensors.collect(),
            uses,
            open: BTreeMap::new(),
        }
    }

    /// Opens the tensors that a use needs.
    pub(super) fn open(&mut self, names: &BTreeSet<&'t str>) -> Result<()> {
        for name in names {
            if let (Some(tensor), false) = (self.tensors.get(name), self.open.contains_key(name)) {
                self.open.insert(name, Bytes::of(tensor)?);
            }
        }
        Ok(())
    }

    /// Closes the tensors of a use that no later use needs.
    pub(super) fn close(&mut self, names: &BTreeSet<&'t str>) {
        for name in names {
            let left = self.uses.entry(name).or_default();
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.open.remove(name);
            }
        }
    }

    pub(super) fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.open.get(name).map(Bytes::as_slice)
    }
}

impl<'t> Bytes<'t> {
    fn of(tensor: &'t Tensor) -> Result<Bytes<'t>> {
        match stored_dtype(tensor.dtype())? {
            Dtype::BF16 => Ok(Bytes::BF16(Elements::of(tensor)?)),
            _ => Ok(Bytes::F32(Elements::of(tensor)?)),
        }
    }

    fn as_slice(&self) -> &[u8] {
        match self {
            Bytes::F32(elements) => bytemuck::cast_slice(elements.slice()),
            Bytes::BF16(elements) => bytemuck::cast_slice(elements.slice()),
        }
    }
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

    fn slice(&self) -> &[T] {
        match self {
            Elements::Borrowed(read, elements) => &read[elements.clone()],
            Elements::Copied(elements) => elements,
        }
    }
}
