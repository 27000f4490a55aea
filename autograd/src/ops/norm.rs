//! Root-mean-square normalisation (Zhang & Sennrich 2019).

use meshgrad_runtime::ops;

use crate::{Result, Save, Track, Var};

/// y = x * w / sqrt(mean(x^2) + eps) over the last dim, computed in f32 (f64 for f64); keeps x, w
/// and a number a row.
///
/// # Shapes
/// `x` [.., D], `w` \[D\], both of one float dtype; returns `x`'s shape and dtype.
///
/// # Errors
/// As [`meshgrad_runtime::ops::rms_norm`].
pub fn rms_norm(x: &Var, w: &Var, eps: f64) -> Result<Var> {
    let (y, inv_rms) = ops::rms_norm(x.value(), w.value(), eps)?;
    let (kept_x, kept_w, inv_rms) = (x.save(), w.save(), inv_rms.save());
    y.tracked([x, w], move |dy, [dx, dw]| {
        dx.add(|| {
            let (x, w) = (kept_x.get()?, kept_w.get()?);
            Ok(ops::rms_norm_grad_input(dy, &x, &w, &inv_rms.get()?)?)
        })?;
        dw.accumulate(|dw| {
            Ok(ops::rms_norm_grad_weight_into(
                dy,
                &kept_x.get()?,
                &inv_rms.get()?,
                dw,
            )?)
        })
    })
}
