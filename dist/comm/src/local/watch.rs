//! The ranks that wait in collectives, and the verdict when the time of one is over.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use meshgrad_mesh::Group;

use super::meeting::Failed;
use super::status::Status;
use crate::error::{CallSite, CommError, Wait};
use crate::hang::{Graph, Stuck};
use crate::members::Key;

/// A communicator's open collectives.
pub(super) trait OpenCollectives: Send + Sync {
    fn group(&self) -> &Group;

    /// What is known of an open collective; `None` if it is no longer open.
    fn snapshot(&self, key: Key) -> Option<Snapshot>;

    /// Marks an open collective whose time is over: if it completes now, a member was late.
    fn set_late(&self, key: Key);

    /// Fails all open and later collectives, with the first failure, and returns it. Those that
    /// were open are moved to `failed`.
    fn fail(&self, error: &CommError, failed: &mut Failed) -> CommError;
}

/// An open collective.
pub(super) struct Snapshot {
    /// The calls of members that have started it.
    pub(super) calls: Vec<CallSite>,
    /// The ranks that have not.
    pub(super) missing: Vec<usize>,
    /// Those of them that do not have the communicator.
    pub(super) not_joined: Vec<usize>,
}

/// No table is locked by the caller while its lock is held.
#[derive(Default)]
pub(super) struct Watch(Mutex<Vec<Waiting>>);

/// A rank that waits.
struct Waiting {
    rank: usize,
    key: Key,
    table: Arc<dyn OpenCollectives>,
}

/// Which of two limits of a wait is over.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Attempt {
    /// The time limit. A missing rank that does not wait itself may only be late.
    AtLimit,
    /// The grace period after it.
    AfterGrace,
}

/// What a rank does whose time is over.
pub(super) enum Expiry {
    /// Waits for the grace period.
    Extend,
    /// The collective runs, or has failed.
    Over,
}

/// A collective that ranks wait in.
struct Open {
    key: Key,
    table: Arc<dyn OpenCollectives>,
    stuck: Stuck,
    snapshot: Snapshot,
}

impl Watch {
    /// Records that a rank waits, until the result is dropped.
    pub(super) fn enter(
        &self,
        rank: usize,
        key: Key,
        table: Arc<dyn OpenCollectives>,
    ) -> Leave<'_> {
        self.lock().push(Waiting {
            rank,
            key,
            table: table.clone(),
        });
        Leave {
            watch: self,
            rank,
            key,
            table,
        }
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
        let open = open_collectives(&waiting);
        let is_own = |open: &Open| open.key == key && Arc::ptr_eq(&open.table, table);
        let Some(own) = open.iter().position(is_own) else {
            return Expiry::Over;
        };
        let stuck: Vec<Stuck> = open.iter().map(|open| open.stuck.clone()).collect();
        let graph = Graph::new(&stuck);
        let depends_on = graph.reachable(own);
        let found = order_inversion(&graph, &open, &depends_on)
            .or_else(|| returned(&open, &depends_on, status));
        let found = match attempt {
            Attempt::AtLimit => found,
            Attempt::AfterGrace => found.or_else(|| absent(&open, &depends_on, limit)),
        };
        let Some((error, causes)) = found else {
            table.set_late(key);
            return Expiry::Extend;
        };
        let mut failed = Failed::default();
        for dependent in graph.dependents(&causes) {
            open[dependent].table.fail(&error, &mut failed);
        }
        drop(waiting);
        failed.complete();
        Expiry::Over
    }

    /// Fails a collective and all that depend on it, and returns the error.
    pub(super) fn fail(
        &self,
        key: Key,
        table: &Arc<dyn OpenCollectives>,
        error: CommError,
    ) -> CommError {
        let waiting = self.lock();
        let open = open_collectives(&waiting);
        let stuck: Vec<Stuck> = open.iter().map(|open| open.stuck.clone()).collect();
        let is_own = |open: &Open| open.key == key && Arc::ptr_eq(&open.table, table);
        let own: Vec<usize> = open.iter().position(is_own).into_iter().collect();
        let mut failed = Failed::default();
        let error = table.fail(&error, &mut failed);
        for dependent in Graph::new(&stuck).dependents(&own) {
            open[dependent].table.fail(&error, &mut failed);
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
fn open_collectives(waiting: &[Waiting]) -> Vec<Open> {
    let mut all: Vec<Open> = Vec::new();
    for one in waiting {
        let is_same =
            |open: &&mut Open| open.key == one.key && Arc::ptr_eq(&open.table, &one.table);
        if let Some(open) = all.iter_mut().find(is_same) {
            open.stuck.waiting.push(one.rank);
        } else if let Some(snapshot) = one.table.snapshot(one.key) {
            all.push(Open {
                key: one.key,
                table: one.table.clone(),
                stuck: Stuck {
                    waiting: vec![one.rank],
                    missing: snapshot.missing.clone(),
                },
                snapshot,
            });
        }
    }
    for open in &mut all {
        open.stuck.waiting.sort_unstable();
        open.stuck.missing.sort_unstable();
    }
    // The verdict must not depend on which rank came first.
    all.sort_by(|a, b| (a.table.group(), a.key).cmp(&(b.table.group(), b.key)));
    all
}

/// A verdict and the collectives that cause it.
type Found = (CommError, Vec<usize>);

fn order_inversion(graph: &Graph<'_>, open: &[Open], among: &[usize]) -> Option<Found> {
    let cycle = graph.smallest_cycle(among)?;
    let causes = cycle.iter().map(|step| step.stuck).collect();
    let waits = cycle.iter().filter_map(|step| {
        let of_rank = |call: &&CallSite| call.rank == step.rank;
        let open = &open[step.stuck];
        Some(Wait {
            group: open.table.group().clone(),
            call: open.snapshot.calls.iter().find(of_rank)?.clone(),
            waits_for: step.waits_for,
        })
    });
    let cycle = waits.collect();
    Some((CommError::OrderInversion { cycle }, causes))
}

fn returned(open: &[Open], among: &[usize], status: &Status) -> Option<Found> {
    among.iter().find_map(|at| {
        let Open {
            table, snapshot, ..
        } = &open[*at];
        let call = || snapshot.calls.first().cloned();
        let error = status.returned(table.group(), &snapshot.missing, call)?;
        Some((error, vec![*at]))
    })
}

/// Ranks that neither wait nor have returned, in the nearest collective that lacks only such ranks.
fn absent(open: &[Open], among: &[usize], limit: Duration) -> Option<Found> {
    let waits = |rank: &usize| open.iter().any(|open| open.stuck.waiting.contains(rank));
    // No rank is missing while a late one ends the collective.
    let is_cause = |at: &&usize| {
        let missing = &open[**at].stuck.missing;
        !missing.is_empty() && !missing.iter().any(waits)
    };
    let cause = *among.iter().find(is_cause)?;
    let Open {
        table, snapshot, ..
    } = &open[cause];
    let (group, call) = (table.group().clone(), snapshot.calls.first()?.clone());
    let error = match snapshot.not_joined.is_empty() {
        true => CommError::Timeout {
            group,
            call,
            missing: snapshot.missing.clone(),
            waited: limit,
        },
        false => CommError::BootstrapStuck {
            group,
            call,
            missing: snapshot.not_joined.clone(),
        },
    };
    Some((error, vec![cause]))
}

/// Removes a rank from those that wait.
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
