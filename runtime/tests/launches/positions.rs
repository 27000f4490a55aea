//! Rotary position embedding, alone and fused with RMS norm.

use super::{gradient, tensor};
use crate::ops::RopeStyle;
use crate::{DType, Device, Result, Tensor, ops};

pub(super) fn positions(device: &Device, dtype: DType) -> Result<()> {
    let positions = Tensor::from_slice(device, &[1, 2], &[0i64, 1])?;
    for [features, pairs] in [[128, 64], [64, 32], [96, 32], [9, 3]] {
        let inv_freq = tensor(device, &[pairs], DType::F32)?;
        let (cos, sin) = ops::rope_tables(&positions, &inv_freq, 1.0)?;
        let x = tensor(device, &[1, 2, 3, features], dtype)?;
        for style in [RopeStyle::Half, RopeStyle::Interleaved] {
            let y = ops::rope(&x, &cos, &sin, style)?;
            ops::rope_grad(&y, &cos, &sin, style)?;

            let w = tensor(device, &[features], dtype)?;
            let (y, inv_rms) = ops::rms_norm_rope(&x, &w, &cos, &sin, style, 1e-6)?;
            ops::rms_norm_rope_grad_input(&y, &x, &w, &inv_rms, &cos, &sin, style)?;
            let mut dw = gradient(device, &[features])?;
            for _ in 0..2 {
                let dw = &mut dw;
                ops::rms_norm_rope_grad_weight_into(&y, &x, &inv_rms, &cos, &sin, style, dw)?;
            }
        }
    }
    let positions = Tensor::from_slice(device, &[2], &[0i32, 1])?;
    ops::rope_tables(&positions, &tensor(device, &[8], DType::F32)?, 1.0)?;
    let positions = Tensor::from_slice(device, &[2], &[0u32, 1])?;
    ops::rope_tables(&positions, &tensor(device, &[8], DType::F32)?, 1.0)?;
    Ok(())
}
