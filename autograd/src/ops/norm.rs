//! Root-mean-square normalization (Zhang & Sennrich 2019) and layer normalization (Ba et al. 2016).

use meshgrad_runtime::{Tensor, ops};

use crate::{Operand, Result, Save, Saved, Slot, Track, tracked_many};

/// y = x * w / sqrt(mean(x^2) + eps) over the last dim, computed in f32 (f64 for f64). Saves x, w
/// and one number per row.
///
/// # Shapes
/// `x` [.., D], `w` \[D\], both of one float dtype; returns `x`'s shape and dtype.
///
/// # Errors
/// As [`meshgrad_runtime::ops::rms_norm`].
pub fn rms_norm<V: Operand>(x: &V, w: &V, eps: f64) -> Result<V> {
    let (y, inv_rms) = ops::rms_norm(x.value(), w.value(), eps)?;
    let (saved_x, saved_w, inv_rms) = (x.save(), w.save(), inv_rms.save());
    y.tracked([x, w], move |dy, [dx, dw]| {
        dx.add(|| {
            let (x, w) = (saved_x.get()?, saved_w.get()?);
            ops::rms_norm_grad_input(dy, &x, &w, &inv_rms.get()?)
        })?;
        dw.accumulate(|dw| ops::rms_norm_grad_weight_into(dy, &saved_x.get()?, &inv_rms.get()?, dw))
    })
}

/// The residual sum x + added and its [`rms_norm`], in one pass; returns both. Saves the sum, w and
/// one number per row.
///
/// # Shapes
/// `x` and `added` [.., D], `w` \[D\], of one float dtype; returns two of `x`'s shape and dtype.
///
/// # Errors
/// As [`meshgrad_runtime::ops::add_rms_norm`].
pub fn add_rms_norm<V: Operand>(x: &V, added: &V, w: &V, eps: f64) -> Result<(V, V)> {
    let (sum, y, inv_rms) = ops::add_rms_norm(x.value(), added.value(), w.value(), eps)?;
    let gradients = SumAndNorm::of(&sum, w, inv_rms);
    let backward = move |dys: [Option<&Tensor>; 2], [dx, dadded, dw]: [Slot<'_>; 3]| {
        if (dx.due() | dadded.due())
            && let Some(gradient) = gradients.of_sum(dys)?
        {
            dx.add(|| Ok(gradient.clone()))?;
            dadded.add(|| Ok(gradient))?;
        }
        gradients.add_weight(dys, dw)
    };
    let [sum, y] = tracked_many([sum, y], [x, added, w], backward)?;
    Ok((sum, y))
}

/// A residual sum `x` that is already computed and its [`rms_norm`]; returns both. Values and
/// gradients have the bits of [`add_rms_norm`], so it continues a stream that was cut between the
/// addition and the norm, as by a checkpoint.
///
/// # Shapes
/// As [`rms_norm`]; returns two of `x`'s shape and dtype.
///
/// # Errors
/// As [`rms_norm`].
pub fn residual_rms_norm<V: Operand>(x: &V, w: &V, eps: f64) -> Result<(V, V)> {
    let (y, inv_rms) = ops::rms_norm(x.value(), w.value(), eps)?;
    let gradients = SumAndNorm::of(x.value(), w, inv_rms);
    let backward = move |dys: [Option<&Tensor>; 2], [dx, dw]: [Slot<'_>; 2]| {
        if dx.due()
            && let Some(gradient) = gradients.of_sum(dys)?
        {
            dx.add(|| Ok(gradient))?;
        }
        gradients.add_weight(dys, dw)
    };
    let [sum, y] = tracked_many([x.value().clone(), y], [x, w], backward)?;
    Ok((sum, y))
}

/// The gradients of a residual sum and its norm, given those of both.
struct SumAndNorm {
    sum: Saved,
    w: Saved,
    inv_rms: Saved,
}

impl SumAndNorm {
    fn of<V: Operand>(sum: &Tensor, w: &V, inv_rms: Tensor) -> SumAndNorm {
        SumAndNorm { sum: sum.save(), w: w.save(), inv_rms: inv_rms.save() }
    }

    /// The gradient of the sum, in one pass.
    fn of_sum(&self, dys: [Option<&Tensor>; 2]) -> Result<Option<Tensor>> {
        let [dsum, Some(dy)] = dys else {
            return Ok(dys[0].cloned());
        };
        let (sum, w, inv_rms) = (self.sum.get()?, self.w.get()?, self.inv_rms.get()?);
        Ok(Some(match dsum {
            Some(dsum) => ops::add_rms_norm_grad_input(dsum, dy, &sum, &w, &inv_rms)?,
            None => ops::rms_norm_grad_input(dy, &sum, &w, &inv_rms)?,
        }))
    }

    fn add_weight(&self, dys: [Option<&Tensor>; 2], dw: Slot<'_>) -> Result<()> {
        let Some(dy) = dys[1] else { return Ok(()) };
        dw.accumulate(|dw| {
            let (sum, inv_rms) = (self.sum.get()?, self.inv_rms.get()?);
            ops::rms_norm_grad_weight_into(dy, &sum, &inv_rms, dw)
        })
    }
}

/// y = (x - mean) / sqrt(variance + eps) * w + b over the last dim, the variance being divided by D,
/// computed in f32 (f64 for f64). Saves x, w and two numbers per row.
///
/// # Shapes
/// `x` [.., D], `w` and `b` \[D\], of one float dtype; returns `x`'s shape and dtype.
///
/// # Errors
/// As [`meshgrad_runtime::ops::layer_norm`].
pub fn layer_norm<V: Operand>(x: &V, w: &V, b: &V, eps: f64) -> Result<V> {
    let (y, mean, inv_std) = ops::layer_norm(x.value(), w.value(), b.value(), eps)?;
    let (saved_x, saved_w) = (x.save(), w.save());
    let (mean, inv_std, b_shape) = (mean.save(), inv_std.save(), b.global_shape());
    y.tracked([x, w, b], move |dy, [dx, dw, db]| {
        let (x, mean, inv_std) = (saved_x.get()?, mean.get()?, inv_std.get()?);
        dx.add(|| ops::layer_norm_grad_input(dy, &x, &saved_w.get()?, &mean, &inv_std))?;
        dw.accumulate(|dw| ops::layer_norm_grad_weight_into(dy, &x, &mean, &inv_std, dw))?;
        db.add(|| ops::sum_to(dy, &b_shape))
    })
}
