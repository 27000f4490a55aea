//! Random values of a sharded tensor.

use super::error::ShardedTensorError;
use super::ranges::repetition;
use super::tag::Tag;
use crate::{Error, Layout, RegionKey, Result, Shape, Tensor};

impl RegionKey {
    /// The global index of each element of `x`. If `x` is sharded, these are the indices of the
    /// rank's part, so an element has the same random value on any mesh.
    ///
    /// # Errors
    /// As [`RegionKey::global_indices`]; [`Error::Argument`] for a sharded tensor and a key with a
    /// region; [`ShardedTensorError::UnequalRanges`].
    pub(crate) fn indices_of(&self, op: &'static str, x: &Tensor) -> Result<Layout> {
        let Some(tag) = x.tag() else {
            return self.global_indices(op, x.shape());
        };
        if !self.is_whole() {
            let problem = "the tensor's sharding gives the region; pass the key without one".into();
            return Err(Error::Argument { op, problem });
        }
        layout(tag)?.ok_or_else(|| {
            let sharding = tag.sharding().to_string();
            ShardedTensorError::UnequalRanges { op, sharding }.into()
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
        let next = match repetition(own) {
            None => return Ok(None),
            Some((1, _)) => indices.slice(dim, first),
            Some(repetition) => indices.repeated(dim, first, repetition),
        };
        indices = match next {
            Err(Error::TooManyDims { .. }) => return Ok(None),
            next => next?,
        };
    }
    Ok(Some(indices))
}
