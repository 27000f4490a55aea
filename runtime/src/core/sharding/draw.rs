//! Random values of a sharded tensor.

use meshgrad_mesh::IndexSet;

use super::error::ShardedTensorError;
use crate::{Error, Layout, RegionKey, Result, Shape, Tensor};

impl RegionKey {
    /// The global index of each element of `x`. If `x` is sharded, these are the indices of the
    /// rank's part, so an element has the same random value on any mesh.
    ///
    /// # Errors
    /// As [`RegionKey::global_indices`]; [`Error::Argument`] for a sharded tensor and a key with a
    /// region; [`ShardedTensorError::UnequalRanges`]; [`Error::TooManyDims`] when the rank has
    /// several ranges of a dim, which count as two dims.
    pub(crate) fn indices_of(&self, op: &'static str, x: &Tensor) -> Result<Layout> {
        let Some(tag) = x.tag() else {
            return self.global_indices(op, x.shape());
        };
        if !self.is_whole() {
            let problem = "the tensor's sharding gives the region; pass the key without one".into();
            return Err(Error::Argument { op, problem });
        }
        let mut indices = Layout::contiguous(Shape::new(tag.sharding().shape())?, 0);
        // A dim may become two dims, so the last one comes first.
        for (dim, own) in tag.region().dims().iter().enumerate().rev() {
            let first = own.ranges()[0].clone();
            indices = match repetition(own) {
                Some((1, _)) => indices.slice(dim, first)?,
                Some(repetition) => indices.repeated(dim, first, repetition)?,
                None => {
                    let sharding = tag.sharding().to_string();
                    return Err(ShardedTensorError::UnequalRanges { op, dim, sharding }.into());
                }
            };
        }
        Ok(indices)
    }
}

/// The number of ranges of equal length, and the distance between their starts.
fn repetition(indices: &IndexSet) -> Option<(usize, usize)> {
    let ranges = indices.ranges();
    let [first, second, ..] = ranges else {
        return Some((1, 0));
    };
    let period = second.start - first.start;
    let is_next = |pair: &[std::ops::Range<usize>]| {
        pair[1].start - pair[0].start == period && pair[1].len() == first.len()
    };
    let is_equal = ranges.windows(2).all(is_next);
    is_equal.then_some((ranges.len(), period))
}
