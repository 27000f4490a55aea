//! Strided copies: the result of tracing an expression.

use smallvec::SmallVec;

use super::ids::{Expr, SourceId};
use super::scalar::{ElementOp, Scalar};

/// The origin of the elements of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Leaf {
    /// A tensor that is read.
    Source(SourceId),
    /// A tensor that is computed first, row-major.
    Computed(Expr),
    /// One element, repeated: source offset and strides are unused.
    Fill(Scalar),
}

/// A loop of a copy: the number of elements, and their distance on both sides, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Loop {
    /// The number of iterations.
    pub count: u64,
    /// Distance between elements in the source.
    pub source_stride: u64,
    /// Distance between elements in the destination.
    pub destination_stride: u64,
}

/// Nearly every copy has one loop: a contiguous range, or a column.
pub(crate) type Loops = SmallVec<[Loop; 2]>;

/// A copy of some elements to their destination. Offsets and strides are in elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ElementCopy {
    /// The origin of its elements.
    pub from: Leaf,
    /// The first element that is read.
    pub source_offset: u64,
    /// The first element that is written.
    pub destination_offset: u64,
    pub(crate) loops: Loops,
    /// Operations on each element on the way, in this order.
    pub steps: Vec<ElementOp>,
}

impl ElementCopy {
    /// A copy with sorted loops, merged where possible.
    pub(super) fn new(
        from: Leaf,
        source_offset: u64,
        destination_offset: u64,
        mut loops: Loops,
        steps: Vec<ElementOp>,
    ) -> ElementCopy {
        loops.retain(|it| it.count != 1);
        if loops.len() > 1 {
            loops.sort_by_key(|it| (it.source_stride, it.destination_stride));
        }
        loops.dedup_by(|outer, inner| {
            let is_one = inner.is_continued_by(outer);
            if is_one {
                inner.count *= outer.count;
            }
            is_one
        });
        ElementCopy { from, source_offset, destination_offset, loops, steps }
    }

    /// The loops, the one with the smallest source stride first. Empty for a single element.
    pub fn loops(&self) -> &[Loop] {
        &self.loops
    }

    /// The number of elements that it copies.
    pub fn elements(&self) -> u64 {
        self.loops.iter().map(|it| it.count).product()
    }

    /// The number of elements that are contiguous in both source and destination.
    pub fn run(&self) -> u64 {
        match self.loops.first() {
            Some(first) if (first.source_stride, first.destination_stride) == (1, 1) => first.count,
            _ => 1,
        }
    }
}

impl Loop {
    /// Whether this loop and `outer` around it are equivalent to one longer loop.
    fn is_continued_by(&self, outer: &Loop) -> bool {
        outer.source_stride == self.source_stride * self.count
            && outer.destination_stride == self.destination_stride * self.count
    }
}
