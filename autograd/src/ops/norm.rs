//! Root-mean-square normalisation (Zhang & Sennrich 2019).

use meshgrad_runtime::{Tensor, ops};

use crate::{Result, Save, Slot, Track, Var, tracked_many};

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

/// The residual stream and the norm that follows it, in one pass: x + added, and [`rms_norm`] of
/// that; returns both. Keeps the sum, w and a number a row.
///
/// # Shapes
/// `x` and `added` [.., D], `w` \[D\], of one float dtype; returns two of `x`'s shape and dtype.
///
/// # Errors
/// As [`meshgrad_runtime::ops::add_rms_norm`].
pub fn add_rms_norm(x: &Var, added: &Var, w: &Var, eps: f64) -> Result<(Var, Var)> {
    let (sum, y, inv_rms) = ops::add_rms_norm(x.value(), added.value(), w.value(), eps)?;

    let (kept_sum, kept_w, inv_rms) = (sum.save(), w.save(), inv_rms.save());
    let backward = move |dys: &[Option<Tensor>], slots: Vec<Slot<'_>>| {
        let ([dsum, dy], Ok([dx, dadded, dw])) = (dys, <[Slot<'_>; 3]>::try_from(slots)) else {
            return Ok(());
        };
        if dx.due() | dadded.due() {
            let gradient = match (dsum, dy) {
                (Some(dsum), None) => dsum.clone(),
                (None, None) => return Ok(()),
                (dsum, Some(dy)) => {
                    let (sum, w, inv_rms) = (kept_sum.get()?, kept_w.get()?, inv_rms.get()?);
                    match dsum {
                        Some(dsum) => ops::add_rms_norm_grad_input(dsum, dy, &sum, &w, &inv_rms)?,
                        None => ops::rms_norm_grad_input(dy, &sum, &w, &inv_rms)?,
                    }
                }
            };
            dx.add(|| Ok(gradient.clone()))?;
            dadded.add(|| Ok(gradient))?;
        }
        let Some(dy) = dy else { return Ok(()) };
        dw.accumulate(|dw| {
            let (sum, inv_rms) = (kept_sum.get()?, inv_rms.get()?);
            Ok(ops::rms_norm_grad_weight_into(dy, &sum, &inv_rms, dw)?)
        })
    };
    let outputs = tracked_many(vec![sum, y], &[x, added, w], backward)?;
    match <[Var; 2]>::try_from(outputs) {
        Ok([sum, y]) => Ok((sum, y)),
        Err(_) => unreachable!("as many variables as tensors"),
    }
}
