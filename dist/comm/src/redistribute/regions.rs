//! Regions of a global tensor, and tensors assembled from the parts in regions.

use std::ops::Range;

use meshgrad_mesh::{IndexSet, Region, Sharding};
use meshgrad_runtime::{Error, Kind, Result, Tensor, ops};

/// The region of `rank`.
///
/// # Errors
/// [`Error::Argument`] when the rank is not in the mesh.
pub(super) fn region(sharding: &Sharding, rank: usize) -> Result<Region> {
    sharding.region(rank).ok_or_else(|| Error::Argument {
        op: "redistribute",
        problem: format!("rank {rank} is not in the mesh {}", sharding.mesh()),
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
    let slices: Vec<Tensor> = positions
        .ranges()
        .iter()
        .map(slice)
        .collect::<Result<_>>()?;
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
pub(super) fn joined(mut parts: Vec<(Region, Tensor)>) -> Result<Tensor> {
    if parts.len() == 1 {
        return Ok(parts.remove(0).1);
    }
    let mut boxes = Vec::new();
    for (region, x) in &parts {
        for ranges in region.boxes() {
            let inner = Region::of_box(&ranges);
            boxes.push((ranges, part(x, region, &inner)?));
        }
    }
    joined_boxes(boxes, 0)
}

/// The tensor of a grid of boxes that fill all dims before `dim` together.
fn joined_boxes(mut boxes: Vec<(Vec<Range<usize>>, Tensor)>, dim: usize) -> Result<Tensor> {
    if boxes.len() == 1 {
        return Ok(boxes.remove(0).1);
    }
    boxes.sort_by_key(|(ranges, _)| ranges[dim].start);
    let mut rows = Vec::new();
    while !boxes.is_empty() {
        let start = boxes[0].0[dim].start;
        let end = boxes.partition_point(|(ranges, _)| ranges[dim].start == start);
        let row = boxes.drain(..end).collect();
        rows.push(joined_boxes(row, dim + 1)?);
    }
    concatenated(rows, dim)
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
            // Inside of `with_mesh`, new zeros have a sharding.
            Ok::<_, Error>(Tensor::zeros(x.device(), &shape, x.dtype(), Kind::Value)?.local())
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
