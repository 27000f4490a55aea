//! Cross-entropy of a linear layer's logits, which never exist for a whole batch.

use meshgrad_runtime::ops::{self, Targets};
use meshgrad_runtime::{Shape, Tensor};

use crate::{Result, Save, Track, Var};

/// The cross-entropy of `labels` under softmax(x w^T), summed over the rows that count, and how
/// many do; keeps x, w and a number a row.
///
/// The loss is a sum with its weight: whoever wants a mean divides once, after everything has been
/// added up.
///
/// # Shapes
/// `x` [.., D], `w` [V, D] of one float dtype, `labels` [..] of an index dtype, `ignore_index`
/// where a row does not count; returns two scalars in the accumulator dtype, of which the loss is
/// tracked.
///
/// # Errors
/// As [`meshgrad_runtime::ops::linear_cross_entropy`].
pub fn linear_cross_entropy(
    x: &Var,
    w: &Var,
    labels: &Tensor,
    ignore_index: i64,
) -> Result<(Var, Tensor)> {
    let vocabulary = w.shape()[0];
    let (max, sum_exp, label_logit) = ops::linear_cross_entropy(
        x.value(),
        w.value(),
        targets(labels, ignore_index, vocabulary),
    )?;
    let lse = ops::add(&max, &ops::ln(&sum_exp)?)?;
    let (loss, count) = ops::cross_entropy_sum(&lse, &label_logit, labels, ignore_index)?;

    let rows: Shape = *lse.shape();
    let (kept_x, kept_w, labels, lse) = (x.save(), w.save(), labels.save(), lse.save());
    let loss = loss.tracked([x, w], move |dloss, [dx, dw]| {
        let (x, w, labels, lse) = (kept_x.get()?, kept_w.get()?, labels.get()?, lse.get()?);
        let dloss = ops::contiguous(&dloss.broadcast_to(&rows)?)?;
        // The logits are made again: once for both gradients where both are wanted now.
        if dx.due() & dw.due() {
            let mut made = None;
            dw.accumulate(|dw| {
                let both = ops::linear_cross_entropy_grad_both_into(
                    &x,
                    &w,
                    targets(&labels, ignore_index, vocabulary),
                    &lse,
                    &dloss,
                    dw,
                );
                made = Some(both?);
                Ok(())
            })?;
            return match made {
                Some(made) => dx.add(|| Ok(made)),
                None => Ok(()),
            };
        }
        dx.add(|| {
            Ok(ops::linear_cross_entropy_grad_input(
                &x,
                &w,
                targets(&labels, ignore_index, vocabulary),
                &lse,
                &dloss,
            )?)
        })?;
        dw.accumulate(|dw| {
            Ok(ops::linear_cross_entropy_grad_weight_into(
                &x,
                &w,
                targets(&labels, ignore_index, vocabulary),
                &lse,
                &dloss,
                dw,
            )?)
        })
    })?;
    Ok((loss, count))
}

/// Labels against a whole vocabulary.
fn targets(labels: &Tensor, ignore_index: i64, vocabulary: usize) -> Targets<'_> {
    Targets {
        labels,
        ignore_index,
        vocab_start: 0,
        vocab_total: vocabulary,
    }
}
