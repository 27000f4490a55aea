//! Ops that fill, copy and cast.

use super::extents::MORE_THAN_A_TILE;
use super::operands::{Operands, tensor};
use super::run;
use crate::op_cases::{concat, copies as copy_cases, views};
use crate::{DType, Device, Result, ops};

pub(super) fn copies(source: &Operands<'_>) -> Result<()> {
    for index in [DType::I32, DType::I64] {
        ops::arange(source.device, 5, index)?;
    }
    for from in [source.dtype, DType::Bool] {
        let x = tensor(source.device, &[MORE_THAN_A_TILE], from)?;
        for to in [DType::F32, DType::BF16, DType::Bool] {
            ops::cast(&x, to)?;
        }
    }
    run(copy_cases(source, [6, 64])?)?;
    run(views(source, [4, 3, 6])?)?;
    run(concat(source, [&[6, 64], &[6, 3]], 1)?)?;
    every_dtype(source.device)
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
