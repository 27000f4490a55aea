//! Sums and extremes.

use super::tensor;
use crate::{DType, Device, Result, Tensor, ops};

/// Rows and columns, short and long, of vectors and of odd extents; several passes.
pub(super) fn reductions(device: &Device, dtype: DType) -> Result<()> {
    type Op = fn(&Tensor, &[isize]) -> Result<Tensor>;
    let all: [Op; 4] = [ops::sum, ops::mean, ops::max, ops::min];
    for op in all {
        for extents in [[3, 5, 7], [100, 64, 64], [2, 8, 4096], [3, 200, 333]] {
            let x = tensor(device, &extents, dtype)?;
            for dims in [&[2][..], &[1], &[0], &[0, 2], &[0, 1, 2]] {
                op(&x, dims)?;
            }
        }
    }
    Ok(())
}
