//! The indices that select from a shard of a dim.

/// The indices of a dim that a tensor has: as many as its extent, from `first` on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IndexRange {
    /// The global index of the tensor's first element.
    pub(crate) first: usize,
    /// The global extent: indices are less than it.
    pub(crate) total: usize,
}

impl IndexRange {
    /// The position of global index `index` among those of a tensor of `extent`, if it has it.
    #[inline(always)]
    pub(crate) fn position(self, index: i64, extent: usize) -> Option<usize> {
        let position = (index as usize).checked_sub(self.first);
        position.filter(|position| *position < extent)
    }
}
