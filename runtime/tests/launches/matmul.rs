//! Matrix products and linear layers.

use super::{gradient, tensor};
use crate::{DType, Device, Result, ops};

/// Covers rows that are whole vectors or not, with and without split k.
pub(super) fn matmul(device: &Device, dtype: DType) -> Result<()> {
    let extents = [
        [8, 64, 64],
        [8, 33, 17],
        [64, 64, 64],
        [64, 512, 64],
        [64, 513, 63],
        [64, 64, 512],
        [512, 64, 64],
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
    large(device, dtype)
}

/// Products large enough for the large tiles. All dims but one are as short as possible, so that
/// the emulator computes them in reasonable time.
fn large(device: &Device, dtype: DType) -> Result<()> {
    let operand = |shape: [usize; 2]| tensor(device, &shape, dtype);
    let rows = 132 * 128;
    ops::linear(&operand([rows, 8])?, &operand([8, 8])?)?;
    ops::linear_grad_input(&operand([rows, 8])?, &operand([8, 8])?)?;
    let (dy, x) = (operand([8, rows])?, operand([8, 8])?);
    let mut dw = gradient(device, &[rows, 8])?;
    ops::linear_grad_weight_into(&dy, &x, &mut dw)?;
    ops::linear_grad_weight_into(&dy, &x, &mut dw)?;
    if dtype == DType::BF16 {
        ops::linear(&operand([2 * rows, 8])?, &operand([256, 8])?)?;
    }
    Ok(())
}
