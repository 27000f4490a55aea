//! The norm of gradients.

use meshgrad_collectives::redistribute;
use meshgrad_mesh::{Placement, Sharding};
use meshgrad_runtime::{DType, Tensor, ops};

use crate::Result;

/// The L2 norm over all elements of all `tensors`, which may have different shardings on one mesh.
/// Each element counts once. If an axis shards a tensor, the sum of squares is reduced through the
/// enclosing [`with_redistribution`](meshgrad_collectives::with_redistribution).
///
/// # Shapes
/// Tensors of any shape, layout and float dtype; returns f32 \[\], replicated.
///
/// # Errors
/// As [`meshgrad_runtime::ops::sum_of_squares`] and [`meshgrad_collectives::redistribute`]; partial
/// gradients are errors: redistribute them first.
pub fn global_norm(tensors: &[&Tensor]) -> Result<Tensor> {
    let is_whole = |x: &&Tensor| x.sharding().is_none_or(Sharding::is_replicated);
    if tensors.iter().all(is_whole) {
        return ops::global_norm(tensors);
    }
    let sum = ops::sum_of_squares(tensors)?;
    let partials = sum.sharding().map(Sharding::partials);
    let axes = partials.unwrap_or_default().into_iter();
    let whole: Vec<_> = axes.map(|(axis, _)| (axis, Placement::Replicate)).collect();
    ops::cast(&ops::sqrt(&redistribute(&sum, &whole)?)?, DType::F32)
}
