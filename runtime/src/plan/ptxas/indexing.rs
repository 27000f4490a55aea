//! Ops whose operands are chosen by indices.

use super::tensor;
use crate::{DType, Device, Result, ops};

pub(super) fn indexing(device: &Device, dtype: DType) -> Result<()> {
    for ids in [DType::I64, DType::I32, DType::U32] {
        let few = tensor(device, &[5], ids)?;
        for features in [64, 3] {
            ops::embedding(&tensor(device, &[9, features], dtype)?, &few)?;
        }
        let x = tensor(device, &[9, 4, 7], dtype)?;
        ops::index_select(&x, 1, &few)?;
        ops::gather(&x, 1, &tensor(device, &[9, 6, 7], ids)?)?;
    }
    Ok(())
}
