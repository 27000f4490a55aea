//! Grouped matrix products.

use super::{gradient, tensor};
use crate::{DType, Device, Result, Tensor, ops};

/// Covers small and large tiles, and rows that are whole vectors or not. Large products are long in
/// one dim only, so that the emulator computes them in reasonable time.
pub(super) fn grouped(device: &Device, dtype: DType) -> Result<()> {
    let widths: &[usize] = match dtype {
        DType::BF16 => &[8, 33],
        _ => &[8],
    };
    for &width in widths {
        for rows in [64, 132 * 128] {
            by_rows(device, dtype, [rows, width])?;
        }
        for outputs in [width, 33 * 128] {
            sums(device, dtype, [64, width, outputs])?;
        }
    }
    Ok(())
}

fn by_rows(device: &Device, dtype: DType, [rows, width]: [usize; 2]) -> Result<()> {
    let x = tensor(device, &[rows, width], dtype)?;
    let w = tensor(device, &[4, width, width], dtype)?;
    let offsets = offsets(device, rows)?;
    let dy = ops::grouped_matmul_nt(&x, &w, &offsets)?;
    ops::grouped_matmul_grad_input(&dy, &w, &offsets)?;
    Ok(())
}

fn sums(device: &Device, dtype: DType, [rows, inputs, outputs]: [usize; 3]) -> Result<()> {
    let x = tensor(device, &[rows, inputs], dtype)?;
    let dy = tensor(device, &[rows, outputs], dtype)?;
    let offsets = offsets(device, rows)?;
    let mut dw = gradient(device, &[4, outputs, inputs])?;
    ops::grouped_matmul_grad_weight_into(&dy, &x, &offsets, &mut dw)?;
    ops::grouped_matmul_grad_weight_into(&dy, &x, &offsets, &mut dw)
}

/// Offsets of four groups: the second is empty, the first ends inside a tile, and the last two rows
/// belong to no group.
fn offsets(device: &Device, rows: usize) -> Result<Tensor> {
    let ends = [0, rows / 2 + 3, rows / 2 + 3, rows - 7, rows - 2].map(|end| end as i64);
    Tensor::from_slice(device, &[5], &ends)
}
