//! Which axes cut which dims in which order, and which hold partial values: a place without its
//! names.
//!
//! There is one arrangement for all ways to write the same place: cuts are sorted by dim, of one
//! dim the outermost first; axes of one rank and axes that replicate are not mentioned; ragged
//! sizes that are the even ones are even.

use std::collections::BTreeSet;
use std::ops::Range;

use smallvec::SmallVec;

use crate::{Division, Placement, Reduction};

/// What an arrangement is read with: the extents of a tensor and the sizes of a mesh's axes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame<'a> {
    pub(crate) shape: &'a [usize],
    pub(crate) sizes: &'a [usize],
}

/// One axis that cuts one dim.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Cut {
    pub(crate) dim: usize,
    pub(crate) axis: usize,
    pub(crate) division: Division,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Arrangement {
    cuts: SmallVec<[Cut; 4]>,
    /// By axis.
    partials: SmallVec<[(usize, Reduction); 2]>,
}

impl Arrangement {
    pub(crate) fn cuts(&self) -> &[Cut] {
        &self.cuts
    }

    pub(crate) fn partials(&self) -> &[(usize, Reduction)] {
        &self.partials
    }

    /// The cuts of one dim, the outermost first.
    pub(crate) fn cuts_of(&self, dim: usize) -> &[Cut] {
        let begin = self.cuts.partition_point(|cut| cut.dim < dim);
        let end = self.cuts.partition_point(|cut| cut.dim <= dim);
        &self.cuts[begin..end]
    }

    pub(crate) fn cut_by(&self, axis: usize) -> Option<&Cut> {
        self.cuts.iter().find(|cut| cut.axis == axis)
    }

    pub(crate) fn reduction(&self, axis: usize) -> Option<Reduction> {
        let found = self.partials.iter().find(|(other, _)| *other == axis);
        found.map(|(_, reduction)| *reduction)
    }

    pub(crate) fn is_replicated(&self, axis: usize) -> bool {
        self.cut_by(axis).is_none() && self.reduction(axis).is_none()
    }

    pub(crate) fn placement(&self, axis: usize) -> Placement {
        match (self.cut_by(axis), self.reduction(axis)) {
            (Some(cut), _) => Placement::Shard(cut.dim, cut.division.clone()),
            (None, Some(reduction)) => Placement::Partial(reduction),
            (None, None) => Placement::Replicate,
        }
    }

    /// The cuts before that of `axis` in its dim.
    pub(crate) fn outside_of(&self, axis: usize) -> &[Cut] {
        let Some(cut) = self.cut_by(axis) else {
            return &[];
        };
        let cuts = self.cuts_of(cut.dim);
        let at = cuts.iter().position(|cut| cut.axis == axis);
        &cuts[..at.unwrap_or(0)]
    }

