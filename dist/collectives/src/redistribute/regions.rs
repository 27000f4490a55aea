//! Regions of a global tensor, and tensors assembled from the parts in regions.

use std::ops::Range;

use meshgrad_error::error;
use meshgrad_mesh::{IndexSet, Region, Sharding};
use meshgrad_runtime::{Kind, Result, Tensor, ops};

/// The region of `rank`.
///
/// # Errors
/// When the rank is not in the mesh.
pub(super) fn region(sharding: &Sharding, rank: usize) -> Result<Region> {
    sharding.region(rank).ok_or_else(|| {
        error!(Invalid, "redistribute: rank {rank} is not in the mesh {}", sharding.mesh())
    })
}

/// The part `inner` of `x`, which has the region `outer`. Copies nothing, unless the part has several
/// ranges of a dim.
pub(super) fn part(x: &Tensor, outer: &Region, inner: &Region) -> Result<Tensor> {
    let mut part = x.clone();
    for (dim, (outer, inner)) in outer.dims().iter().zip(inner.dims()).enumerate() {
        if inner != outer {
            part = at_positions(&part, dim, &outer.positions(inner))?;
        }
    }
    Ok(part)
}

fn at_positions(x: &Tensor, dim: usize, positions: &IndexSet) -> Result<Tensor> {
    let slice = |range: &Range<usize>| x.slice(dim as isize, range.clone());
    let slices: Vec<Tensor> = positions.ranges().iter().map(slice).collect::<Result<_>>()?;
    concatenated(slices, dim)
}

/// The parts `regions` of `x`, one after the other, each in row-major order: [elements].
pub(super) fn flattened(x: &Tensor, outer: &Region, regions: &[Region]) -> Result<Tensor> {
    let flat = |region: &Region| ops::reshape(&part(x, outer, region)?, &[region.elements()]);
    let parts = regions.iter().map(flat).collect::<Result<Vec<Tensor>>>()?;
    concatenated(parts, 0)
}

/// The tensor of `whole` from the parts of `regions`, which form a grid and are one after the other
/// in `flat`.
pub(super) fn assembled(flat: &Tensor, regions: &[Region], whole: &Region) -> Result<Tensor> {
    let mut parts = Vec::new();
    let mut start = 0;
    for region in regions.iter().filter(|region| !region.is_empty()) {
        let end = start + region.elements();
        let part = ops::reshape(&flat.slice(0, start..end)?, &region.extents())?;
        parts.push((region.clone(), part));
        start = end;
    }
    match parts.is_empty() {
        true => ops::reshape(&flat.slice(0, 0..0)?, &whole.extents()),
        false => joined(parts),
    }
}

/// The tensor of a grid of parts.
pub(super) fn joined(parts: Vec<(Region, Tensor)>) -> Result<Tensor> {
    joined_along(parts, 0)
}

/// The tensor of a grid of parts that have the same indices of all dims before `dim`.
fn joined_along(mut parts: Vec<(Region, Tensor)>, dim: usize) -> Result<Tensor> {
    if parts.len() == 1 {
        return Ok(parts.remove(0).1);
    }
    let start = |region: &Region| region.dims()[dim].ranges()[0].start;
    parts.sort_by_key(|(region, _)| start(region));
    let (mut rows, mut ranges) = (Vec::new(), Vec::new());
    while !parts.is_empty() {
        let first = parts[0].0.clone();
        let end = parts.partition_point(|(region, _)| start(region) == start(&first));
        let row = parts.drain(..end).collect();
        rows.push(joined_along(row, dim + 1)?);
        ranges.extend_from_slice(first.dims()[dim].ranges());
    }
    in_order(&concatenated(rows, dim)?, dim, &ranges)
}

/// `x`, of which dim `dim` has the indices of `ranges`, with these indices in ascending order.
fn in_order(x: &Tensor, dim: usize, ranges: &[Range<usize>]) -> Result<Tensor> {
    if ranges.is_sorted_by_key(|range| range.start) {
        return Ok(x.clone());
    }
    let indices: Vec<usize> = ranges.iter().cloned().flatten().collect();
    let mut positions: Vec<i64> = (0..indices.len() as i64).collect();
    positions.sort_by_key(|position| indices[*position as usize]);
    let positions = Tensor::from_slice(x.device(), &[positions.len()], &positions)?;
    ops::index_select(x, dim as isize, &positions)
}

/// `x`, of the region `inner`, with zeros in the rest of `outer`.
pub(super) fn padded(x: &Tensor, inner: &Region, outer: &Region) -> Result<Tensor> {
    let mut padded = x.clone();
    for (dim, (inner, outer)) in inner.dims().iter().zip(outer.dims()).enumerate() {
        if inner == outer {
            continue;
        }
        let zeros = |extent: usize| {
            let shape = padded.shape().with(dim, extent);
            Tensor::zeros(x.device(), &shape, x.dtype(), Kind::Value)
        };
        let (mut pieces, mut taken, mut filled) = (Vec::new(), 0, 0);
        for range in outer.positions(inner).ranges() {
            pieces.push(zeros(range.start - filled)?);
            pieces.push(padded.slice(dim as isize, taken..taken + range.len())?);
            (taken, filled) = (taken + range.len(), range.end);
        }
        pieces.push(zeros(outer.len() - filled)?);
        padded = concatenated(pieces, dim)?;
    }
    Ok(padded)
}

fn concatenated(mut parts: Vec<Tensor>, dim: usize) -> Result<Tensor> {
    match parts.len() {
        1 => Ok(parts.remove(0)),
        _ => ops::concat(&parts.iter().collect::<Vec<_>>(), dim as isize),
    }
}
