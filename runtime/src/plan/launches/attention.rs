//! Attention and its gradients.

use super::tensor;
use crate::ops::AttentionMask;
use crate::{DType, Device, Result, ops};

pub(super) fn attention(device: &Device, dtype: DType) -> Result<()> {
    for head_dim in [5, 64, 80, 128, 192, 256] {
        let x = tensor(device, &[1, 70, 2, head_dim], dtype)?;
        let mask = AttentionMask::causal();
        let (out, lse) = ops::attention(&x, &x, &x, &mask, 0.5)?;
        ops::attention_grad(&x, &x, &x, &out, &lse, &out, &mask, 0.5)?;
    }
    Ok(())
}
