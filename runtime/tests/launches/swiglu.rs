//! SwiGLU.

use super::tensor;
use crate::{DType, Device, Result, ops};

pub(super) fn swiglu(device: &Device, dtype: DType) -> Result<()> {
    for features in [64, 333] {
        let gate_up = tensor(device, &[5, 2, features], dtype)?;
        let y = ops::swiglu(&gate_up)?;
        ops::swiglu_grad(&gate_up, &y)?;
    }
    Ok(())
}
