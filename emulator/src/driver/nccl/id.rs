//! Unique ids, each for the communicators of one world of ranks.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The number of a unique id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WorldId(u64);

impl fmt::Display for WorldId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "communicator {}", self.0)
    }
}

/// The first bytes of our unique ids.
const ID_MARK: &[u8; 8] = b"meshgrad";
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// A new `ncclUniqueId`.
pub(crate) fn unique_id() -> [u8; 128] {
    let mut id = [0; 128];
    id[..8].copy_from_slice(ID_MARK);
    id[8..16].copy_from_slice(&NEXT_ID.fetch_add(1, Relaxed).to_le_bytes());
    id
}

impl WorldId {
    /// The number of a unique id that this process has created.
    pub(crate) fn of(id: &[u8; 128]) -> Option<WorldId> {
        let number = u64::from_le_bytes(std::array::from_fn(|at| id[8 + at]));
        (&id[..8] == ID_MARK && number < NEXT_ID.load(Relaxed)).then_some(WorldId(number))
    }

    /// A number that differs between ids and ranks.
    pub(super) fn mixed_with(self, rank: usize) -> u32 {
        self.0 as u32 + rank as u32
    }
}
