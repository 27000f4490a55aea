//! The numbers of expressions and of the tensors that are read.

/// An expression of a [`Graph`](super::Graph).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Expr(pub(super) u32);

impl Expr {
    /// Its index among the expressions of its graph.
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// A tensor at a leaf of a [`Graph`](super::Graph).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceId(pub(super) u32);

impl SourceId {
    /// Its index among the sources of its graph.
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}
