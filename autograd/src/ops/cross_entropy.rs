//! Fused linear layer and cross-entropy. The logits of a whole batch are never in memory.

use meshgrad_mesh::Placement;
use meshgrad_runtime::ops::{self, Targets};
use meshgrad_runtime::{Tensor, redistribute};

use crate::{Operand, Result, Save, Track};

/// The cross-entropy of `labels` under softmax(x w^T), summed over the rows whose label is not
/// `ignore_index`, and the number of such rows. Saves x, w and one number per row.
///
/// Both results are sums, which add up over microbatches. For a mean, divide once at the end.
///
/// The rows of `w` can be sharded (a vocabulary-parallel loss). Each rank then computes statistics
/// of its classes, and three tensors of one number per row are reduced over the axes that shard
/// `w`, through the enclosing [`with_redistribution`](meshgrad_runtime::with_redistribution). The
/// gradient of `x` is a partial sum over these axes, and that of `w` has its shards.
///
/// # Shapes
/// `x` [.., D], `w` [V, D] of one float dtype, `labels` [..] of an index dtype; returns two scalars
/// in the accumulator dtype. The loss is tracked, the count is not.
///
/// # Errors
/// As [`meshgrad_runtime::ops::linear_cross_entropy`]; for a sharded vocabulary as
/// [`meshgrad_runtime::redistribute`].
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
    let scale = ops::exp(&ops::sub(
        &max_by_shard,
        &max.unsqueeze(max.shape().len())?,
    )?)?;
    let sum_exp = redistribute(&ops::sum(&ops::mul(&sum_exp, &scale)?, &[-1])?, &whole)?;
    let label_logit = redistribute(&ops::sum(&label_logit, &[-1])?, &whole)?;
    Ok((ops::add(&max, &ops::ln(&sum_exp)?)?, label_logit))
}
