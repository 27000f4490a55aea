//! Reductions over any dims.

use meshgrad_runtime::{Shape, Tensor, ops};

use crate::{Result, Save, Track, Var};

/// The sum over `dims`, which the result does not have; keeps nothing.
///
/// # Shapes
/// `x` any shape, float; returns `x`'s dtype.
///
/// # Errors
/// As [`meshgrad_runtime::ops::sum`].
pub fn sum(x: &Var, dims: &[isize]) -> Result<Var> {
    let y = ops::sum(x.value(), dims)?;
    let spread = Spread::new(x.value(), dims)?;
    y.tracked_linear([x], move |dy, [dx]| {
        dx.add(|| Ok(ops::contiguous(&spread.over(dy)?)?))
    })
}

/// The mean over `dims`, which the result does not have; keeps nothing.
///
/// # Shapes
/// As [`sum`].
///
/// # Errors
/// As [`sum`].
pub fn mean(x: &Var, dims: &[isize]) -> Result<Var> {
    let y = ops::mean(x.value(), dims)?;
    let spread = Spread::new(x.value(), dims)?;
    let count = x.shape().elements() / y.elements().max(1);
    y.tracked_linear([x], move |dy, [dx]| {
        dx.add(|| Ok(ops::affine(&spread.over(dy)?, 1.0 / count as f64, 0.0)?))
    })
}

/// The largest element over `dims`, which the result does not have; equal ones share the gradient.
///
/// # Shapes
/// As [`sum`].
///
/// # Errors
/// As [`sum`].
pub fn max(x: &Var, dims: &[isize]) -> Result<Var> {
    let y = ops::max(x.value(), dims)?;
    let spread = Spread::new(x.value(), dims)?;
    let (kept_x, kept_y) = (x.save(), y.save());
    let dims = dims.to_vec();
    y.tracked([x], move |dy, [dx]| {
        dx.add(|| {
            let x = kept_x.get()?;
            let hits = ops::cast(&ops::eq(&x, &spread.over(&kept_y.get()?)?)?, x.dtype())?;
            let share = ops::div(dy, &ops::sum(&hits, &dims)?)?;
            Ok(ops::mul(&hits, &spread.over(&share)?)?)
        })
    })
}

/// The smallest element over `dims`, which the result does not have; equal ones share the gradient.
///
/// # Shapes
/// As [`sum`].
///
/// # Errors
/// As [`sum`].
pub fn min(x: &Var, dims: &[isize]) -> Result<Var> {
    super::neg(&max(&super::neg(x)?, dims)?)
}

/// Brings the result of a reduction back to the shape that was reduced.
struct Spread {
    /// The shape before.
    whole: Shape,
    /// The same with the reduced dims set to 1.
    thin: Shape,
}

impl Spread {
    fn new(x: &Tensor, dims: &[isize]) -> Result<Spread> {
        let mut thin = *x.shape();
        for dim in dims {
            thin = thin.with(x.dim("reduce", *dim)?, 1);
        }
        Ok(Spread {
            whole: *x.shape(),
            thin,
        })
    }

    fn over(&self, reduced: &Tensor) -> Result<Tensor> {
        Ok(ops::reshape(reduced, &self.thin)?.broadcast_to(&self.whole)?)
    }
}
