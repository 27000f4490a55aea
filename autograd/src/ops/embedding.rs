//! Embedding lookup.

use meshgrad_runtime::{DType, Tensor, ops};

use crate::{Operand, Result, Save, Track};

/// The rows of `table` at `ids`. Saves only the ids.
///
/// # Shapes
/// `table` [V, D] float, `ids` [..] of an index dtype; returns [.., D].
///
/// # Errors
/// As [`meshgrad_runtime::ops::embedding`].
pub fn embedding<V: Operand>(table: &V, ids: &Tensor) -> Result<V> {
    let y = ops::embedding(table.value(), ids)?;
    let saved_ids = ids.save();
    y.tracked_linear([table], move |dy, [dtable]| {
        dtable.accumulate(|dtable| ops::embedding_grad_into(dy, &saved_ids.get()?, dtable))
    })
}

/// As [`embedding`], but the row `padding` of the table gets no gradient, as with torch's
/// `padding_idx`. Shapes, dtypes and errors are those of [`embedding`].
pub fn embedding_with_padding<V: Operand>(table: &V, ids: &Tensor, padding: usize) -> Result<V> {
    let y = ops::embedding(table.value(), ids)?;
    let saved_ids = ids.save();
    y.tracked_linear([table], move |dy, [dtable]| {
        dtable.accumulate(|dtable| {
            let ids = saved_ids.get()?;
            // The distance to `padding`, clamped: 0 for padding and 1 for all others. It has the
            // sharding of the ids.
            let distance = ops::affine(&ops::cast(&ids, DType::F32)?, 1.0, -(padding as f64))?;
            let counted = ops::clamp(&ops::square(&distance)?, 0.0, 1.0)?;
            let counted = ops::cast(&counted, dy.dtype())?.unsqueeze(ids.shape().len())?;
            ops::embedding_grad_into(&ops::mul(dy, &counted)?, &ids, dtable)
        })
    })
}
