//! Chunks of a redistribution: parts of a tensor that can be redistributed one after another.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::{IndexSet, Region, Sharding};

/// A tensor's rows in chunks, of which each can be redistributed alone. A row is a slice along the
/// last dim. Every rank has about an equal share of each chunk, before and after.
///
/// The first dim that has more than one index in a shard is divided: the batch, or the sequence if
/// the batch has one row. The rows of a chunk are then few ranges in the memory of a rank.
///
/// ```
/// use meshgrad_mesh::{Chunks, Mesh, Placement, Sharding};
///
/// let mesh = Mesh::new(&[2], &["tp"])?;
/// let from = Sharding::new(&mesh, [("tp", Placement::shard(1))], &[1, 8, 4])?;
/// let to = Sharding::replicated(&mesh, &[1, 8, 4])?;
///
/// let chunks = Chunks::new(&from, &to, 2);
/// let part = |chunk, rank| chunks.part(chunk, &from.region(rank).unwrap()).to_string();
/// assert_eq!([part(0, 0), part(0, 1)], ["[0..1, 0..2, 0..4]", "[0..1, 4..6, 0..4]"]);
/// assert_eq!([part(1, 0), part(1, 1)], ["[0..1, 2..4, 0..4]", "[0..1, 6..8, 0..4]"]);
/// # Ok::<(), meshgrad_mesh::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunks {
    dim: usize,
    /// The indices of dim `dim` in each chunk; `None` for a single chunk.
    indices: Option<Vec<IndexSet>>,
}

impl Chunks {
    /// Up to `count` chunks of a tensor that is redistributed between two shardings; fewer if no
    /// rank has that many indices of the divided dim.
    pub fn new(from: &Sharding, to: &Sharding, count: usize) -> Chunks {
        for dim in 0..from.shape().len().saturating_sub(1) {
            let pieces = pieces(from, to, dim);
            let longest = pieces.iter().map(Range::len).max().unwrap_or(0);
            if longest > 1 && count > 1 {
                let (count, extent) = (count.min(longest), from.shape()[dim]);
                let chunk = |at| {
                    let share = pieces.iter().map(|piece| share(piece, at, count));
                    IndexSet::new(share, extent)
                };
                let indices = Some((0..count).map(chunk).collect());
                return Chunks { dim, indices };
            }
        }
        Chunks { dim: 0, indices: None }
    }

    /// The number of chunks, at least 1.
    #[allow(clippy::len_without_is_empty)] // There is always one.
    pub fn len(&self) -> usize {
        self.indices.as_ref().map_or(1, Vec::len)
    }

    /// The dim that is divided.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// The elements of a region of the tensor that are in a chunk.
    pub fn part(&self, chunk: usize, region: &Region) -> Region {
        let Some(indices) = &self.indices else {
            return region.clone();
        };
        let dims = region.dims().iter().enumerate();
        Region::new(dims.map(|(dim, own)| match dim == self.dim {
            true => own.intersection(&indices[chunk]),
            false => own.clone(),
        }))
    }

    /// The rows of a chunk in the memory of a rank that has `region`: ranges of the rows of its
    /// part, which is stored in row-major order. The chunk has them in this order.
    pub fn rows(&self, chunk: usize, region: &Region) -> Vec<Range<usize>> {
        let extents = region.extents();
        let Some((_, leading)) = extents.split_last() else {
            return Vec::new();
        };
        let (outer, own) = (leading[..self.dim].iter().product(), leading[self.dim]);
        let inner: usize = leading[self.dim + 1..].iter().product();
        let positions = match &self.indices {
            Some(indices) => region.dims()[self.dim].positions(&indices[chunk]),
            None => IndexSet::from(0..own),
        };
        let at = |outer: usize, index: usize| (outer * own + index) * inner;
        let of = |outer| {
            let ranges = positions.ranges().iter();
            ranges.map(move |range| at(outer, range.start)..at(outer, range.end))
        };
        let rows = (0..outer).flat_map(of);
        rows.filter(|rows| !rows.is_empty()).collect()
    }
}

/// The longest ranges of dim `dim` that no rank has only a part of, before or after.
fn pieces(from: &Sharding, to: &Sharding, dim: usize) -> Vec<Range<usize>> {
    let mut ends = BTreeSet::from([0, from.shape()[dim]]);
    for part in [from, to].into_iter().flat_map(|it| it.parts(dim)) {
        let ranges = part.ranges().iter();
        ends.extend(ranges.flat_map(|range| [range.start, range.end]));
    }
    let ends: Vec<usize> = ends.into_iter().collect();
    ends.windows(2).map(|pair| pair[0]..pair[1]).collect()
}

/// Share `at` of `count` about equal ones.
fn share(range: &Range<usize>, at: usize, count: usize) -> Range<usize> {
    let end = |at: usize| range.start + range.len() * at / count;
    end(at)..end(at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mesh, Placement, Reduction};

    /// Chunks divide the part of every rank, before and after, in order and without a gap.
    #[test]
    fn chunks_are_a_division_of_every_part() {
        let mesh = Mesh::new(&[2, 3], &["dp", "tp"]).unwrap();
        let lists = [
            vec![("tp", Placement::shard(1))],
            vec![("tp", Placement::head_and_tail(1))],
            vec![("dp", Placement::shard(1)), ("tp", Placement::shard(1))],
            vec![("dp", Placement::shard(0)), ("tp", Placement::shard(1))],
            vec![("tp", Placement::Partial(Reduction::Sum))],
            vec![],
        ];
        for shape in [[1, 13, 2], [3, 7, 2], [1, 1, 2], [0, 4, 2], [5, 0, 2]] {
            let sharding = |list| Sharding::new(&mesh, list, &shape).unwrap();
            let shardings: Vec<Sharding> = lists.iter().map(sharding).collect();
            for (from, to) in shardings.iter().zip(shardings.iter().rev()) {
                for count in 1..5 {
                    let chunks = Chunks::new(from, to, count);
                    assert!((1..=count).contains(&chunks.len()));
                    for sharding in [from, to] {
                        for rank in mesh.ranks() {
                            check(&chunks, sharding, rank);
                        }
                    }
                }
            }
        }
    }

    fn check(chunks: &Chunks, sharding: &Sharding, rank: usize) {
        let region = sharding.region(rank).unwrap();
        let mut rows = Vec::new();
        for chunk in 0..chunks.len() {
            let part = chunks.part(chunk, &region);
            let own: Vec<usize> = chunks.rows(chunk, &region).into_iter().flatten().collect();
            assert_eq!(part.elements(), own.len() * sharding.shape()[2]);
            rows.extend(own);
        }
        rows.sort_unstable();
        let all = region.elements() / sharding.shape()[2];
        assert_eq!(rows, (0..all).collect::<Vec<_>>());
    }
}
