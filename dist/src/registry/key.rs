//! What a communicator is, and the one order in which all ranks make them.

use std::cmp::{Ordering, Reverse};

use meshgrad_mesh::Group;

/// A group in the canonical order of creation: the largest first, then by ranks, channel and options.
/// It depends on nothing but the group, so it is the same on every rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Key(pub(super) Group);

impl Ord for Key {
    fn cmp(&self, other: &Key) -> Ordering {
        let order = |key: &Key| Reverse(key.0.len());
        order(self)
            .cmp(&order(other))
            .then_with(|| self.0.cmp(&other.0))
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Key) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
