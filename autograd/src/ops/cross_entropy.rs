//! Fused linear layer and cross-entropy. The logits of a whole batch are never in memory.

use meshgrad_runtime::Tensor;
use meshgrad_runtime::ops::{self, Targets};

use crate::{Operand, Result, Save, Track};

/// The cross-entropy of `labels` under softmax(x w^T), summed over the rows whose label is not
/// `ignore_index`, and the number of such rows. Saves x, w and one number per row.
///
/// Both results are sums, which add up over microbatches. For a mean, divide once at the end.
///
/// # Shapes
/// `x` [.., D], `w` [V, D] of one float dtype, `labels` [..] of an index dtype; returns two scalars
/// in the accumulator dtype. The loss is tracked, the count is not.
///
/// # Errors
/// As [`meshgrad_runtime::ops::linear_cross_entropy`].
pub fn linear_cross_entropy<V: Operand>(
    x: &V,
    w: &V,
    labels: &Tensor,
    ignore_index: i64,
) -> Result<(V, Tensor)> {
    let vocabulary = w.value().global_extent(0)?;
    let (max, sum_exp, label_logit) = ops::linear_cross_entropy(
        x.value(),
        w.value(),
        targets(labels, ignore_index, vocabulary),
    )?;
    let lse = ops::add(&max, &ops::ln(&sum_exp)?)?;
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
                    targets(&labels, ignore_index, vocabulary),
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
                targets(&labels, ignore_index, vocabulary),
                &lse,
                &dloss,
            )
        })?;
        dw.accumulate(|dw| {
            ops::linear_cross_entropy_grad_weight_into(
                &x,
                &w,
                targets(&labels, ignore_index, vocabulary),
                &lse,
                &dloss,
                dw,
            )
        })
    })?;
    Ok((loss, count))
}

/// Labels over the whole vocabulary.
fn targets(labels: &Tensor, ignore_index: i64, vocabulary: usize) -> Targets<'_> {
    Targets {
        labels,
        ignore_index,
        vocab_start: 0,
        vocab_total: vocabulary,
    }
}
