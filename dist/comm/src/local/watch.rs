//! The ranks that wait in collectives, and the verdict when the time of one is over.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use meshgrad_collectives::CallSite;
use meshgrad_error::Error;
use meshgrad_mesh::Group;

use super::meeting::Failed;
use super::status::Status;
use crate::hang::{Graph, Stuck};
use crate::members::Key;
use crate::verdict::{Found, Open, absent, failing, is_control, order_inversion, stuck};

/// A communicator's open collectives.
pub(super) trait OpenCollectives: Send + Sync {
    fn group(&self) -> &Group;

    /// What is known of an open collective; `None` if it is no longer open.
    fn snapshot(&self, key: Key) -> Option<Snapshot>;

    /// Marks an open collective whose time is over: if it completes now, a member was late.
    fn set_late(&self, key: Key);

    /// Fails all open and later collectives, with the first failure, and returns it. Those that
    /// were open are moved to `failed`.
    fn fail(&self, error: &Error, failed: &mut Failed) -> Error;
}

/// An open collective.
pub(super) struct Snapshot {
    /// The calls of members that have started it.
    pub(super) calls: Vec<CallSite>,
    /// The ranks that have not.
    pub(super) missing: Vec<usize>,
    /// The missing ranks that do not have the communicator.
    pub(super) not_joined: Vec<usize>,
}

/// Callers must not hold the lock of a table while they take this lock.
#[derive(Default)]
pub(super) struct Watch(Mutex<Vec<Waiting>>);

/// A rank that waits.
struct Waiting {
    rank: usize,
    key: Key,
    table: Arc<dyn OpenCollectives>,
}

/// The limit of a wait that has passed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Attempt {
    /// The time limit. A missing rank that does not wait itself may only be late.
    AtLimit,
    /// The grace period after it.
    AfterGrace,
}

/// What a rank does when its time is over.
pub(super) enum Expiry {
    /// Waits for the grace period.
    Extend,
    /// Waits for another time limit: what it waited for has failed, and it has not.
    Again,
    /// The collective runs, or has failed.
    Over,
}

/// Which collective of which communicator.
struct Place {
    key: Key,
    table: Arc<dyn OpenCollectives>,
}

impl Place {
    fn is(&self, key: Key, table: &Arc<dyn OpenCollectives>) -> bool {
        self.key == key && Arc::ptr_eq(&self.table, table)
    }
}

impl Watch {
    /// Records that a rank waits, until the result is dropped.
    pub(super) fn enter(
        &self,
        rank: usize,
        key: Key,
        table: Arc<dyn OpenCollectives>,
    ) -> Leave<'_> {
        self.lock().push(Waiting { rank, key, table: table.clone() });
        Leave { watch: self, rank, key, table }
    }

    /// The number of ranks that wait in a collective.
    pub(super) fn waiting_in(&self, key: Key, table: &Arc<dyn OpenCollectives>) -> usize {
        let waiting = self.lock();
        let is_in = |one: &&Waiting| one.key == key && Arc::ptr_eq(&one.table, table);
        waiting.iter().filter(is_in).count()
    }

    /// Decides why a collective did not complete within `limit`. The verdict fails it and all that
    /// depend on the same ranks.
    pub(super) fn expire(
        &self,
        key: Key,
        table: &Arc<dyn OpenCollectives>,
        status: &Status,
        limit: Duration,
        attempt: Attempt,
    ) -> Expiry {
        let waiting = self.lock(); // one verdict at a time
        let (places, open) = open_collectives(&waiting);
        let Some(own) = places.iter().position(|place| place.is(key, table)) else {
            return Expiry::Over;
        };
        let stuck = stuck(&open);
        let graph = Graph::new(&stuck);
        let depends_on = graph.reachable(own);
        let found = order_inversion(&graph, &open, &depends_on)
            .or_else(|| returned(&open, &depends_on, status));
        let found = match attempt {
            Attempt::AtLimit => found,
            Attempt::AfterGrace => found.or_else(|| absent(&open, &depends_on, limit)),
        };
        let Some((error, causes)) = found else {
            if !is_control(&open[own].group) {
                table.set_late(key);
            }
            return Expiry::Extend;
        };
        let error = error.into();
        let mut failed = Failed::default();
        let failing = failing(&graph, &open, &causes);
        for at in &failing {
            places[*at].table.fail(&error, &mut failed);
        }
        drop(waiting);
        failed.complete();
        match failing.contains(&own) {
            true => Expiry::Over,
            false => Expiry::Again,
        }
    }

    /// Fails a collective and all that depend on it, and returns the error.
    pub(super) fn fail(&self, key: Key, table: &Arc<dyn OpenCollectives>, error: Error) -> Error {
        let waiting = self.lock();
        let (places, open) = open_collectives(&waiting);
        let own = places.iter().position(|place| place.is(key, table));
        let own: Vec<usize> = own.into_iter().collect();
        let mut failed = Failed::default();
        let error = table.fail(&error, &mut failed);
        for at in failing(&Graph::new(&stuck(&open)), &open, &own) {
            places[at].table.fail(&error, &mut failed);
        }
        drop(waiting);
        failed.complete();
        error
    }

    #[cfg(test)]
    pub(super) fn is_unlocked(&self) -> bool {
        self.0.try_lock().is_ok()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Waiting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The collectives that ranks wait in, each once.
fn open_collectives(waiting: &[Waiting]) -> (Vec<Place>, Vec<Open>) {
    let mut all: Vec<(Place, Open)> = Vec::new();
    for Waiting { rank, key, table } in waiting {
        if let Some((_, open)) = all.iter_mut().find(|(place, _)| place.is(*key, table)) {
            open.stuck.waiting.push(*rank);
        } else if let Some(snapshot) = table.snapshot(*key) {
            let open = Open {
                group: table.group().clone(),
                stuck: Stuck { waiting: vec![*rank], missing: snapshot.missing },
                calls: snapshot.calls,
                not_joined: snapshot.not_joined,
            };
            let (key, table) = (*key, table.clone());
            all.push((Place { key, table }, open));
        }
    }
    for (_, open) in &mut all {
        open.stuck.waiting.sort_unstable();
        open.stuck.missing.sort_unstable();
    }
    // The verdict must not depend on which rank came first.
    all.sort_by(|(a, x), (b, y)| (&x.group, a.key).cmp(&(&y.group, b.key)));
    all.into_iter().unzip()
}

fn returned(open: &[Open], among: &[usize], status: &Status) -> Option<Found> {
    among.iter().find_map(|at| {
        let Open { group, stuck, calls, .. } = &open[*at];
        let error = status.returned(group, &stuck.missing, || calls.first().cloned())?;
        Some((error, vec![*at]))
    })
}

/// Removes a waiting rank when dropped.
pub(super) struct Leave<'a> {
    watch: &'a Watch,
    rank: usize,
    key: Key,
    table: Arc<dyn OpenCollectives>,
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        let mut waiting = self.watch.lock();
        let is_own = |one: &Waiting| {
            (one.rank, one.key) == (self.rank, self.key) && Arc::ptr_eq(&one.table, &self.table)
        };
        if let Some(at) = waiting.iter().position(is_own) {
            waiting.swap_remove(at);
        }
    }
}
