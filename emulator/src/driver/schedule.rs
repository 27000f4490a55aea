//! Operations that were submitted and did not run yet, and which of them may run now.
//!
//! Streams, events and graphs are all one thing here: an operation names those that must finish
//! before it. Any order that respects these names is one that a GPU could have taken, which is what
//! the random order draws from: a program that forgot an event gives a wrong result with some seed.

use std::collections::BTreeMap;

use super::configuration::StreamOrder;
use super::context::ContextHandle;
use super::work::Work;
use crate::machine::random::Random;

/// Names an operation; later ones are larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

/// What waits and what runs.
pub(crate) struct Schedule {
    draw: Option<Random>,
    pending: BTreeMap<Ticket, Operation>,
    next: u64,
}

struct Operation {
    context: ContextHandle,
    /// Operations that must finish first; those that did are taken out.
    after: Vec<Ticket>,
    /// `None` while it runs.
    work: Option<Work>,
    /// Whether it calls a function of the host's program, which may wait for other threads.
    calls_host: bool,
}

/// An operation that is to be run now.
pub(crate) struct Started {
    pub(crate) ticket: Ticket,
    pub(crate) context: ContextHandle,
    pub(crate) work: Work,
}

/// Random order lets this many operations wait before each submission runs one.
const MANY: usize = 512;

impl Schedule {
    pub(crate) fn new(order: StreamOrder) -> Schedule {
        Schedule {
            draw: match order {
                StreamOrder::Ordered => None,
                StreamOrder::Random(seed) => Some(Random::new(seed)),
            },
            pending: BTreeMap::new(),
            next: 0,
        }
    }

    /// Adds an operation that must follow those in `after`.
    pub(crate) fn add(
        &mut self,
        context: ContextHandle,
        mut after: Vec<Ticket>,
        work: Work,
    ) -> Ticket {
        self.next += 1;
        let ticket = Ticket(self.next);
        after.retain(|before| !self.is_done(*before));
        let operation = Operation {
            context,
            after,
            calls_host: matches!(work, Work::Host(_)),
            work: Some(work),
        };
        self.pending.insert(ticket, operation);
        ticket
    }

    /// How many operations the call that just submitted one should run: all that it can, or few.
    pub(crate) fn steps_after_submission(&mut self) -> usize {
        match &mut self.draw {
            None => usize::MAX,
            Some(_) if self.pending.len() > MANY => 2,
            Some(draw) => [0, 0, 0, 1, 2][draw.below(5) as usize],
        }
    }

    /// Takes an operation whose predecessors are done and for which `may_run` holds.
    pub(crate) fn start(&mut self, may_run: impl Fn(&Work) -> bool) -> Option<Started> {
        let is_ready = |operation: &Operation| {
            operation.after.is_empty() && operation.work.as_ref().is_some_and(&may_run)
        };
        let mut ready = self.pending.iter().filter(|(_, it)| is_ready(it));
        let ticket = match &mut self.draw {
            None => *ready.next()?.0,
            Some(draw) => {
                let ready: Vec<Ticket> = ready.map(|(ticket, _)| *ticket).collect();
                *ready.get(draw.below(ready.len().max(1) as u64) as usize)?
            }
        };
        let operation = self.pending.get_mut(&ticket)?;
        Some(Started {
            ticket,
            context: operation.context,
            work: operation.work.take()?,
        })
    }

    /// Says that an operation has run.
    pub(crate) fn finish(&mut self, ticket: Ticket) {
        self.pending.remove(&ticket);
        for operation in self.pending.values_mut() {
            operation.after.retain(|before| *before != ticket);
        }
    }

    pub(crate) fn is_done(&self, ticket: Ticket) -> bool {
        !self.pending.contains_key(&ticket)
    }

    /// Whether nothing of `context` waits or runs.
    pub(crate) fn is_idle(&self, context: ContextHandle) -> bool {
        self.pending.values().all(|it| it.context != context)
    }

    /// Whether some thread of the host runs an operation now that ends by itself.
    pub(crate) fn is_running_own(&self) -> bool {
        let mut running = self.pending.values().filter(|it| it.work.is_none());
        running.any(|it| !it.calls_host)
    }

    /// Whether operations run as soon as they may.
    pub(crate) fn is_ordered(&self) -> bool {
        self.draw.is_none()
    }

    /// Whether some thread of the host runs an operation now.
    pub(crate) fn is_running(&self) -> bool {
        self.pending.values().any(|it| it.work.is_none())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Runs all and returns the order as indices of submission.
    fn run(schedule: &mut Schedule, tickets: &[Ticket]) -> Vec<usize> {
        let mut order = Vec::new();
        while let Some(started) = schedule.start(|_| true) {
            order.extend(tickets.iter().position(|it| *it == started.ticket));
            schedule.finish(started.ticket);
        }
        order
    }

    /// Two streams of three, of which the second's last waits for the first's second.
    fn two_streams(order: StreamOrder) -> Vec<usize> {
        let context = ContextHandle::from_raw(1);
        let mut schedule = Schedule::new(order);
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
    fn in_order_means_in_order_of_submission() {
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
        // Of the twenty ways to interleave three and three, these have operation 1 before 5.
        assert_eq!(seen.len(), 16);
    }

    #[test]
    fn what_may_not_run_yet_holds_back_what_follows_it() {
        let context = ContextHandle::from_raw(1);
        let mut schedule = Schedule::new(StreamOrder::Ordered);
        let first = schedule.add(context, vec![], Work::Join);
        schedule.add(context, vec![first], Work::Join);
        assert!(schedule.start(|_| false).is_none());
        assert!(!schedule.is_running());
        assert_eq!(schedule.start(|_| true).unwrap().ticket, first);
        assert!(schedule.is_running());
        assert!(schedule.start(|_| true).is_none());
    }
}
