//! The placements of a tensor on all axes, in canonical form and without axis names.
//!
//! Equivalent placements have one canonical form. Shards are sorted by dim, the outermost first.
//! Axes of one rank and axes that replicate are omitted. Divisions that equal a simpler one are
//! stored as that.

use std::collections::BTreeSet;

use meshgrad_error::Result;
use smallvec::SmallVec;

use crate::division::DivisionError;
use crate::{Division, IndexSet, Placement, Reduction};

/// The shape of a tensor and the sizes of a mesh's axes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Geometry<'a> {
    pub(crate) shape: &'a [usize],
    pub(crate) axis_sizes: &'a [usize],
}

/// An axis that shards a dim.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct AxisShard {
    pub(crate) dim: usize,
    pub(crate) axis: usize,
    pub(crate) division: Division,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Placements {
    shards: SmallVec<[AxisShard; 4]>,
    /// Sorted by axis.
    partials: SmallVec<[(usize, Reduction); 2]>,
}

impl Placements {
    pub(crate) fn shards(&self) -> &[AxisShard] {
        &self.shards
    }

    pub(crate) fn partials(&self) -> &[(usize, Reduction)] {
        &self.partials
    }

    /// The shards of one dim, the outermost first.
    pub(crate) fn shards_of(&self, dim: usize) -> &[AxisShard] {
        let begin = self.shards.partition_point(|shard| shard.dim < dim);
        let end = self.shards.partition_point(|shard| shard.dim <= dim);
        &self.shards[begin..end]
    }

    pub(crate) fn shard_on(&self, axis: usize) -> Option<&AxisShard> {
        self.shards.iter().find(|shard| shard.axis == axis)
    }

    pub(crate) fn reduction(&self, axis: usize) -> Option<Reduction> {
        let found = self.partials.iter().find(|(other, _)| *other == axis);
        found.map(|(_, reduction)| *reduction)
    }

    pub(crate) fn is_replicated(&self, axis: usize) -> bool {
        self.shard_on(axis).is_none() && self.reduction(axis).is_none()
    }

    pub(crate) fn placement(&self, axis: usize) -> Placement {
        match (self.shard_on(axis), self.reduction(axis)) {
            (Some(shard), _) => Placement::Shard(shard.dim, shard.division.clone()),
            (None, Some(reduction)) => Placement::Partial(reduction),
            (None, None) => Placement::Replicate,
        }
    }

    /// The outer shards of the dim that `axis` shards.
    pub(crate) fn outer_shards(&self, axis: usize) -> &[AxisShard] {
        let Some(shard) = self.shard_on(axis) else {
            return &[];
        };
        let shards = self.shards_of(shard.dim);
        let at = shards.iter().position(|shard| shard.axis == axis);
        &shards[..at.unwrap_or(0)]
    }

