//! Random values of a sharded tensor.

use crate::{Layout, Region, RegionKey, Result, Tensor};

impl RegionKey {
    /// The global index of each element of `x`. Without a region of its own, the key generates the
    /// part of a sharded tensor, so an element has the same value on any mesh.
    ///
    /// # Errors
    /// As [`RegionKey::global_indices`].
    pub(crate) fn indices_of(&self, op: &'static str, x: &Tensor) -> Result<Layout> {
        let Some(tag) = x.tag().filter(|_| self.is_whole()) else {
            return self.global_indices(op, x.shape());
        };
        let mut region = Region::whole(tag.sharding().shape())?;
        for (dim, range) in tag.ranges().into_iter().enumerate() {
            region = region.slice(dim, range)?;
        }
        self.key().within(&region).global_indices(op, x.shape())
    }
}
