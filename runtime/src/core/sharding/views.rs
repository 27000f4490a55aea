//! The shardings of views.

use meshgrad_mesh::{RuleError, ShardingRule};

use super::error::ShardedTensorError;
use super::gate::Gate;
use super::tag::Tag;
use crate::{Result, Signature, Tensor};

static PERMUTE: Signature = Signature::new("permute", "x: T[*] -> y: T[*]", 0);
static SLICE: Signature = Signature::new("slice", "x: T[*] -> y: T[*]", 0);
static RESHAPE: Signature = Signature::new("reshape", "x: T[*] -> y: T[*]", 0);
static BROADCAST: Signature = Signature::new("broadcast_to", "x: T[*] -> y: T[*]", 0);

/// The tag of `x` with its dims in another order.
pub(crate) fn permuted(x: &Tensor, order: &[usize]) -> Result<Option<Tag>> {
    let rule = || ShardingRule::permute(PERMUTE.name(), order);
    tag(&PERMUTE, x, order, &[], rule)
}

/// The tag of a range of `extent` indices of dim `dim`, which must be whole.
pub(crate) fn sliced(x: &Tensor, dim: usize, extent: usize) -> Result<Option<Tag>> {
    let shape = x.shape().with(dim, extent);
    let rule = || ShardingRule::slice(SLICE.name(), shape.len(), dim);
    tag(&SLICE, x, &[dim], &shape, rule)
}

/// The tag of `x` reshaped to the global shape `to`.
pub(crate) fn reshaped(x: &Tensor, to: &[usize]) -> Result<Option<Tag>> {
    let Some(own) = x.tag() else {
        return Ok(None);
    };
    let from = own.sharding().shape();
    if from.iter().product::<usize>() != to.iter().product() {
        return Err(ShardedTensorError::GlobalShape {
            sharding: own.sharding().to_string(),
            global: from.to_vec(),
            given: to.to_vec(),
        }
        .into());
    }
    let rule = || ShardingRule::reshape(RESHAPE.name(), from, to);
    tag(&RESHAPE, x, to, to, rule)
}

/// The tag of `x` broadcast to the global shape `to`.
pub(crate) fn broadcast(x: &Tensor, to: &[usize]) -> Result<Option<Tag>> {
    let from = x.global_shape();
    let rule = || ShardingRule::broadcast(BROADCAST.name(), &from, to);
    tag(&BROADCAST, x, to, to, rule)
}

/// The tag of a view. `shape` gives the extents that `x` does not determine.
fn tag(
    signature: &'static Signature,
    x: &Tensor,
    arguments: &[usize],
    shape: &[usize],
    rule: impl FnOnce() -> Result<ShardingRule, RuleError>,
) -> Result<Option<Tag>> {
    let gate = Gate {
        signature,
        operands: &[x],
        last_is_open: false,
        arguments,
    };
    match gate.results(rule)? {
        Some(results) => results.of_shape(0, shape).map(Some),
        None => Ok(None),
    }
}
