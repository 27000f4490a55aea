//! Ops that move elements.

use super::tensor;
use crate::{DType, Device, Kind, Result, Tensor, ops};

pub(super) fn copies(device: &Device, dtype: DType) -> Result<()> {
    let x = tensor(device, &[6, 64], dtype)?;
    ops::copy(&x.transpose(0, 1)?)?;
    for to in [DType::F32, DType::BF16] {
        ops::cast(&x, to)?;
    }
    let cache = Tensor::zeros(device, &[6, 64], dtype, Kind::Cache)?;
    ops::copy_into(&x, &cache)?;
    ops::fill_into(&cache, 2.0)
}
