//! Cross-entropy: of logits, and fused with the linear layer that computes them, so that the logits of
//! a whole batch are never in memory.

use meshgrad_collectives::redistribute;
use meshgrad_mesh::Placement;
use meshgrad_runtime::ops::{self, Targets};
use meshgrad_runtime::{DType, Tensor};

use crate::{Operand, Result, Save, Track};

/// The cross-entropy of `labels` under softmax(x w^T), summed over the rows whose label is not
/// `ignore_index`, and the number of such rows. Saves x, w and one number per row.
///
/// Both results are sums, which add up over microbatches. For a mean, divide once at the end.
///
/// The rows of `w` can be sharded (a vocabulary-parallel loss). Each rank then computes statistics
/// of its classes, and three tensors of one number per row are reduced over the axes that shard
/// `w`, through the enclosing [`with_redistribution`](meshgrad_collectives::with_redistribution).
/// The gradient of `x` is a partial sum over these axes, and that of `w` has its shards.
///
/// # Shapes
/// `x` [.., D], `w` [V, D] of one float dtype, `labels` [..] of an index dtype; returns two scalars
/// in the accumulator dtype. The loss is tracked, the count is not.
///
/// # Errors
/// As [`meshgrad_runtime::ops::linear_cross_entropy`]; for a sharded vocabulary as
/// [`meshgrad_collectives::redistribute`].
pub fn linear_cross_entropy<V: Operand>(
    x: &V,
    w: &V,
    labels: &Tensor,
    ignore_index: i64,
) -> Result<(V, Tensor)> {
    let (lse, label_logit) = statistics(x.value(), w.value(), labels, ignore_index)?;
    let (loss, count) = ops::cross_entropy_sum(&lse, &label_logit, labels, ignore_index)?;

    let rows = lse.sharded_shape();
    let (saved_x, saved_w, labels, lse) = (x.save(), w.save(), labels.save(), lse.save());
    let loss = loss.tracked([x, w], move |dloss, [dx, dw]| {
        let (x, w, labels, lse) = (saved_x.get()?, saved_w.get()?, labels.get()?, lse.get()?);
        let dloss = ops::contiguous(&rows.broadcast(dloss, &[])?)?;
        // The logits are recomputed, once for both gradients if both are needed.
        if dx.due() & dw.due() {
            let mut dx_of_both = None;
            dw.accumulate(|dw| {
                let both = ops::linear_cross_entropy_grad_both_into(
                    &x,
                    &w,
                    Targets::new(&labels, ignore_index, &w),
                    &lse,
                    &dloss,
                    dw,
                );
                dx_of_both = Some(both?);
                Ok(())
            })?;
            return match dx_of_both {
                Some(gradient) => dx.add(|| Ok(gradient)),
                None => Ok(()),
            };
        }
        dx.add(|| {
            ops::linear_cross_entropy_grad_input(
                &x,
                &w,
                Targets::new(&labels, ignore_index, &w),
                &lse,
                &dloss,
            )
        })?;
        dw.accumulate(|dw| {
            ops::linear_cross_entropy_grad_weight_into(
                &x,
                &w,
                Targets::new(&labels, ignore_index, &w),
                &lse,
                &dloss,
                dw,
            )
        })
    })?;
    Ok((loss, count))
}

/// The cross-entropy of `labels` under softmax(logits), summed over the rows whose label is not
/// `ignore_index`, and the number of such rows. Saves the logits and one number per row.
///
/// [`linear_cross_entropy`] needs far less memory if a linear layer computes the logits.
///
/// # Shapes
/// `logits` [.., V] float, V at most 2^24 and not sharded, `labels` [..] of an index dtype; returns
/// two scalars in the accumulator dtype. The loss is tracked, the count is not.
///
/// # Errors
/// For a label that is neither a class nor ignored; as [`meshgrad_runtime::ops::gather`].
pub fn cross_entropy<V: Operand>(
    logits: &V,
    labels: &Tensor,
    ignore_index: i64,
) -> Result<(V, Tensor)> {
    let dtype = logits.dtype().accumulator();
    let wide = ops::cast(logits.value(), dtype)?;
    let lse = super::logsumexp(&wide, &[-1])?;
    let (is_counted, labels_inside) = counted(labels, ignore_index, dtype)?;
    let index = labels_inside.unsqueeze(labels.shape().len())?;
    let label_logit = ops::sum(&ops::gather(&wide, -1, &index)?, &[-1])?;
    let (loss, count) = ops::cross_entropy_sum(&lse, &label_logit, labels, ignore_index)?;

    let (shape, rows) = (logits.value().sharded_shape(), lse.sharded_shape());
    let (saved, lse, index) = (logits.save(), lse.save(), index.save());
    let is_counted = is_counted.save();
    let last = logits.shape().len() - 1;
    let loss = loss.tracked([logits], move |dloss, [dlogits]| {
        dlogits.add(|| {
            let (logits, index) = (saved.get()?, index.get()?);
            let of_row = ops::mul(&is_counted.get()?, &rows.broadcast(dloss, &[])?)?;
            let of_row = of_row.unsqueeze(last)?;
            let below = ops::sub(&ops::cast(&logits, dtype)?, &lse.get()?.unsqueeze(last)?)?;
            let of_softmax = ops::mul(&ops::exp(&below)?, &of_row)?;
            let of_label = ops::scatter_add_to(&shape, -1, &index, &of_row)?;
            ops::cast(&ops::sub(&of_softmax, &of_label)?, logits.dtype())
        })
    })?;
    Ok((loss, count))
}

/// 1 for each label that is not ignored, else 0; and the labels, with 0 for those that are ignored.
fn counted(labels: &Tensor, ignore_index: i64, dtype: DType) -> Result<(Tensor, Tensor)> {
    let number = ops::cast(labels, dtype)?;
    let ignored = ops::affine(&number.zeros_beside(&[])?, 1.0, ignore_index as f64)?;
    let is_counted = ops::cast(&ops::ne(&number, &ignored)?, dtype)?;
    let inside = ops::cast(&ops::mul(&number, &is_counted)?, DType::I64)?;
    Ok((is_counted, inside))
}

/// The log-sum-exp of the logits x w^T of each row, and the logit of its label.
fn statistics(
    x: &Tensor,
    w: &Tensor,
    labels: &Tensor,
    ignore_index: i64,
) -> Result<(Tensor, Tensor)> {
    let axes = w.sharding().map(|sharding| sharding.axes_of_dim(0));
    let axes = axes.unwrap_or_default().into_iter();
    let whole: Vec<_> = axes.map(|axis| (axis, Placement::Replicate)).collect();
    if whole.is_empty() {
        let targets = Targets::new(labels, ignore_index, w);
        let (max, sum_exp, label_logit) = ops::linear_cross_entropy(x, w, targets)?;
        return Ok((ops::add(&max, &ops::ln(&sum_exp)?)?, label_logit));
    }
    let (max_by_shard, sum_exp, label_logit) =
        ops::linear_cross_entropy_shards(x, w, labels, ignore_index)?;
    let max = redistribute(&ops::max(&max_by_shard, &[-1])?, &whole)?;
    let scale = ops::exp(&ops::sub(&max_by_shard, &max.unsqueeze(max.shape().len())?)?)?;
    let sum_exp = redistribute(&ops::sum(&ops::mul(&sum_exp, &scale)?, &[-1])?, &whole)?;
    let label_logit = redistribute(&ops::sum(&label_logit, &[-1])?, &whole)?;
    Ok((ops::add(&max, &ops::ln(&sum_exp)?)?, label_logit))
}