    /// All axes in explicit order: axes that shard the same dim are ordered from the outermost to
    /// the innermost, other axes as in the mesh.
    pub(crate) fn order(&self, axes: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..axes).collect();
        let dims: BTreeSet<usize> = self.shards.iter().map(|shard| shard.dim).collect();
        for dim in dims {
            let explicit = self.shards_of(dim);
            let mut slots: Vec<usize> = explicit.iter().map(|shard| shard.axis).collect();
            slots.sort_unstable();
            for (slot, shard) in slots.into_iter().zip(explicit) {
                order[slot] = shard.axis;
            }
        }
        order
    }

    /// Adds a shard inside the existing shards of its dim.
    pub(crate) fn push(
        &mut self,
        shard: AxisShard,
        geometry: Geometry,
    ) -> Result<(), DivisionError> {
        let ranks = geometry.axis_sizes[shard.axis];
        let division = match &shard.division {
            Division::Even => Division::Even,
            division => division.fitted(&self.shard_extents(shard.dim, geometry), ranks)?,
        };
        if ranks > 1 {
            let at = self.shards.partition_point(|other| other.dim <= shard.dim);
            self.shards.insert(at, AxisShard { division, ..shard });
        }
        Ok(())
    }

    pub(crate) fn without_partials(&self) -> Placements {
        Placements { shards: self.shards.clone(), partials: SmallVec::new() }
    }

    /// Removes the shard of `axis`.
    pub(crate) fn remove(&mut self, axis: usize) {
        self.shards.retain(|shard| shard.axis != axis);
    }

    pub(crate) fn make_partial(&mut self, axis: usize, reduction: Reduction, geometry: Geometry) {
        if geometry.axis_sizes[axis] > 1 {
            let at = self.partials.partition_point(|(other, _)| *other < axis);
            self.partials.insert(at, (axis, reduction));
        }
    }

    pub(crate) fn reduce(&mut self, axis: usize) {
        self.partials.retain(|(other, _)| *other != axis);
    }

    /// An axis whose reduction does not commute with this one, such as a maximum with a sum.
    pub(crate) fn conflict(&self, reduction: Reduction) -> Option<(usize, Reduction)> {
        let linear = |reduction| matches!(reduction, Reduction::Sum | Reduction::Avg);
        let commutes = |other| other == reduction || (linear(other) && linear(reduction));
        let mut partials = self.partials.iter().copied();
        partials.find(|(_, other)| !commutes(*other))
    }

    /// The distinct extents of the shards of a dim.
    pub(crate) fn shard_extents(&self, dim: usize, geometry: Geometry) -> BTreeSet<usize> {
        let mut extents = BTreeSet::from([geometry.shape[dim]]);
        for shard in self.shards_of(dim) {
            let ranks = geometry.axis_sizes[shard.axis];
            let sizes = |extent: usize| shard.division.sizes(extent, ranks);
            extents = extents.into_iter().flat_map(sizes).collect();
        }
        extents
    }

    /// The indices of a dim held by the rank at this mesh coordinate. An empty shard is the empty
    /// range at the end of the dim.
    pub(crate) fn indices(&self, dim: usize, coordinate: &[usize], geometry: Geometry) -> IndexSet {
        let extent = geometry.shape[dim];
        let mut indices = IndexSet::from(0..extent);
        for shard in self.shards_of(dim) {
            let ranks = geometry.axis_sizes[shard.axis];
            let positions = shard.division.part(indices.len(), ranks, coordinate[shard.axis]);
            indices = indices.select(&positions, extent);
        }
        indices
    }

    /// The indices of a dim held by each rank along the axes that shard it.
    pub(crate) fn parts(&self, dim: usize, geometry: Geometry) -> Vec<IndexSet> {
        let extent = geometry.shape[dim];
        let mut parts = vec![IndexSet::from(0..extent)];
        for shard in self.shards_of(dim) {
            let ranks = geometry.axis_sizes[shard.axis];
            let part = |whole: &IndexSet, at| {
                let positions = shard.division.part(whole.len(), ranks, at);
                whole.select(&positions, extent)
            };
            let of = |whole: &IndexSet| (0..ranks).map(|at| part(whole, at)).collect::<Vec<_>>();
            parts = parts.iter().flat_map(of).collect();
        }
        parts
    }

    /// The extent of the largest shard of a dim.
    pub(crate) fn largest(&self, dim: usize, geometry: Geometry) -> usize {
        let largest = |extent: usize, shard: &AxisShard| {
            let ranks = geometry.axis_sizes[shard.axis];
            match &shard.division {
                Division::Even => extent.div_ceil(ranks),
                division => {
                    let sizes = division.sizes(extent, ranks).into_iter();
                    sizes.max().unwrap_or(0)
                }
            }
        };
        self.shards_of(dim).iter().fold(geometry.shape[dim], largest)
    }

    /// The number of elements of the largest local shape.
    pub(crate) fn largest_len(&self, geometry: Geometry) -> u64 {
        let dims = 0..geometry.shape.len();
        dims.map(|dim| self.largest(dim, geometry) as u64).product()
    }
}
