//! Attention and its gradients.

use super::tensor;
use crate::ops::{AttentionMask, AttentionSequences};
use crate::{DType, Device, Result, Tensor, ops};

/// Covers head dims with and without tensor cores, and plain, cached and packed sequences.
pub(super) fn attention(device: &Device, dtype: DType) -> Result<()> {
    let head_dims: &[usize] = match dtype {
        DType::F32 => &[5, 8],
        _ => &[5, 64, 80, 128, 192, 256],
    };
    for &head_dim in head_dims {
        let heads = |batch, tokens| tensor(device, &[batch, tokens, 1, head_dim], dtype);
        let both_ways = |q: &Tensor, k: &Tensor, mask: &AttentionMask| -> Result<()> {
            let (out, lse) = ops::attention(q, k, k, mask, 0.5)?;
            ops::attention_grad(q, k, k, &out, &lse, &out, mask, 0.5)?;
            ops::attention_lse_grad(q, k, k, &out, &lse, &out, &lse, mask, 0.5)?;
            Ok(())
        };

        let x = heads(1, 70)?;
        both_ways(&x, &x, &AttentionMask::causal())?;
        both_ways(&heads(2, 2)?, &heads(2, 66)?, &cached(device)?)?;
        both_ways(&heads(1, 4)?, &heads(1, 8)?, &packed(device)?)?;
    }
    Ok(())
}

/// Two batch rows with a key cache. The second row has no valid keys.
fn cached(device: &Device) -> Result<AttentionMask> {
    let list = |elements: [i64; 2]| Tensor::from_slice(device, &[2], &elements);
    let sequences = AttentionSequences::Cached {
        q_offset: list([60, 3])?,
        k_len: list([66, 0])?,
    };
    Ok(AttentionMask {
        sequences,
        ..AttentionMask::default()
    })
}

/// Two sequences packed into one batch row.
fn packed(device: &Device) -> Result<AttentionMask> {
    let list = |elements: [i64; 3]| Tensor::from_slice(device, &[3], &elements);
    let sequences = AttentionSequences::Packed {
        cu_seqlens_q: list([0, 3, 4])?,
        cu_seqlens_k: list([0, 5, 8])?,
    };
    Ok(AttentionMask {
        sequences,
        ..AttentionMask::default()
    })
}
