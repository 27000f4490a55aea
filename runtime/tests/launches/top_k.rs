//! argmax, argmin and top-k.

use super::tensor;
use crate::{DType, Device, Result, ops};

/// Covers rows for a few lanes, for a CTA, and split into chunks; rows of whole vectors or not; one
/// tile and many.
pub(super) fn top_k(device: &Device, dtype: DType) -> Result<()> {
    for [rows, columns] in [
        [3, 7],
        [3, 64],
        [5, 4096],
        [5, 333],
        [2, 16_392],
        [1, 63],
        [1, 4097],
        [1, 9001],
    ] {
        let x = tensor(device, &[rows, columns], dtype)?;
        ops::argmax(&x, 1)?;
        ops::argmin(&x, 1)?;
        ops::argmax(&x, 0)?;
        ops::top_k(&x, 3)?;
        ops::top_k(&x, columns)?;
    }
    Ok(())
}
