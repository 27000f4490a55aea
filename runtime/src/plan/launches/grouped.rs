//! Products of ragged groups.

use super::tensor;
use crate::{Accumulator, DType, Device, Result, Shape, ops};

/// Small and large tiles, lines of whole vectors and odd ones, as experts ask for them.
pub(super) fn grouped(device: &Device, dtype: DType) -> Result<()> {
    for [rows, groups, width] in [[64, 4, 64], [64, 4, 33], [2048, 4, 2048], [2048, 4, 2047]] {
        let x = tensor(device, &[rows, width], dtype)?;
        let w = tensor(device, &[groups, width, width], dtype)?;
        let offsets = tensor(device, &[groups + 1], DType::I64)?;
        let dy = ops::grouped_matmul_nt(&x, &w, &offsets)?;
        ops::grouped_matmul_grad_input(&dy, &w, &offsets)?;
        let shape = Shape::new(&[groups, width, width])?;
        let mut dw = Accumulator::new(device, shape, DType::F32)?;
        ops::grouped_matmul_grad_weight_into(&dy, &x, &offsets, &mut dw)?;
        ops::grouped_matmul_grad_weight_into(&dy, &x, &offsets, &mut dw)?;
    }
    Ok(())
}
