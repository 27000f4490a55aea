//! Redistribution of sharded tensors.

use meshgrad_collectives::{self as collectives, current_redistribution};
use meshgrad_mesh::{Placement, Sharding};

use super::add;
use crate::{Operand, Result, Track, beside};

/// `x` with these placements on the named axes of its mesh, and its own on all others; see
/// [`meshgrad_collectives::redistribute`]. On a single rank, and without placements, it is the
/// identity. Saves nothing.
///
/// The gradient is redistributed back: on a named axis that shards `x` to the same shards, and on
/// the other named axes to replicate. So `[("tp", Placement::Replicate)]` of a tensor that is
/// already replicated computes nothing forward, but reduces a partial gradient. On axes that are
/// not named the gradient keeps its placement.
///
/// # Errors
/// As [`meshgrad_collectives::redistribute`]; for a result that is a partial maximum.
pub fn redistribute<V: Operand, S: AsRef<str>>(
    x: &V,
    placements: impl AsRef<[(S, Placement)]>,
) -> Result<V> {
    let placements = placements.as_ref();
    if placements.is_empty() {
        return Ok(x.clone());
    }
    let y = beside::wait(collectives::start_redistribute(x.value(), placements)?)?;
    let Some(from) = x.value().sharding() else {
        return Ok(x.clone());
    };
    let redistribution = current_redistribution()?;
    let from = from.without_partials();
    let named: Vec<String> = placements.iter().map(|(axis, _)| axis.as_ref().into()).collect();
    y.tracked_linear([x], move |dy, [dx]| {
        dx.add_pending(|| redistribution.start(dy, &back(dy.sharding(), &from, &named)?))
    })
}

/// y + bias. Where `y` is a partial sum and `bias` is replicated, as after a row-parallel product,
/// the bias counts once: it becomes a partial sum too, which sends nothing but needs an enclosing
/// [`with_redistribution`](meshgrad_collectives::with_redistribution).
///
/// # Shapes
/// `y` [.., O], `bias` \[O\]; returns `y`'s shape.
///
/// # Errors
/// As [`meshgrad_runtime::ops::add`] and [`redistribute`].
pub fn add_bias<V: Operand>(y: &V, bias: &V) -> Result<V> {
    let is_replicated = |axis: &str| {
        let placement = bias.value().sharding().map(|it| it.placement(axis));
        placement == Some(Ok(Placement::Replicate))
    };
    let partials = y.value().sharding().map(Sharding::partials);
    let partials = partials.unwrap_or_default().into_iter();
    let partials = partials.filter(|(axis, _)| is_replicated(axis));
    let partial: Vec<_> =
        partials.map(|(axis, reduction)| (axis, Placement::Partial(reduction))).collect();
    match partial.is_empty() {
        true => add(y, bias),
        false => add(y, &redistribute(bias, &partial)?),
    }
}

/// The sharding to which the gradient of a result, with sharding `dy`, is redistributed. `from` is
/// the operand's, with replicate for partial.
pub(super) fn back(dy: Option<&Sharding>, from: &Sharding, named: &[String]) -> Result<Sharding> {
    let partials = dy.map(Sharding::partials).unwrap_or_default();
    let stays = |axis: &str| !named.iter().any(|name| name == axis);
    let placement = |(axis, own)| {
        let partial = partials.iter().find(|(name, _)| *name == axis && stays(name));
        let placement = partial.map_or(own, |(_, reduction)| Placement::Partial(*reduction));
        (axis, placement)
    };
    let placements: Vec<_> = from.placements().into_iter().map(placement).collect();
    Sharding::new(from.mesh(), placements, from.shape())
}
