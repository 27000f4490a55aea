//! Strided copies: what is left of an expression when it is pulled.

use smallvec::SmallVec;

use super::ids::{Expr, SourceId};
use super::scalar::{ElementOp, Scalar};

/// Where the elements of a copy come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Leaf {
    /// A tensor that is read.
    Source(SourceId),
    /// A tensor that is computed first, row-major.
    Computed(Expr),
    /// The same element everywhere: offsets and strides of the source say nothing.
    Fill(Scalar),
}

/// A loop of a copy: so many elements, and how far apart they are on both sides, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Loop {
    /// How often.
    pub count: u64,
    /// From one element to the next in the source.
    pub source_stride: u64,
    /// From one element to the next in the destination.
    pub destination_stride: u64,
}

/// One loop is what nearly every piece has: a run, or a column.
pub(crate) type Loops = SmallVec<[Loop; 2]>;

/// A copy of some elements to their place. Offsets and strides count elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ElementCopy {
    /// Where its elements come from.
    pub from: Leaf,
    /// The first element that is read.
    pub source_offset: u64,
    /// Where it goes.
    pub destination_offset: u64,
    pub(crate) loops: Loops,
    /// What is done to each element on the way, in this order.
    pub steps: Vec<ElementOp>,
}

impl ElementCopy {
    /// A piece whose loops are in order, and as few as say the same.
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
        ElementCopy {
            from,
            source_offset,
            destination_offset,
            loops,
            steps,
        }
    }

    /// The loops around it, the one that moves least in the source first. None for one element.
    pub fn loops(&self) -> &[Loop] {
        &self.loops
    }

    /// How many elements it copies.
    pub fn elements(&self) -> u64 {
        self.loops.iter().map(|it| it.count).product()
    }

    /// How many elements lie side by side in the source and in the destination.
    pub fn run(&self) -> u64 {
        match self.loops.first() {
            Some(first) if (first.source_stride, first.destination_stride) == (1, 1) => first.count,
            _ => 1,
        }
    }
}

impl Loop {
    /// Whether `outer` around this is one longer loop.
    fn is_continued_by(&self, outer: &Loop) -> bool {
        outer.source_stride == self.source_stride * self.count
            && outer.destination_stride == self.destination_stride * self.count
    }
}
