//! Embedding, index_select, gather, and their gradients.

use super::{gradient, indices, tensor};
use crate::{DType, Device, Result, ops};

pub(super) fn indexing(device: &Device, dtype: DType) -> Result<()> {
    for ids in [DType::I64, DType::I32, DType::U32] {
        let few = indices(device, &[5], ids, 4)?;
        for features in [64, 3] {
            let y = ops::embedding(&tensor(device, &[9, features], dtype)?, &few)?;
            let mut sum = gradient(device, &[9, features])?;
            ops::embedding_grad_into(&y, &few, &mut sum)?;
            ops::embedding_grad_into(&y, &few, &mut sum)?;
        }
        let x = tensor(device, &[9, 4, 7], dtype)?;
        let dy = ops::index_select(&x, 1, &few)?;
        ops::index_select_grad(&dy, 1, &few, 4)?;
        let index = indices(device, &[9, 6, 7], ids, 4)?;
        let dy = ops::gather(&x, 1, &index)?;
        ops::scatter_add(x.shape(), 1, &index, &dy)?;
    }
    Ok(())
}
