//! Cross entropy of logits that a layer makes tile by tile.

use super::{gradient, tensor};
use crate::ops::Targets;
use crate::{DType, Device, Result, ops};

/// Tiles whose rows belong to a warp and to a CTA, one and several of them, labels of every dtype.
pub(super) fn cross_entropy(device: &Device, dtype: DType) -> Result<()> {
    for index in [DType::I64, DType::I32, DType::U32] {
        for [rows, classes] in [[6, 70], [6, 5000]] {
            let x = tensor(device, &[rows, 64], dtype)?;
            let w = tensor(device, &[classes, 64], dtype)?;
            let targets = Targets {
                labels: &ops::full(device, &[rows], index, 0.0)?,
                ignore_index: -100,
                vocab_start: 0,
                vocab_total: classes,
            };
            let (lse, dloss, label_logit) = ops::linear_cross_entropy(&x, &w, targets)?;
            let mut dw = gradient(device, &[classes, 64])?;
            ops::linear_cross_entropy_grad_input(&x, &w, targets, &lse, &dloss)?;
            ops::linear_cross_entropy_grad_weight_into(&x, &w, targets, &lse, &dloss, &mut dw)?;
            ops::linear_cross_entropy_grad_both_into(&x, &w, targets, &lse, &dloss, &mut dw)?;
            ops::cross_entropy_sum(&lse, &label_logit, targets.labels, -100)?;
        }
    }
    let x = tensor(device, &[6], dtype)?;
    ops::cross_entropy_sum(&x, &x, &ops::full(device, &[6], DType::I64, 0.0)?, 0)?;
    Ok(())
}
