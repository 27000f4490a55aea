//! Boxes of a global tensor, and tensors assembled from the parts in boxes.

use std::ops::Range;

use meshgrad_mesh::Sharding;
use meshgrad_runtime::{Result, Tensor, ops};

/// The range of each dim.
pub(super) type Region = Vec<Range<usize>>;

/// The region of `rank`, which is in the mesh.
pub(super) fn region(sharding: &Sharding, rank: usize) -> Region {
    sharding.ranges(rank).unwrap_or_default()
}

/// The elements that are in both; empty in some dim if there are none.
pub(super) fn intersection(a: &[Range<usize>], b: &[Range<usize>]) -> Region {
    let both = a.iter().zip(b);
    both.map(|(a, b)| {
        let start = a.start.max(b.start);
        start..a.end.min(b.end).max(start)
    })
    .collect()
}

pub(super) fn elements(region: &[Range<usize>]) -> usize {
    region.iter().map(Range::len).product()
}

pub(super) fn extents(region: &[Range<usize>]) -> Vec<usize> {
    region.iter().map(Range::len).collect()
}

/// The part `inner` of `x`, which has the region `outer`. Copies nothing.
pub(super) fn part(x: &Tensor, outer: &[Range<usize>], inner: &[Range<usize>]) -> Result<Tensor> {
    let mut part = x.clone();
    for (dim, (outer, inner)) in outer.iter().zip(inner).enumerate() {
        if inner.is_empty() {
            part = part.slice(dim as isize, 0..0)?;
        } else if inner != outer {
            let range = inner.start - outer.start..inner.end - outer.start;
            part = part.slice(dim as isize, range)?;
        }
    }
    Ok(part)
}

/// The parts `regions` of `x`, one after the other, each in row-major order: [elements].
pub(super) fn flattened(x: &Tensor, outer: &[Range<usize>], regions: &[Region]) -> Result<Tensor> {
    let flat = |region: &Region| ops::reshape(&part(x, outer, region)?, &[elements(region)]);
    let parts = regions.iter().map(flat).collect::<Result<Vec<Tensor>>>()?;
    match &parts[..] {
        [only] => Ok(only.clone()),
        many => ops::concat(&many.iter().collect::<Vec<_>>(), 0),
    }
}

/// The tensor of `whole` from the parts of `regions`, which form a grid and are one after the other
/// in `flat`.
pub(super) fn assembled(
    flat: &Tensor,
    regions: &[Region],
    whole: &[Range<usize>],
) -> Result<Tensor> {
    let mut parts = Vec::new();
    let mut start = 0;
    for region in regions.iter().filter(|region| elements(region) > 0) {
        let end = start + elements(region);
        let part = ops::reshape(&flat.slice(0, start..end)?, &extents(region))?;
        parts.push((region.clone(), part));
        start = end;
    }
    match parts.is_empty() {
        true => ops::reshape(&flat.slice(0, 0..0)?, &extents(whole)),
        false => joined(parts, 0),
    }
}

/// The tensor of a grid of parts that fill all dims before `dim` together.
pub(super) fn joined(mut parts: Vec<(Region, Tensor)>, dim: usize) -> Result<Tensor> {
    if parts.len() == 1 {
        return Ok(parts.remove(0).1);
    }
    parts.sort_by_key(|(region, _)| region[dim].start);
    let mut rows = Vec::new();
    while !parts.is_empty() {
        let start = parts[0].0[dim].start;
        let end = parts.partition_point(|(region, _)| region[dim].start == start);
        let row = parts.drain(..end).collect();
        rows.push(joined(row, dim + 1)?);
    }
    match &rows[..] {
        [only] => Ok(only.clone()),
        many => ops::concat(&many.iter().collect::<Vec<_>>(), dim as isize),
    }
}
