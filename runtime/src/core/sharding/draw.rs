//! Random values of a sharded tensor.

use meshgrad_error::{ensure, error};

use super::ranges::repetition;
use super::tag::Tag;
use crate::{Layout, MAX_DIMS, RegionKey, Result, Shape, Tensor};

impl RegionKey {
    /// The global index of each element of `x`. If `x` is sharded, these are the indices of the
    /// rank's part, so an element has the same random value on any mesh.
    ///
    /// # Errors
    /// As [`RegionKey::global_indices`]; for a sharded tensor and a key with a region; when the
    /// ranges of a rank are not equally long or not equally far apart.
    pub(crate) fn indices_of(&self, op: &'static str, x: &Tensor) -> Result<Layout> {
        let Some(tag) = x.tag() else {
            return self.global_indices(op, x.shape());
        };
        ensure!(
            self.is_whole(),
            Invalid,
            "{op}: the tensor's sharding gives the region; pass the key without one"
        );
        layout(tag)?.ok_or_else(|| {
            let sharding = tag.sharding().to_string();
            error!(
                Invalid,
                "{op}: some rank has several ranges of a dim that are not equally long or not \
                 equally far apart ({sharding}), which stochastic rounding does not support; \
                 choose an extent that the ranks divide"
            )
        })
    }

    /// Whether no single strided layout gives the global indices of `x`, on this rank or another.
    pub(crate) fn needs_boxes(&self, x: &Tensor) -> Result<bool> {
        match x.tag() {
            Some(tag) if self.is_whole() => Ok(layout(tag)?.is_none()),
            _ => Ok(false),
        }
    }
}

/// The global indices of the rank's part. `None`, on all ranks alike, if the ranges of a dim on some
/// rank are not equally long or not equally far apart, or if they need too many dims.
fn layout(tag: &Tag) -> Result<Option<Layout>> {
    if !tag.is_regular() {
        return Ok(None);
    }
    let mut indices = Layout::contiguous(Shape::new(tag.sharding().shape())?, 0);
    // A dim may become two dims, so the last one comes first.
    for (dim, own) in tag.region().dims().iter().enumerate().rev() {
        let first = own.ranges()[0].clone();
        indices = match repetition(own) {
            Some((1, _)) => indices.slice(dim, first)?,
            Some(repetition) if indices.shape().len() < MAX_DIMS => {
                indices.repeated(dim, first, repetition)?
            }
            _ => return Ok(None),
        };
    }
    Ok(Some(indices))
}
