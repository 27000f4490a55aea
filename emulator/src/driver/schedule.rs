//! Submitted operations that have not run, and which of them may run now.
//!
//! Streams, events and graphs are all expressed as dependencies: an operation lists the operations
//! that must finish before it. A GPU may use any order that respects the dependencies, and the
//! random order chooses among all of them. A program with a missing event dependency fails with
//! some seed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::configuration::StreamOrder;
use super::context::ContextHandle;
use super::nccl::meeting::Meeting;
pub(crate) use super::ticket::Ticket;
use super::work::{Meetings, Work};
use crate::machine::random::Random;

/// Pending and running operations.
pub(crate) struct Schedule {
    draw: Option<Random>,
    pending: BTreeMap<Ticket, Operation>,
    /// Those that run, and those that wait for no other operation.
    running: BTreeSet<Ticket>,
    ready: BTreeSet<Ticket>,
    /// How many collectives of a context may run at a time: each occupies the GPU while it waits for its peers.
    resident_limit: Option<usize>,
    /// The collectives that have started and are not done.
    resident: BTreeSet<Ticket>,
    next: u64,
    /// How many have finished.
    finished: u64,
}

struct Operation {
    context: ContextHandle,
    /// Unfinished operations that must finish first.
    after: Vec<Ticket>,
    /// Operations that list this one.
    before: Vec<Ticket>,
    /// `None` while it runs.
    work: Option<Work>,
    /// Whether it calls a host function, which may wait for other threads.
    calls_host: bool,
}

/// An operation to run now.
pub(crate) struct Started {
    pub(crate) ticket: Ticket,
    pub(crate) context: ContextHandle,
    pub(crate) work: Work,
}

/// A member of a collective that can never end.
pub(crate) struct Stuck {
    pub(crate) context: ContextHandle,
    pub(crate) meeting: Arc<Meeting>,
    /// Whether it occupies its GPU.
    pub(crate) has_started: bool,
}

/// In random order, the number of operations that may be pending before every submission runs one.
const MAX_DEFERRED: usize = 512;

impl Schedule {
    pub(crate) fn new(order: StreamOrder, resident_limit: Option<usize>) -> Schedule {
        Schedule {
            draw: match order {
                StreamOrder::Ordered => None,
                StreamOrder::Random(seed) => Some(Random::new(seed)),
            },
            pending: BTreeMap::new(),
            running: BTreeSet::new(),
            ready: BTreeSet::new(),
            resident_limit,
            resident: BTreeSet::new(),
            next: 0,
            finished: 0,
        }
    }

    /// Adds an operation that depends on those in `after`.
    pub(crate) fn add(
        &mut self,
        context: ContextHandle,
        mut after: Vec<Ticket>,
        work: Work,
    ) -> Ticket {
        self.next += 1;
        let ticket = Ticket(self.next);
        after.retain(|before| !self.is_done(*before));
        for earlier in &after {
            self.pending.get_mut(earlier).into_iter().for_each(|it| it.before.push(ticket));
        }
        if after.is_empty() {
            self.ready.insert(ticket);
        }
        let operation = Operation {
            context,
            after,
            before: Vec::new(),
            calls_host: matches!(work, Work::Host(_)),
            work: Some(work),
        };
        self.pending.insert(ticket, operation);
        ticket
    }

    /// How many operations to run after a submission: all in order, few in random order.
    pub(crate) fn steps_after_submission(&mut self) -> usize {
        match &mut self.draw {
            None => usize::MAX,
            Some(_) if self.pending.len() > MAX_DEFERRED => 2,
            Some(draw) => [0, 0, 0, 1, 2][draw.below(5) as usize],
        }
    }

