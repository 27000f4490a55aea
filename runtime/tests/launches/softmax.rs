//! Softmax and log-softmax.

use super::tensor;
use crate::{DType, Device, Result, ops};

/// Covers rows that fit into registers, and other rows read in loops by elements or by vectors.
pub(super) fn softmax(device: &Device, dtype: DType) -> Result<()> {
    for features in [64, 1024, 4096, 333, 40_000] {
        let x = tensor(device, &[5, features], dtype)?;
        let y = ops::softmax(&x)?;
        ops::softmax_grad(&y, &x)?;
        let y = ops::log_softmax(&x)?;
        ops::log_softmax_grad(&y, &x)?;
    }
    Ok(())
}
