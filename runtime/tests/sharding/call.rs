//! Calls ops on a rank's local tensors.

use std::cell::Cell;
use std::sync::LazyLock;

use meshgrad_mesh::{Sharding, ShardingRule};
use meshgrad_runtime::{Accumulator, DType, Device, Kind, Result, Tensor, ops};

use crate::shards::Part;

/// The device of all tensors, because the operands of an op must be on one device.
pub(crate) static CPU: LazyLock<Device> = LazyLock::new(Device::cpu);

/// The local operands of one rank.
pub(crate) struct Local {
    pub(crate) operands: Vec<Tensor>,
    /// The start of each operand's region in the global tensor.
    pub(crate) starts: Vec<Vec<usize>>,
}

impl Local {
    pub(crate) fn new(parts: Vec<Part>) -> Local {
        let (operands, starts) = parts
            .into_iter()
            .map(|part| (part.tensor, part.start))
            .unzip();
        Local { operands, starts }
    }

    /// The operands with their shardings, as the parts of `rank`.
    pub(crate) fn tagged(mut self, shardings: &[Sharding], rank: usize) -> Result<Local> {
        for (operand, sharding) in self.operands.iter_mut().zip(shardings) {
            *operand = operand.with_sharding(sharding, rank)?;
        }
        Ok(self)
    }

    pub(crate) fn whole(operands: &[Tensor]) -> Local {
        Local::new(operands.iter().map(Part::whole).collect())
    }
}

type Run = Box<dyn Fn(&Local) -> Result<Vec<Tensor>>>;

/// An op, its sharding rule and its operands.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) rule: ShardingRule,
    pub(crate) operands: Vec<Tensor>,
    pub(crate) run: Run,
    /// Whether the op needs to know the shardings: it takes its rank's range from them.
    pub(crate) needs_shardings: bool,
}

pub(crate) fn case(
    name: &'static str,
    operands: Vec<Tensor>,
    run: impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + 'static,
) -> Case {
    local(name, operands, move |local| run(&local.operands))
}

pub(crate) fn local(
    name: &'static str,
    operands: Vec<Tensor>,
    run: impl Fn(&Local) -> Result<Vec<Tensor>> + 'static,
) -> Case {
    let signature = ops::signatures().find(|signature| signature.name() == name);
    let rule = signature
        .unwrap_or_else(|| panic!("{name}"))
        .sharding_rule()
        .clone();
    given(name, rule, operands, run)
}

/// An op whose sharding rule depends on dim arguments.
pub(crate) fn given(
    name: &'static str,
    rule: ShardingRule,
    operands: Vec<Tensor>,
    run: impl Fn(&Local) -> Result<Vec<Tensor>> + 'static,
) -> Case {
    Case {
        name,
        rule,
        operands,
        run: Box::new(run),
        needs_shardings: false,
    }
}

/// As [`given`], for an op that takes its rank's range from the shardings of its operands.
pub(crate) fn given_ranged(
    name: &'static str,
    rule: ShardingRule,
    operands: Vec<Tensor>,
    run: impl Fn(&Local) -> Result<Vec<Tensor>> + 'static,
) -> Case {
    Case {
        needs_shardings: true,
        ..given(name, rule, operands, run)
    }
}

/// An op that takes its rank's range from the shardings of its operands.
pub(crate) fn ranged(
    name: &'static str,
    operands: Vec<Tensor>,
    run: impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + 'static,
) -> Case {
    Case {
        needs_shardings: true,
        ..case(name, operands, run)
    }
}

/// Small integers, so that sums are exact in any order.
pub(crate) fn numbers(shape: &[usize], seed: usize) -> Tensor {
    let count: usize = shape.iter().product();
    let value = |at: usize| ((at * 31 + seed * 17 + at * at * 3) % 9) as f64 - 4.0;
    let values: Vec<f64> = (0..count).map(value).collect();
    Tensor::from_slice(&CPU, shape, &values).unwrap()
}

/// Numbers from 1 to 5.
pub(crate) fn positive(shape: &[usize], seed: usize) -> Tensor {
    ops::affine(&numbers(shape, seed), 0.5, 3.0).unwrap()
}

pub(crate) fn indices(shape: &[usize], below: usize) -> Tensor {
    let count: usize = shape.iter().product();
    let values: Vec<i64> = (0..count).map(|at| ((at * 5 + 2) % below) as i64).collect();
    Tensor::from_slice(&CPU, shape, &values).unwrap()
}

pub(crate) fn to_f32(x: &Tensor) -> Tensor {
    ops::cast(x, DType::F32).unwrap()
}

/// A copy of `into` after `add` has accumulated into it.
pub(crate) fn added(
    into: &Tensor,
    add: impl FnOnce(&mut Accumulator) -> Result<()>,
) -> Result<Vec<Tensor>> {
    let mut sum = Accumulator::over(changing(into)?)?;
    sum.filled();
    add(&mut sum)?;
    Ok(vec![sum.total()?.clone()])
}

/// A copy of `x` that ops can change, with its sharding.
pub(crate) fn changing(x: &Tensor) -> Result<Tensor> {
    let buffer = Tensor::zeros(x.device(), x.shape(), x.dtype(), Kind::Gradient)?;
    ops::copy_into(&x.local(), &buffer)?;
    match (x.sharding(), RANK.get()) {
        (Some(sharding), Some(rank)) => buffer.with_sharding(sharding, rank),
        _ => Ok(buffer),
    }
}

thread_local! {
    /// The rank whose part of an op runs.
    pub(crate) static RANK: Cell<Option<usize>> = const { Cell::new(None) };
}
