//! Embedding lookup.

use meshgrad_runtime::{Tensor, ops};

use crate::{Result, Save, Track, Var};

/// The rows of `table` at `ids`. Saves only the ids.
///
/// # Shapes
/// `table` [V, D] float, `ids` [..] of an index dtype; returns [.., D].
///
/// # Errors
/// As [`meshgrad_runtime::ops::embedding`].
pub fn embedding(table: &Var, ids: &Tensor) -> Result<Var> {
    let y = ops::embedding(table.value(), ids)?;
    let saved_ids = ids.save();
    y.tracked_linear([table], move |dy, [dtable]| {
        dtable.accumulate(|dtable| ops::embedding_grad_into(dy, &saved_ids.get()?, dtable))
    })
}
