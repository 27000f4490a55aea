//! The number of a world of ranks.

use std::fmt;

/// The number of a unique id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WorldId(u64);

impl fmt::Display for WorldId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "communicator {}", self.0)
    }
}

impl WorldId {
    pub(super) fn new(number: u64) -> WorldId {
        WorldId(number)
    }

    pub(super) fn number(self) -> u64 {
        self.0
    }

    /// A number that differs between ids and ranks.
    pub(super) fn mixed_with(self, rank: usize) -> u32 {
        self.0 as u32 + rank as u32
    }
}
