//! Cumulative sums and sorting.

use super::{extremes, tensor};
use crate::{DType, Device, Result, ops};

pub(super) fn order(device: &Device, dtype: DType) -> Result<()> {
    let x = tensor(device, &[2, 1100], dtype)?;
    ops::cumsum(&x, -1)?;
    ops::reverse_cumsum(&x, -1)?;
    let x = extremes(device, &[3, 1500], dtype)?;
    for descending in [false, true] {
        ops::argsort(&x, -1, descending)?;
    }
    Ok(())
}
