//! Embedding lookup.

use meshgrad_runtime::{Tensor, ops};

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
