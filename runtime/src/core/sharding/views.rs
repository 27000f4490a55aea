//! The shardings of views.

use meshgrad_mesh::{RuleError, ShardingRule};

use super::error::ShardedTensorError;
use super::gate::Gate;
use super::tag::Tag;
use crate::Result;

static PERMUTE: &str = "permute";
static SLICE: &str = "slice";
static RESHAPE: &str = "reshape";
static BROADCAST: &str = "broadcast_to";

/// The tag of a tensor with its dims in another order.
pub(crate) fn permuted(x: Option<&Tag>, order: &[usize]) -> Result<Option<Tag>> {
    let rule = || ShardingRule::permute(PERMUTE, order);
    tag(&PERMUTE, x, order, &[], rule)
}

/// The tag of a tensor with dims `a` and `b` swapped.
pub(crate) fn transposed(x: Option<&Tag>, a: usize, b: usize) -> Result<Option<Tag>> {
    let Some(own) = x else {
        return Ok(None);
    };
    let mut order: Vec<usize> = (0..own.local().len()).collect();
    order.swap(a, b);
    permuted(x, &order)
}

/// The tag of a range of `extent` indices of dim `dim`, which must be whole.
pub(crate) fn sliced(x: Option<&Tag>, dim: usize, extent: usize) -> Result<Option<Tag>> {
    let Some(own) = x else {
        return Ok(None);
    };
    let shape = own.local().with(dim, extent);
    let rule = || ShardingRule::slice(SLICE, shape.len(), dim);
    tag(&SLICE, x, &[dim], &shape, rule)
}

/// The tag of a tensor with a new dim of extent 1 before dim `dim`.
pub(crate) fn unsqueezed(x: Option<&Tag>, dim: usize) -> Result<Option<Tag>> {
    let Some(own) = x else {
        return Ok(None);
    };
    let mut shape = own.sharding().shape().to_vec();
    shape.insert(dim, 1);
    reshaped(x, &shape)
}

/// The tag of a tensor reshaped to the global shape `to`.
pub(crate) fn reshaped(x: Option<&Tag>, to: &[usize]) -> Result<Option<Tag>> {
    let Some(own) = x else {
        return Ok(None);
    };
    let from = own.sharding().shape();
    if from.iter().product::<usize>() != to.iter().product::<usize>() {
        return Err(ShardedTensorError::GlobalShape {
            sharding: own.sharding().to_string(),
            global: from.to_vec(),
            given: to.to_vec(),
        }
        .into());
    }
    let rule = || ShardingRule::reshape(RESHAPE, from, to);
    tag(&RESHAPE, x, to, to, rule)
}

/// The tag of a tensor broadcast to the global shape `to`.
pub(crate) fn broadcast(x: Option<&Tag>, to: &[usize]) -> Result<Option<Tag>> {
    let Some(own) = x else {
        return Ok(None);
    };
    let rule = || ShardingRule::broadcast(BROADCAST, own.sharding().shape(), to);
    tag(&BROADCAST, x, to, to, rule)
}

/// The tag of a view. `shape` gives the extents that `x` does not determine.
fn tag(
    op: &'static &'static str,
    x: Option<&Tag>,
    arguments: &[usize],
    shape: &[usize],
    rule: impl FnOnce() -> Result<ShardingRule, RuleError>,
) -> Result<Option<Tag>> {
    let gate = Gate {
        op,
        id: std::ptr::from_ref(op) as usize,
        operands: &[x],
        name: &|_| "x".to_owned(),
        last_is_open: false,
        arguments,
    };
    match gate.results(rule)? {
        Some(results) => results.of_shape(0, shape).map(Some),
        None => Ok(None),
    }
}
