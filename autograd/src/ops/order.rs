//! Cumulative sums and sorting along a dim.

use meshgrad_runtime::{Tensor, ops};

use super::gather;
use crate::{Operand, Result, Track};

/// The sum of the elements up to and including each element along dim `dim`. Saves nothing.
///
/// # Shapes
/// `x` any shape with at least one dim, float; returns the same.
///
/// # Errors
/// As [`meshgrad_runtime::ops::cumsum`].
pub fn cumsum<V: Operand>(x: &V, dim: isize) -> Result<V> {
    let y = ops::cumsum(x.value(), dim)?;
    y.tracked_linear([x], move |dy, [dx]| dx.add(|| ops::reverse_cumsum(dy, dim)))
}

/// The elements sorted along dim `dim`, and their indices; see
/// [`argsort`](meshgrad_runtime::ops::argsort) for the order. Saves the indices.
///
/// # Shapes
/// `x` any shape with at least one dim, float; returns `x`'s shape and dtype, and indices i64.
///
/// # Errors
/// As [`meshgrad_runtime::ops::argsort`].
pub fn sort<V: Operand>(x: &V, dim: isize, descending: bool) -> Result<(V, Tensor)> {
    let indices = ops::argsort(x.value(), dim, descending)?;
    Ok((gather(x, dim, &indices)?, indices))
}
