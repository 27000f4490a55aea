//! Tensors of the runtime as bytes: lent to be filled, held to be written.

use std::collections::BTreeMap;

use half::bf16;
use meshgrad_autograd::Param;
use meshgrad_ckpt::Dtype;
use meshgrad_ckpt::graph::{Expr, Graph};
use meshgrad_runtime::{DType, Read, Tensor, Write};

use crate::{Error, Result};

/// The name of a runtime's dtype in a file.
pub(super) fn dtype_of(dtype: DType) -> Result<Dtype> {
    match dtype {
        DType::F32 => Ok(Dtype::F32),
        DType::BF16 => Ok(Dtype::BF16),
        dtype => Err(Error::NotStored { dtype }),
    }
}

/// A contiguous tensor on the CPU, to be filled.
pub(super) enum Lent<'t> {
    F32(Write<'t, f32>, std::ops::Range<usize>),
    BF16(Write<'t, bf16>, std::ops::Range<usize>),
}

impl<'t> Lent<'t> {
    pub(super) fn of(tensor: &'t Tensor) -> Result<Lent<'t>> {
        let elements = elements(tensor);
        match dtype_of(tensor.dtype())? {
            Dtype::BF16 => Ok(Lent::BF16(tensor.write("load")?, elements)),
            _ => Ok(Lent::F32(tensor.write("load")?, elements)),
        }
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        match self {
            Lent::F32(write, elements) => bytemuck::cast_slice_mut(&mut write[elements.clone()]),
            Lent::BF16(write, elements) => bytemuck::cast_slice_mut(&mut write[elements.clone()]),
        }
    }
}

/// The tensors that an expression is made of, to be read.
pub(super) struct Held<'t>(BTreeMap<&'t str, One<'t>>);

enum One<'t> {
    F32(Read<'t, f32>, std::ops::Range<usize>),
    BF16(Read<'t, bf16>, std::ops::Range<usize>),
}

impl<'t> Held<'t> {
    pub(super) fn of(
        graph: &Graph,
        expr: Expr,
        tensors: &'t [(Param, Tensor)],
    ) -> Result<Held<'t>> {
        let mut held = BTreeMap::new();
        let names = graph.sources_of(expr);
        for (param, tensor) in tensors.iter().filter(|(it, _)| names.contains(it.name())) {
            let elements = elements(tensor);
            let one = match dtype_of(tensor.dtype())? {
                Dtype::BF16 => One::BF16(tensor.read()?, elements),
                _ => One::F32(tensor.read()?, elements),
            };
            held.insert(param.name(), one);
        }
        Ok(Held(held))
    }

    pub(super) fn bytes(&self, name: &str) -> Option<&[u8]> {
        match self.0.get(name)? {
            One::F32(read, elements) => Some(bytemuck::cast_slice(&read[elements.clone()])),
            One::BF16(read, elements) => Some(bytemuck::cast_slice(&read[elements.clone()])),
        }
    }
}

/// Where the elements of a contiguous tensor lie in its storage.
fn elements(tensor: &Tensor) -> std::ops::Range<usize> {
    let start = tensor.layout().offset();
    start..start + tensor.elements()
}
