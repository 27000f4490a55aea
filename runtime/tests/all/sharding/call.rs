//! Operands on the CPU, and ranks' parts of them.

use std::sync::LazyLock;

use meshgrad_mesh::Sharding;
use meshgrad_runtime::op_cases::{CaseOperands, Source, Written};
use meshgrad_runtime::{Device, Result, Tensor, ops};

use crate::sharding::shards::Part;

/// The device of all tensors, because the operands of an op must be on one device.
pub(crate) static CPU: LazyLock<Device> = LazyLock::new(Device::cpu);

/// Operands in f64, and i64 indices.
pub(crate) struct Host;

impl Source for Host {
    fn device(&self) -> &Device {
        &CPU
    }

    fn numbers(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        Ok(numbers(shape, name.bytes().map(usize::from).sum()))
    }

    /// Numbers from 1 to 5.
    fn positive(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        ops::affine(&self.numbers(name, shape)?, 0.5, 3.0)
    }

    fn indices(&self, _: &str, shape: &[usize], below: usize) -> Result<Tensor> {
        let count: usize = shape.iter().product();
        let values: Vec<i64> = (0..count).map(|at| ((at * 5 + 2) % below) as i64).collect();
        Tensor::from_slice(&CPU, shape, &values)
    }
}

/// Small integers, so that sums are exact in any order.
pub(crate) fn numbers(shape: &[usize], seed: usize) -> Tensor {
    let count: usize = shape.iter().product();
    let value = |at: usize| ((at * 31 + seed * 17 + at * at * 3) % 9) as f64 - 4.0;
    let values: Vec<f64> = (0..count).map(value).collect();
    Tensor::from_slice(&CPU, shape, &values).unwrap()
}

/// The operands of one rank, without shardings.
pub(crate) fn local(parts: impl Iterator<Item = Part>) -> CaseOperands {
    let (tensors, starts) = parts.map(|part| (part.tensor, part.start)).unzip();
    CaseOperands { tensors, starts, written: Written::Copies }
}

/// The operands with their shardings, as the parts of `rank`.
pub(crate) fn tagged(
    mut local: CaseOperands,
    shardings: &[Sharding],
    rank: usize,
) -> Result<CaseOperands> {
    for (operand, sharding) in local.tensors.iter_mut().zip(shardings) {
        *operand = operand.with_sharding(sharding, rank)?;
    }
    Ok(local)
}
