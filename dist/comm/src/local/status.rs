//! Which ranks of a world have ended, and how.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::CommError;

/// Its lock may be taken while a table is locked, but not the reverse.
#[derive(Default)]
pub(super) struct Status(Mutex<State>);

#[derive(Default)]
struct State {
    /// The first failure of a rank.
    failure: Option<CommError>,
    /// The ranks that have returned.
    returned: Vec<usize>,
}

impl Status {
    /// The failure that ended the world, if any.
    pub(super) fn failure(&self) -> Option<CommError> {
        self.lock().failure.clone()
    }

    /// Those of `ranks` that have returned.
    pub(super) fn returned_of(&self, ranks: &[usize]) -> Vec<usize> {
        let state = self.lock();
        let ranks = ranks.iter().copied();
        ranks.filter(|rank| state.returned.contains(rank)).collect()
    }

    /// Records a failure. The first one counts.
    pub(super) fn set_failure(&self, failure: &CommError) {
        let mut state = self.lock();
        state.failure.get_or_insert_with(|| failure.clone());
    }

    /// Records that a rank returned.
    pub(super) fn set_returned(&self, rank: usize) {
        self.lock().returned.push(rank);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