    /// Takes an operation whose dependencies have finished, of a context that has failed, or for which
    /// `may_run` returns true and whose peers are resident.
    pub(crate) fn start(
        &mut self,
        has_failed: impl Fn(ContextHandle) -> bool,
        may_run: impl Fn(&Work) -> bool,
    ) -> Option<Started> {
        let (pending, resident) = (&self.pending, &self.resident);
        let is_resident = |ticket| !pending.contains_key(&ticket) || resident.contains(&ticket);
        let can_end = |work: &Work| {
            let mut meetings = work.meetings().iter();
            meetings.all(|(meeting, member)| meeting.can_end(*member, is_resident))
        };
        let may_start = |ticket: &&Ticket| {
            pending.get(ticket).is_some_and(|operation| {
                let is_allowed =
                    |work| has_failed(operation.context) || (may_run(work) && can_end(work));
                operation.work.as_ref().is_some_and(is_allowed)
            })
        };
        let ticket = *one_of(self.ready.iter().filter(may_start), &mut self.draw)?;
        self.ready.remove(&ticket);
        self.running.insert(ticket);
        let operation = self.pending.get_mut(&ticket)?;
        Some(Started { ticket, context: operation.context, work: operation.work.take()? })
    }

    /// Starts collectives that wait for no operation, as long as there is room. Returns them.
    pub(crate) fn start_collectives(&mut self) -> Vec<Meetings> {
        let mut started = Vec::new();
        loop {
            let may_start = |ticket: &&Ticket| {
                let is_collective = |it: &&Operation| matches!(it.work, Some(Work::Meet(_)));
                let waiting = self.pending.get(ticket).filter(is_collective);
                let has_room = |it: &Operation| self.has_room(it.context, |_| false);
                !self.resident.contains(ticket) && waiting.is_some_and(has_room)
            };
            let waiting: Vec<Ticket> = self.ready.iter().filter(may_start).copied().collect();
            let Some(ticket) = one_of(waiting.into_iter(), &mut self.draw) else {
                return started;
            };
            self.resident.insert(ticket);
            if let Some(Work::Meet(meetings)) =
                self.pending.get(&ticket).and_then(|it| it.work.as_ref())
            {
                started.push(meetings.clone());
            }
        }
    }

    /// Whether a collective of `context` can start, once those that `end` are done. Contexts take turns on a GPU, so
    /// others do not matter.
    fn has_room(&self, context: ContextHandle, end: impl Fn(&Ticket) -> bool) -> bool {
        let is_of =
            |ticket: &&Ticket| self.pending.get(ticket).is_some_and(|it| it.context == context);
        let kept = self.resident.iter().filter(|ticket| !end(ticket)).filter(is_of).count();
        self.resident_limit.is_none_or(|limit| kept < limit)
    }

    /// Collectives that wait for peers which can never become resident, whatever else is submitted.
    pub(crate) fn stuck(&self) -> Vec<Stuck> {
        let mut possible = BTreeSet::new();
        loop {
            let follows = |ticket: &Ticket| possible.contains(ticket) || self.is_done(*ticket);
            let has_place = |ticket, it: &Operation| {
                let is_resident = self.resident.contains(&ticket);
                is_resident || self.has_room(it.context, |kept| possible.contains(kept))
            };
            let becomes_resident = |ticket| {
                let may_start =
                    |it: &Operation| it.after.iter().all(follows) && has_place(ticket, it);
                self.pending.get(&ticket).is_none_or(may_start)
            };
            let may_end = |operation: &Operation| {
                let meetings = operation.work.iter().flat_map(|work| work.meetings());
                operation.after.iter().all(follows)
                    && meetings.into_iter().all(|(meeting, _)| meeting.may_end(becomes_resident))
            };
            let more = self
                .pending
                .iter()
                .filter(|(ticket, it)| !possible.contains(*ticket) && may_end(it));
            let more: Vec<Ticket> = more.map(|(ticket, _)| *ticket).collect();
            if more.is_empty() {
                break;
            }
            possible.extend(more);
        }
        let stuck = self
            .pending
            .iter()
            .filter(|(ticket, it)| it.after.is_empty() && !possible.contains(*ticket));
        let meetings = stuck.flat_map(|(ticket, it)| {
            let own = it.work.iter().flat_map(|work| work.meetings());
            let has_started = self.resident.contains(ticket);
            own.map(move |(meeting, _)| Stuck {
                context: it.context,
                meeting: meeting.clone(),
                has_started,
            })
        });
        meetings.collect()
    }

