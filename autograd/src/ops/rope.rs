//! Rotary positions (Su et al. 2021).

use meshgrad_runtime::Tensor;
use meshgrad_runtime::ops::{self, RopeStyle};

use crate::{Result, Save, Track, Var};

/// The first features of each head turned by angles that grow with the position; keeps the tables
/// alone.
///
/// # Shapes
/// `x` [B, T, N, D] float; `cos` and `sin` f32, as [`meshgrad_runtime::ops::rope`] takes them;
/// returns `x`'s shape and dtype.
///
/// # Errors
/// As [`meshgrad_runtime::ops::rope`].
pub fn rope(x: &Var, cos: &Tensor, sin: &Tensor, style: RopeStyle) -> Result<Var> {
    let y = ops::rope(x.value(), cos, sin, style)?;
    let (cos, sin) = (cos.save(), sin.save());
    y.tracked_linear([x], move |dy, [dx]| {
        dx.add(|| Ok(ops::rope_grad(dy, &cos.get()?, &sin.get()?, style)?))
    })
}
