//! Random values of a sharded tensor.

use crate::{Error, Layout, Region, RegionKey, Result, Tensor};

impl RegionKey {
    /// The global index of each element of `x`. If `x` is sharded, these are the indices of the
    /// rank's part, so an element has the same random value on any mesh.
    ///
    /// # Errors
    /// As [`RegionKey::global_indices`]; [`Error::Argument`] for a sharded tensor and a key with a
    /// region.
    pub(crate) fn indices_of(&self, op: &'static str, x: &Tensor) -> Result<Layout> {
        let Some(tag) = x.tag() else {
            return self.global_indices(op, x.shape());
        };
        if !self.is_whole() {
            let problem = "the tensor's sharding gives the region; pass the key without one".into();
            return Err(Error::Argument { op, problem });
        }
        let mut region = Region::whole(tag.sharding().shape())?;
        let ranges = tag.sharding().ranges(tag.rank()).unwrap_or_default();
        for (dim, range) in ranges.into_iter().enumerate() {
            region = region.slice(dim, range)?;
        }
        self.key().within(&region).global_indices(op, x.shape())
    }
}
