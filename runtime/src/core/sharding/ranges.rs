//! Whether a rank's ranges of a dim repeat, so that one strided layout describes them.

use std::ops::Range;

use meshgrad_mesh::{IndexSet, Sharding};

/// Whether the ranges of each dim are equally long and equally far apart on every rank.
pub(super) fn is_regular(sharding: &Sharding) -> bool {
    let mut dims = 0..sharding.shape().len();
    if dims.all(|dim| sharding.has_one_range(dim)) {
        return true;
    }
    let ranks = sharding.mesh().ranks();
    let mut regions = ranks.into_iter().filter_map(|rank| sharding.region(rank));
    regions.all(|region| region.dims().iter().all(|own| repetition(own).is_some()))
}

/// The number of ranges of equal length, and the distance between their starts.
pub(super) fn repetition(indices: &IndexSet) -> Option<(usize, usize)> {
    let ranges = indices.ranges();
    let [first, second, ..] = ranges else {
        return Some((1, 0));
    };
    let period = second.start - first.start;
    let is_next = |pair: &[Range<usize>]| {
        pair[1].start - pair[0].start == period && pair[1].len() == first.len()
    };
    let is_equal = ranges.windows(2).all(is_next);
    is_equal.then_some((ranges.len(), period))
}
