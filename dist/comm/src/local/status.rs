//! Which ranks of a world have ended, and how.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use meshgrad_collectives::{CallSite, CommError, Ticket};
use meshgrad_error::{Error, FailedRank, error};
use meshgrad_mesh::Group;

/// Its lock may be taken while a table is locked, but not the reverse.
#[derive(Default)]
pub(super) struct Status(Mutex<State>);

#[derive(Default)]
struct State {
    /// The first failure of a rank.
    failure: Option<Error>,
    /// The ranks that have returned, and the first error because of that.
    returned: BTreeMap<usize, Option<CommError>>,
    /// Each rank's last call.
    last_calls: BTreeMap<usize, (Group, Ticket)>,
}

impl Status {
    /// Records a rank's call. Fails if a failure has ended the world.
    pub(super) fn begin(&self, rank: usize, group: &Group, ticket: &Ticket) -> Option<Error> {
        let mut state = self.lock();
        let call = (group.clone(), ticket.clone());
        state.last_calls.insert(rank, call);
        state.failure.clone()
    }

    /// The error if some of the ranks that are missing from a collective have returned. Each rank
    /// causes one error, whatever waits for it. `call` is a call that waits.
    pub(super) fn returned(
        &self,
        group: &Group,
        missing: &[usize],
        call: impl FnOnce() -> Option<CallSite>,
    ) -> Option<CommError> {
        let mut state = self.lock();
        let has_returned = |rank: &usize| state.returned.contains_key(rank);
        let missing: Vec<usize> = missing.iter().copied().filter(has_returned).collect();
        let error = state.returned.get_mut(missing.first()?)?;
        if error.is_none() {
            *error = Some(CommError::Returned { group: group.clone(), call: call()?, missing });
        }
        error.clone()
    }

    /// Records the failure of a rank and returns the first one, which counts.
    pub(super) fn set_failure(&self, rank: usize, reason: String) -> Error {
        let mut state = self.lock();
        let last = state.last_calls.get(&rank).map(|(group, ticket)| {
            let CallSite { call, number, at, .. } = CallSite::new(rank, ticket);
            format!(" after {call} at {at} (collective {number} of {group})")
        });
        let last = last.unwrap_or_default();
        let failure = error!(PeerFailed, "rank {rank} failed{last}, so all ranks stop: {reason}")
            .and_details(FailedRank { rank, reason });
        state.failure.get_or_insert(failure).clone()
    }

    /// Records that a rank returned.
    pub(super) fn set_returned(&self, rank: usize) {
        self.lock().returned.insert(rank, None);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
