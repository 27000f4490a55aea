//! Ops that fill, copy and cast.

use super::elementwise::MORE_THAN_A_TILE;
use super::tensor;
use crate::{DType, Device, Kind, Result, Shape, Tensor, ops};

pub(super) fn copies(device: &Device, dtype: DType) -> Result<()> {
    for index in [DType::I32, DType::I64] {
        ops::arange(device, 5, index)?;
    }
    for from in [dtype, DType::Bool] {
        let x = tensor(device, &[MORE_THAN_A_TILE], from)?;
        for to in [DType::F32, DType::BF16, DType::Bool] {
            ops::cast(&x, to)?;
        }
    }
    let x = tensor(device, &[6, 64], dtype)?;
    ops::copy(&x.transpose(0, 1)?)?;
    let cache = Tensor::zeros(device, &[6, 64], dtype, Kind::Cache)?;
    ops::copy_into(&x, &cache)?;
    ops::fill_into(&cache, 2.0)?;
    let at = Tensor::zeros(device, &[1], DType::I64, Kind::Cache)?;
    ops::copy_at_into(&x.slice(1, 0..8)?, &cache, &at)?;
    ops::slice_grad(&x, &Shape::new(&[6, 70])?, 1, 2..66)?;
    ops::concat(&[&x, &x.slice(1, 0..3)?], 1)?;
    every_dtype(device)
}

/// Fills and copies every dtype, from transposed and sliced tensors, and casts it to every other.
fn every_dtype(device: &Device) -> Result<()> {
    for from in DType::ALL {
        ops::full(device, &[5], from, 1.0)?;
        let x = tensor(device, &[3, 10, 16], from)?;
        ops::copy(&x.transpose(1, 2)?)?;
        ops::copy(&x.slice(2, 1..4)?)?;
        for to in DType::ALL {
            ops::cast(&x, to)?;
        }
    }
    Ok(())
}
