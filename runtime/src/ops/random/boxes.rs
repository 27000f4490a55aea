//! Random values of a part that consists of several boxes, box by box.

use std::ops::Range;

use meshgrad_mesh::IndexSet;

use crate::{Key, Region, RegionKey, Result, Tensor, ops};

/// Calls `f` on each box of this rank's part of `x` and joins the results, without a sharding. `None`
/// if one layout gives the global indices of the part.
pub(super) fn by_boxes(
    key: &RegionKey,
    x: &Tensor,
    f: impl Fn(&Tensor, RegionKey) -> Result<Tensor>,
) -> Result<Option<Tensor>> {
    let Some(tag) = x.tag() else {
        return Ok(None);
    };
    if !key.needs_boxes(x)? {
        return Ok(None);
    }
    let boxes = Boxes { key: key.key(), dims: tag.region().dims(), f: &f };
    let whole = Region::whole(tag.sharding().shape())?;
    boxes.joined(0, x.local(), whole).map(Some)
}

struct Boxes<'a> {
    key: Key,
    dims: &'a [IndexSet],
    f: &'a dyn Fn(&Tensor, RegionKey) -> Result<Tensor>,
}

impl Boxes<'_> {
    /// The results for the boxes of `x`, which has one range of each dim before `dim`.
    fn joined(&self, dim: usize, x: Tensor, region: Region) -> Result<Tensor> {
        let Some(own) = self.dims.get(dim) else {
            return (self.f)(&x, self.key.within(&region));
        };
        let mut end = 0;
        let mut parts = Vec::with_capacity(own.ranges().len());
        for range in own.ranges() {
            let local: Range<usize> = end..end + range.len();
            end = local.end;
            let part = x.slice(dim as isize, local)?;
            parts.push(self.joined(dim + 1, part, region.slice(dim, range.clone())?)?);
        }
        match parts.len() {
            1 => Ok(parts.remove(0)),
            _ => ops::concat(&parts.iter().collect::<Vec<_>>(), dim as isize),
        }
    }
}