    /// Marks an operation as finished.
    pub(crate) fn finish(&mut self, ticket: Ticket) {
        self.running.remove(&ticket);
        self.resident.remove(&ticket);
        self.finished += 1;
        let Some(finished) = self.pending.remove(&ticket) else {
            return;
        };
        for later in finished.before {
            if let Some(operation) = self.pending.get_mut(&later) {
                operation.after.retain(|before| *before != ticket);
                if operation.after.is_empty() {
                    self.ready.insert(later);
                }
            }
        }
    }

    pub(crate) fn is_done(&self, ticket: Ticket) -> bool {
        !self.pending.contains_key(&ticket)
    }

    /// How many operations have been added and finished.
    pub(crate) fn changes(&self) -> u64 {
        self.next + self.finished
    }

    /// Whether no operation of `context` is pending or running.
    pub(crate) fn is_idle(&self, context: ContextHandle) -> bool {
        self.pending.values().all(|it| it.context != context)
    }

    /// Whether a host thread is running an operation other than a host function.
    pub(crate) fn is_running_own(&self) -> bool {
        let mut running = self.running.iter().filter_map(|ticket| self.pending.get(ticket));
        running.any(|it| !it.calls_host)
    }

    /// Whether operations run as soon as they can.
    pub(crate) fn is_ordered(&self) -> bool {
        self.draw.is_none()
    }

    /// Whether a host thread is running an operation.
    pub(crate) fn is_running(&self) -> bool {
        !self.running.is_empty()
    }
}

/// The first item, or a random one in random order.
fn one_of<T>(mut items: impl Iterator<Item = T>, draw: &mut Option<Random>) -> Option<T> {
    match draw {
        None => items.next(),
        Some(draw) => {
            let mut items: Vec<T> = items.collect();
            let index = draw.below(items.len().max(1) as u64) as usize;
            (index < items.len()).then(|| items.swap_remove(index))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Runs everything and returns the order as submission indices.
    fn run(schedule: &mut Schedule, tickets: &[Ticket]) -> Vec<usize> {
        let mut order = Vec::new();
        while let Some(started) = schedule.start(|_| false, |_| true) {
            order.extend(tickets.iter().position(|it| *it == started.ticket));
            schedule.finish(started.ticket);
        }
        order
    }

    /// Two streams of three operations; the second stream's last depends on the first's second.
    fn two_streams(order: StreamOrder) -> Vec<usize> {
        let context = ContextHandle::from_raw(1);
        let mut schedule = Schedule::new(order, None);
        let mut tickets = Vec::<Ticket>::new();
        for after in [vec![], vec![0], vec![1], vec![], vec![3], vec![4, 1]] {
            let after = after.into_iter().map(|at: usize| tickets[at]).collect();
            tickets.push(schedule.add(context, after, Work::Join));
        }
        assert!(!schedule.is_idle(context));
        let order = run(&mut schedule, &tickets);
        assert!(schedule.is_idle(context));
        order
    }

    #[test]
    fn the_ordered_schedule_runs_in_submission_order() {
        assert_eq!(two_streams(StreamOrder::Ordered), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn random_orders_respect_dependencies_and_differ() {
        let mut seen = BTreeSet::new();
        for seed in 0..200 {
            let order = two_streams(StreamOrder::Random(seed));
            let at = |index| order.iter().position(|it| *it == index);
            assert_eq!(order.len(), 6);
            for (before, later) in [(0, 1), (1, 2), (3, 4), (4, 5), (1, 5)] {
                assert!(at(before) < at(later), "{order:?}");
            }
            assert_eq!(order, two_streams(StreamOrder::Random(seed)));
            seen.insert(order);
        }
        // 16 of the 20 interleavings of two streams of three operations run operation 1 before 5.
        assert_eq!(seen.len(), 16);
    }

    #[test]
    fn an_operation_that_may_not_run_delays_its_dependents() {
        let context = ContextHandle::from_raw(1);
        let mut schedule = Schedule::new(StreamOrder::Ordered, None);
        let first = schedule.add(context, vec![], Work::Join);
        schedule.add(context, vec![first], Work::Join);
        assert!(schedule.start(|_| false, |_| false).is_none());
        assert!(!schedule.is_running());
        assert_eq!(schedule.start(|_| false, |_| true).unwrap().ticket, first);
        assert!(schedule.is_running());
        assert!(schedule.start(|_| false, |_| true).is_none());
    }
}
