//! Sums and extremes.

use super::tensor;
use crate::{DType, Device, Result, Tensor, ops};

type Op = fn(&Tensor, &[isize]) -> Result<Tensor>;

/// Covers short and long rows and columns, of whole vectors or not, in one and several passes. The
/// mean is computed by the kernels of the sum.
pub(super) fn reductions(device: &Device, dtype: DType) -> Result<()> {
    let all: [Op; 3] = [ops::sum, ops::max, ops::min];
    for op in all {
        for extents in [[3, 5, 7], [100, 64, 16], [2, 8, 1032], [3, 132, 333]] {
            let x = tensor(device, &extents, dtype)?;
            for dims in [&[2][..], &[1], &[0], &[0, 2], &[0, 1, 2]] {
                op(&x, dims)?;
            }
        }
        single_rows(device, dtype, op)?;
    }
    ops::mean(&tensor(device, &[3, 5], dtype)?, &[1])?;
    Ok(())
}

/// Covers single rows that end within a vector, in one chunk and in up to some tens of chunks.
fn single_rows(device: &Device, dtype: DType, op: Op) -> Result<()> {
    for columns in [15, 63, 4097, 9001, 30_001, 50_001, 200_001, 400_001] {
        op(&tensor(device, &[columns], dtype)?, &[0])?;
    }
    Ok(())
}
