//! Redistribution of sharded tensors.

use meshgrad_mesh::{Placement, Sharding};
use meshgrad_runtime::{self as runtime, Tensor, current_redistribution};

use crate::{Operand, Result, Track};

/// `x` with these placements on the named axes of its mesh, and its own on all others; see
/// [`meshgrad_runtime::redistribute`]. On a single rank it is the identity. Saves nothing.
///
/// The gradient is redistributed back: on a named axis that shards `x` to the same shards, and on
/// the other named axes to replicate. So `[("tp", Placement::Replicate)]` of a tensor that is
/// already replicated computes nothing forward, but reduces a partial gradient. On axes that are
/// not named the gradient keeps its placement.
///
/// # Errors
/// As [`meshgrad_runtime::redistribute`]; [`PartialMax`](meshgrad_runtime::TapeError::PartialMax)
/// for a result that is a partial maximum.
pub fn redistribute<V: Operand, S: AsRef<str>>(
    x: &V,
    placements: impl AsRef<[(S, Placement)]>,
) -> Result<V> {
    let placements = placements.as_ref();
    let y = runtime::redistribute(x.value(), placements)?;
    let Some(from) = x.value().sharding() else {
        return Ok(x.clone());
    };
    let redistribution = current_redistribution()?;
    let from = from.without_partials();
    let named: Vec<String> = placements
        .iter()
        .map(|(axis, _)| axis.as_ref().into())
        .collect();
    y.tracked_linear([x], move |dy, [dx]| {
        dx.add(|| redistribution.redistribute(dy, &back(dy, &from, &named)?))
    })
}

/// The sharding to which the gradient `dy` of a result is redistributed. `from` is the operand's,
/// with replicate for partial.
fn back(dy: &Tensor, from: &Sharding, named: &[String]) -> Result<Sharding> {
    let Some(given) = dy.sharding() else {
        return Ok(from.clone());
    };
    let placement = |(axis, own): (&str, Placement)| {
        let partial = given.partials().into_iter().find(|(name, _)| *name == axis);
        match partial.filter(|_| !named.iter().any(|name| name == axis)) {
            Some((_, reduction)) => (axis.to_owned(), Placement::Partial(reduction)),
            None => (axis.to_owned(), own),
        }
    };
    let placements: Vec<_> = from.placements().into_iter().map(placement).collect();
    Ok(Sharding::new(from.mesh(), placements, from.shape())?)
}
