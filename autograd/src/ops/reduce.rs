//! Reductions over any dims.

use meshgrad_runtime::{ShardedShape, Tensor, ops};

use crate::{Operand, Result, Save, Track};

/// The sum over `dims`, which are removed. Saves nothing.
///
/// # Shapes
/// `x` any shape, float; returns `x`'s dtype.
///
/// # Errors
/// As [`meshgrad_runtime::ops::sum`].
pub fn sum<V: Operand>(x: &V, dims: &[isize]) -> Result<V> {
    let y = ops::sum(x.value(), dims)?;
    let expand = Expand::new(x.value(), dims)?;
    y.tracked_linear([x], move |dy, [dx]| dx.add(|| ops::contiguous(&expand.expand(dy)?)))
}

/// The mean over `dims`, which are removed. Saves nothing.
///
/// # Shapes
/// As [`sum`].
///
/// # Errors
/// As [`sum`].
pub fn mean<V: Operand>(x: &V, dims: &[isize]) -> Result<V> {
    let y = ops::mean(x.value(), dims)?;
    let expand = Expand::new(x.value(), dims)?;
    let count = expand.full.elements() / y.global_shape().elements().max(1);
    y.tracked_linear([x], move |dy, [dx]| {
        dx.add(|| ops::affine(&expand.expand(dy)?, 1.0 / count as f64, 0.0))
    })
}

/// The maximum over `dims`, which are removed. Equal elements share the gradient.
///
/// # Shapes
/// As [`sum`].
///
/// # Errors
/// As [`sum`].
pub fn max<V: Operand>(x: &V, dims: &[isize]) -> Result<V> {
    let y = ops::max(x.value(), dims)?;
    let expand = Expand::new(x.value(), dims)?;
    let (saved_x, saved_y) = (x.save(), y.save());
    let dims = dims.to_vec();
    y.tracked([x], move |dy, [dx]| {
        dx.add(|| {
            let x = saved_x.get()?;
            let hits = ops::cast(&ops::eq(&x, &expand.expand(&saved_y.get()?)?)?, x.dtype())?;
            let share = ops::div(dy, &ops::sum(&hits, &dims)?)?;
            ops::mul(&hits, &expand.expand(&share)?)
        })
    })
}

/// The minimum over `dims`, which are removed. Equal elements share the gradient.
///
/// # Shapes
/// As [`sum`].
///
/// # Errors
/// As [`sum`].
pub fn min<V: Operand>(x: &V, dims: &[isize]) -> Result<V> {
    super::neg(&max(&super::neg(x)?, dims)?)
}

/// ln sum e^x over `dims`, which are removed; computed in f32 (f64 for f64) and rounded once. Minus
/// infinity if all elements are.
///
/// # Shapes
/// As [`sum`].
///
/// # Errors
/// As [`sum`].
pub fn logsumexp<V: Operand>(x: &V, dims: &[isize]) -> Result<V> {
    let expand = Expand::new(x.value(), dims)?;
    let dtype = x.dtype().accumulator();
    let y = logsumexp_of(&ops::cast(x.value(), dtype)?, &expand, dims)?;
    let (saved_x, saved_y) = (x.save(), y.save());
    ops::cast(&y, x.dtype())?.tracked([x], move |dy, [dx]| {
        dx.add(|| {
            let x = saved_x.get()?;
            let below = ops::sub(&ops::cast(&x, dtype)?, &expand.expand(&saved_y.get()?)?)?;
            let dy = expand.expand(&ops::cast(dy, dtype)?)?;
            ops::cast(&ops::mul(&ops::exp(&below)?, &dy)?, x.dtype())
        })
    })
}

fn logsumexp_of(x: &Tensor, expand: &Expand, dims: &[isize]) -> Result<Tensor> {
    let max = ops::max(x, dims)?;
    // Infinities stay as they are: the difference from an infinite maximum would be NaN.
    let is_finite = ops::lt(&ops::abs(&max)?, &infinity_beside(&max)?)?;
    let shift = ops::where_(&is_finite, &max, &max.zeros_beside(&[])?)?;
    let terms = ops::exp(&ops::sub(x, &expand.expand(&shift)?)?)?;
    ops::add(&ops::ln(&ops::sum(&terms, dims)?)?, &shift)
}

fn infinity_beside(x: &Tensor) -> Result<Tensor> {
    ops::reciprocal(&x.zeros_beside(&[])?)
}

/// Broadcasts the result of a reduction to the original shape.
struct Expand {
    /// The original shape.
    full: ShardedShape,
    /// The reduced dims, in ascending order.
    dims: Vec<usize>,
}

impl Expand {
    fn new(x: &Tensor, dims: &[isize]) -> Result<Expand> {
        let dims: Result<Vec<usize>> = dims.iter().map(|dim| x.dim("reduce", *dim)).collect();
        let mut dims = dims?;
        dims.sort_unstable();
        Ok(Expand { full: x.sharded_shape(), dims })
    }

    fn expand(&self, reduced: &Tensor) -> Result<Tensor> {
        let mut kept = reduced.clone();
        for dim in &self.dims {
            kept = kept.unsqueeze(*dim)?;
        }
        self.full.broadcast(&kept, &self.dims)
    }
}
