//! Heads of any extents and alignment: one warp loops over each head.

use super::head::HeadCoordinates;
use super::{Shape, Style};
use crate::assembler::{GlobalAddress, Kernel, Pred, U32};
use crate::dtype::Dtype;

/// Threads per CTA: one head per warp.
pub(super) const LOOP_THREADS: u32 = 128;

/// The head of this warp.
pub(crate) struct HeadLoop<'k> {
    k: &'k Kernel,
    style: Style,
    pub(crate) coordinates: HeadCoordinates<'k>,
    /// Whether this thread stores the scalars of the head.
    pub(crate) leads: Pred<'k>,
    pub(crate) exists: Pred<'k>,
    /// 0 if the head does not exist.
    pairs: U32<'k>,
    /// 0 if the head does not exist.
    features: U32<'k>,
    /// Pairs per head, even if this one does not exist.
    all_pairs: U32<'k>,
}

impl<'k> HeadLoop<'k> {
    #[track_caller]
    pub(crate) fn new(k: &'k Kernel, style: Style, shape: &Shape<'k>) -> HeadLoop<'k> {
        let index = k.cta().mad(LOOP_THREADS / 32, k.warp());
        let exists = index.lt(shape.rows);
        HeadLoop {
            k,
            style,
            coordinates: HeadCoordinates::new(shape, index),
            leads: exists & k.lane().equals(0),
            exists,
            pairs: exists.select(shape.pairs, 0),
            features: exists.select(shape.features, 0),
            all_pairs: shape.pairs,
        }
    }

    /// Calls `body` with the two features and the index of each pair of this thread.
    #[track_caller]
    pub(crate) fn each_pair(&self, body: impl FnOnce([U32<'k>; 2], U32<'k>)) {
        self.k.for_range(self.k.lane(), self.pairs, 32, |pair| {
            let features = match self.style {
                Style::Half => [pair, pair + self.all_pairs],
                Style::Interleaved => [pair << 1, (pair << 1) + 1],
            };
            body(features, pair);
        });
    }

    /// Calls `body` with each pass-through feature of this thread.
    #[track_caller]
    pub(crate) fn each_passed(&self, body: impl FnOnce(U32<'k>)) {
        let first = (self.all_pairs << 1) + self.k.lane();
        self.k.for_range(first, self.features, 32, body);
    }

    /// Calls `body` with each feature of this thread.
    #[track_caller]
    pub(crate) fn each_feature(&self, body: impl FnOnce(U32<'k>)) {
        self.k.for_range(self.k.lane(), self.features, 32, body);
    }
}

/// The address of an element of a head, a table row or a weight.
#[track_caller]
pub(crate) fn element<'k>(
    dtype: Dtype,
    start: GlobalAddress<'k>,
    index: U32<'k>,
) -> GlobalAddress<'k> {
    start.byte_add(index.mul_wide(dtype.size()))
}
