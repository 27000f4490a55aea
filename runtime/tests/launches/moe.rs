//! Mixture-of-experts layers.

use super::{indices, tensor};
use crate::{DType, Device, Result, ops};

/// Covers few and many experts, and indices of every index dtype.
pub(super) fn expert_order(device: &Device, _: DType) -> Result<()> {
    for index in [DType::I32, DType::U32, DType::I64] {
        for experts in [8, 128, 1000] {
            let indices = indices(device, &[30, 4], index, experts)?;
            let sorted = ops::expert_order(&indices, experts, 0, experts)?;
            ops::expert_counts(&sorted.offsets)?;
        }
    }
    Ok(())
}

/// Covers rows for a few lanes (64 features), for a whole warp (2048), and of partial vectors (33).
pub(super) fn token_permute(device: &Device, dtype: DType) -> Result<()> {
    let indices = indices(device, &[3, 2], DType::I32, 4)?;
    let sorted = ops::expert_order(&indices, 4, 0, 4)?;
    let (order, offsets, row_of_slot) = (&sorted.order, &sorted.offsets, &sorted.row_of_slot);
    for features in [64, 2048, 33] {
        let x = tensor(device, &[3, features], dtype)?;
        let weights = tensor(device, &[3, 2], dtype)?;
        let y = ops::permute_tokens(&x, order, offsets)?;
        ops::permute_tokens_grad(&y, row_of_slot)?;
        let out = ops::unpermute_tokens(&y, &weights, row_of_slot)?;
        ops::unpermute_tokens_grad_input(&out, &weights, order, offsets)?;
        ops::unpermute_tokens_grad_weights(&out, &y, row_of_slot)?;
    }
    Ok(())
}

/// Covers rows of experts that are whole vectors or not (57), and rows too long for registers
/// (600).
pub(super) fn router(device: &Device, dtype: DType) -> Result<()> {
    for experts in [8, 64, 128, 57, 600] {
        let probabilities = tensor(device, &[3, experts], dtype)?;
        let bias = tensor(device, &[experts], DType::F32)?;
        for renormalize in [false, true] {
            let (weights, indices) = ops::router_top_k(&probabilities, 4, renormalize, None)?;
            ops::router_top_k(&probabilities, 4, renormalize, Some(&bias))?;
            ops::router_top_k_grad(&probabilities, &indices, &weights, renormalize)?;
        }
    }
    Ok(())
}
