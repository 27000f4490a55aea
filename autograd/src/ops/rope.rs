//! Rotary position embedding (Su et al. 2021).

use meshgrad_runtime::Tensor;
use meshgrad_runtime::ops::{self, RopeStyle};

use crate::{Operand, Result, Save, Track};

/// Rotates the first features of each head by angles proportional to the position. Saves only the
/// tables.
///
/// # Shapes
/// `x` [B, T, N, D] float; `cos` and `sin` f32, as in [`meshgrad_runtime::ops::rope`];
/// returns `x`'s shape and dtype.
///
/// # Errors
/// As [`meshgrad_runtime::ops::rope`].
pub fn rope<V: Operand>(x: &V, cos: &Tensor, sin: &Tensor, style: RopeStyle) -> Result<V> {
    let y = ops::rope(x.value(), cos, sin, style)?;
    let (cos, sin) = (cos.save(), sin.save());
    y.tracked_linear([x], move |dy, [dx]| {
        dx.add(|| ops::rope_grad(dy, &cos.get()?, &sin.get()?, style))
    })
}

/// [`rope`] of [`rms_norm`](crate::ops::rms_norm) over the features of each head, in one pass. Used
/// for queries and keys. Saves x, w, the tables and one number per head.
///
/// # Shapes
/// `x` [B, T, N, D], `w` \[D\], of one float dtype; `cos` and `sin` as in [`rope`]; returns
/// `x`'s shape and dtype.
///
/// # Errors
/// As [`meshgrad_runtime::ops::rms_norm_rope`].
pub fn rms_norm_rope<V: Operand>(
    x: &V,
    w: &V,
    cos: &Tensor,
    sin: &Tensor,
    style: RopeStyle,
    eps: f64,
) -> Result<V> {
    let (y, inv_rms) = ops::rms_norm_rope(x.value(), w.value(), cos, sin, style, eps)?;
    let (saved_x, saved_w, inv_rms) = (x.save(), w.save(), inv_rms.save());
    let (cos, sin) = (cos.save(), sin.save());
    y.tracked([x, w], move |dy, [dx, dw]| {
        let (cos, sin) = (cos.get()?, sin.get()?);
        dx.add(|| {
            let (x, w, inv_rms) = (saved_x.get()?, saved_w.get()?, inv_rms.get()?);
            ops::rms_norm_rope_grad_input(dy, &x, &w, &inv_rms, &cos, &sin, style)
        })?;
        dw.accumulate(|dw| {
            let (x, inv_rms) = (saved_x.get()?, inv_rms.get()?);
            ops::rms_norm_rope_grad_weight_into(dy, &x, &inv_rms, &cos, &sin, style, dw)
        })
    })
}
