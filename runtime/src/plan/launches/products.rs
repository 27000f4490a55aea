//! Products of matrices.

use super::{gradient, tensor};
use crate::{DType, Device, Result, ops};

/// Every tile, lines of whole vectors and odd ones, sums in one and in parts, as a layer asks for
/// them.
pub(super) fn products(device: &Device, dtype: DType) -> Result<()> {
    let extents = [
        [8, 64, 64],
        [8, 33, 17],
        [2048, 64, 2048],
        [4096, 64, 4096],
        [64, 1024, 64],
        [64, 1023, 63],
        [1024, 1024, 1024],
    ];
    for [rows, inputs, outputs] in extents {
        let x = tensor(device, &[rows, inputs], dtype)?;
        let w = tensor(device, &[outputs, inputs], dtype)?;
        let dy = ops::linear(&x, &w)?;
        ops::linear_grad_input(&dy, &w)?;
        let mut dw = gradient(device, &[outputs, inputs])?;
        ops::linear_grad_weight_into(&dy, &x, &mut dw)?;
        ops::linear_grad_weight_into(&dy, &x, &mut dw)?;
        ops::matmul(&x, &w.transpose(0, 1)?)?;
        ops::matmul_into(&dy.transpose(0, 1)?, &x, &mut dw)?;
    }
    Ok(())
}
