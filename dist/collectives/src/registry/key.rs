//! The identity of a communicator, and the order in which all ranks create communicators.

use std::cmp::{Ordering, Reverse};

use meshgrad_mesh::Group;

/// A group, ordered by creation: the largest first, then by ranks, channel and options. The order
/// depends only on the groups, so it is equal on all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Key(pub(super) Group);

impl Ord for Key {
    fn cmp(&self, other: &Key) -> Ordering {
        let order = |key: &Key| Reverse(key.0.len());
        order(self).cmp(&order(other)).then_with(|| self.0.cmp(&other.0))
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Key) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
