//! RMS and layer norms, and the global norm of gradients.

use super::{gradient, tensor};
use crate::{DType, Device, Result, Tensor, ops};

pub(super) fn norms(device: &Device, dtype: DType) -> Result<()> {
    for features in [64, 1024, 4096, 333] {
        let x = tensor(device, &[5, features], dtype)?;
        let w = tensor(device, &[features], dtype)?;
        let (y, inv_rms) = ops::rms_norm(&x, &w, 1e-6)?;
        ops::rms_norm_grad_input(&y, &x, &w, &inv_rms)?;
        let (sum, y, inv_rms) = ops::add_rms_norm(&x, &y, &w, 1e-6)?;
        ops::add_rms_norm_grad_input(&x, &y, &sum, &w, &inv_rms)?;
        let mut dw = gradient(device, &[features])?;
        ops::rms_norm_grad_weight_into(&y, &x, &inv_rms, &mut dw)?;
        ops::rms_norm_grad_weight_into(&y, &x, &inv_rms, &mut dw)?;

        let (y, mean, inv_std) = ops::layer_norm(&x, &w, &w, 1e-6)?;
        ops::layer_norm_grad_input(&y, &x, &w, &mean, &inv_std)?;
        ops::layer_norm_grad_weight_into(&y, &x, &mean, &inv_std, &mut dw)?;
    }
    Ok(())
}

/// Covers the global norm of short and long gradients, of whole vectors or not, and clipping by it.
pub(super) fn gradients(device: &Device, dtype: DType) -> Result<()> {
    let vector = 128 / dtype.bits();
    let all: Result<Vec<Tensor>> = [3, vector, 499, 5001, 20_001]
        .into_iter()
        .map(|elements| tensor(device, &[elements], dtype))
        .collect();
    let all = all?;
    let norm = ops::global_norm(&all.iter().collect::<Vec<_>>())?;
    let weight = tensor(device, &[], DType::F32)?;
    ops::clip_scale(&norm, &weight, 1.0)?;
    ops::clip_scale(&norm, &weight, 0.0)?;
    Ok(())
}
