//! Rotary positions.

use super::tensor;
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
        }
    }
    let positions = Tensor::from_slice(device, &[2], &[0i32, 1])?;
    ops::rope_tables(&positions, &tensor(device, &[8], DType::F32)?, 1.0)?;
    let positions = Tensor::from_slice(device, &[2], &[0u32, 1])?;
    ops::rope_tables(&positions, &tensor(device, &[8], DType::F32)?, 1.0)?;
    Ok(())
}