    /// All axes in an order in which those that cut one dim stand as they cut it, and the others as
    /// in the mesh.
    pub(crate) fn order(&self, axes: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..axes).collect();
        let dims: BTreeSet<usize> = self.cuts.iter().map(|cut| cut.dim).collect();
        for dim in dims {
            let explicit = self.cuts_of(dim);
            let mut slots: Vec<usize> = explicit.iter().map(|cut| cut.axis).collect();
            slots.sort_unstable();
            for (slot, cut) in slots.into_iter().zip(explicit) {
                order[slot] = cut.axis;
            }
        }
        order
    }

    /// With one cut more, inside of those that its dim has, if its division fits.
    pub(crate) fn push(&mut self, cut: Cut, frame: Frame) -> Result<(), Misfit> {
        let ranks = frame.sizes[cut.axis];
        let division = self.fitted(&cut.division, cut.dim, ranks, frame)?;
        if ranks > 1 {
            let at = self.cuts.partition_point(|other| other.dim <= cut.dim);
            self.cuts.insert(at, Cut { division, ..cut });
        }
        Ok(())
    }

    /// Without the cut of `axis`.
    pub(crate) fn remove(&mut self, axis: usize) {
        self.cuts.retain(|cut| cut.axis != axis);
    }

    pub(crate) fn make_partial(&mut self, axis: usize, reduction: Reduction, frame: Frame) {
        if frame.sizes[axis] > 1 {
            let at = self.partials.partition_point(|(other, _)| *other < axis);
            self.partials.insert(at, (axis, reduction));
        }
    }

    pub(crate) fn reduce(&mut self, axis: usize) {
        self.partials.retain(|(other, _)| *other != axis);
    }

    /// The partial axis that another, of this reduction, cannot stand beside: maxima of sums are
    /// not sums of maxima.
    pub(crate) fn conflict(&self, reduction: Reduction) -> Option<(usize, Reduction)> {
        let linear = |reduction| matches!(reduction, Reduction::Sum | Reduction::Avg);
        let commutes = |other| other == reduction || (linear(other) && linear(reduction));
        let mut partials = self.partials.iter().copied();
        partials.find(|(_, other)| !commutes(*other))
    }

    fn fitted(
        &self,
        division: &Division,
        dim: usize,
        ranks: usize,
        frame: Frame,
    ) -> Result<Division, Misfit> {
        let Division::Ragged(sizes) = division else {
            return Ok(Division::Even);
        };
        if sizes.len() != ranks {
            return Err(Misfit::Count);
        }
        let mut pieces = self.pieces(dim, frame).into_iter();
        let (Some(extent), None) = (pieces.next(), pieces.next()) else {
            return Err(Misfit::Pieces);
        };
        let sum = sizes
            .iter()
            .try_fold(0usize, |sum, size| sum.checked_add(*size));
        if sum != Some(extent) {
            return Err(Misfit::Sum);
        }
        let even =
            |(at, size): (usize, &usize)| Division::Even.part(extent, ranks, at).len() == *size;
        Ok(match sizes.iter().enumerate().all(even) {
            true => Division::Even,
            false => division.clone(),
        })
    }

    /// The extents that the pieces of a dim have.
    pub(crate) fn pieces(&self, dim: usize, frame: Frame) -> BTreeSet<usize> {
        let mut extents = BTreeSet::from([frame.shape[dim]]);
        for cut in self.cuts_of(dim) {
            let ranks = frame.sizes[cut.axis];
            let parts = |extent: usize| {
                (0..ranks).map(move |at| cut.division.part(extent, ranks, at).len())
            };
            extents = extents.into_iter().flat_map(parts).collect();
        }
        extents
    }

    /// What of a dim the rank at this coordinate of the mesh has. An empty piece begins and ends
    /// where the dim ends.
    pub(crate) fn range(&self, dim: usize, coordinate: &[usize], frame: Frame) -> Range<usize> {
        let extent = frame.shape[dim];
        let mut range = 0..extent;
        for cut in self.cuts_of(dim) {
            let ranks = frame.sizes[cut.axis];
            let part = cut.division.part(range.len(), ranks, coordinate[cut.axis]);
            range = range.start + part.start..range.start + part.end;
        }
        match range.is_empty() {
            true => extent..extent,
            false => range,
        }
    }

    /// The extent of the largest piece of a dim.
    pub(crate) fn largest(&self, dim: usize, frame: Frame) -> usize {
        let largest = |extent: usize, cut: &Cut| match &cut.division {
            Division::Even => extent.div_ceil(frame.sizes[cut.axis]),
            Division::Ragged(sizes) => sizes.iter().copied().max().unwrap_or(0),
        };
        self.cuts_of(dim).iter().fold(frame.shape[dim], largest)
    }

    /// How many elements the largest box has.
    pub(crate) fn largest_len(&self, frame: Frame) -> u64 {
        let dims = 0..frame.shape.len();
        dims.map(|dim| self.largest(dim, frame) as u64).product()
    }
}

/// Why ragged sizes do not divide the pieces of a dim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Misfit {
    /// Not as many as the axis has ranks.
    Count,
    /// They do not add up to a piece's extent.
    Sum,
    /// The pieces are not of one extent.
    Pieces,
}

impl Division {
    /// What the rank at `index` of `ranks` has of `extent`. The sizes of a ragged division are
    /// those of an axis of `ranks` ranks.
    pub(crate) fn part(&self, extent: usize, ranks: usize, index: usize) -> Range<usize> {
        match self {
            Division::Even => {
                let chunk = extent.div_ceil(ranks);
                (chunk * index).min(extent)..(chunk * (index + 1)).min(extent)
            }
            Division::Ragged(sizes) => {
                let start: usize = sizes[..index].iter().sum();
                start..start + sizes[index]
            }
        }
    }
}
