//! Why collectives do not complete: the coordinator asks all ranks what they have started, and
//! decides for all.
//!
//! A rank reports a collective whose time is over. The answers show ranks that wait for each other.
//! Otherwise missing ranks count as late for a grace period, in which the collective may not
//! complete any more: a rank that could complete it reports a straggler instead. After that, the
//! ranks are asked again, and those that are missing are named. Other failures of communicators
//! are also decided here, so that all members fail with the same error.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::message::{CallKey, GroupId, Message, StartedCall};
use crate::error::CommError;
use crate::hang::{Graph, Stuck};
use crate::verdict::{Found, Open, absent, order_inversion, stuck};

/// How long an inquiry waits for answers. Ranks that do not answer count as missing.
const ANSWER: Duration = Duration::from_secs(2);

#[derive(Default)]
pub(super) struct Inquiries {
    /// Collectives whose time is over.
    expired: BTreeMap<CallKey, Expired>,
    /// Other failures.
    failed: BTreeMap<GroupId, CommError>,
    /// The first failure because of each rank that has returned, whatever waits for it.
    returned: BTreeMap<usize, CommError>,
    /// The communicators that have failed for all.
    decided: BTreeSet<GroupId>,
    current: Option<Inquiry>,
    next: u64,
}

struct Expired {
    limit: Duration,
    /// When the grace period ends.
    until: Instant,
    has_been_asked: bool,
}

struct Inquiry {
    number: u64,
    began: Instant,
    /// By rank.
    answers: BTreeMap<usize, Answer>,
}

pub(super) struct Answer {
    pub(super) calls: Vec<StartedCall>,
    pub(super) communicators: Vec<GroupId>,
}

impl Inquiries {
    /// A rank reports that the time of a collective is over.
    pub(super) fn expired(&mut self, key: CallKey, limit: Duration, grace: Duration) {
        if !self.decided.contains(&key.group) {
            self.expired.entry(key).or_insert(Expired {
                limit,
                until: Instant::now() + grace,
                has_been_asked: false,
            });
        }
    }

    /// A rank reports that a communicator has to fail. The first reason counts.
    pub(super) fn failed(&mut self, communicator: GroupId, mut error: CommError) {
        if let CommError::Returned { missing, .. } = &error {
            let missing = missing.clone();
            let first = missing.iter().find_map(|rank| self.returned.get(rank));
            error = first.cloned().unwrap_or(error);
            for rank in missing {
                self.returned.entry(rank).or_insert_with(|| error.clone());
            }
        }
        if !self.decided.contains(&communicator) {
            self.failed.entry(communicator).or_insert(error);
        }
    }

    pub(super) fn answer(&mut self, rank: usize, number: u64, answer: Answer) {
        if let Some(current) = &mut self.current
            && current.number == number
        {
            current.answers.insert(rank, answer);
        }
    }

    /// When [`Inquiries::advance`] has something to do, at the latest.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.current {
            Some(current) => Some(current.began + ANSWER),
            None => self.expired.values().map(|expired| expired.until).min(),
        }
    }

    /// What to tell all of these ranks now.
    pub(super) fn advance(&mut self, now: Instant, ranks: &[usize]) -> Vec<Message> {
        let is_answered = |current: &mut Inquiry| {
            let has_answered = |rank| current.answers.contains_key(rank);
            ranks.iter().all(has_answered) || now >= current.began + ANSWER
        };
        let mut messages = match self.current.take_if(is_answered) {
            Some(inquiry) => self.decide(&inquiry),
            None => Vec::new(),
        };
        if self.current.is_none() {
            messages.extend(self.ask(now));
        }
        messages
    }

    fn ask(&mut self, now: Instant) -> Option<Message> {
        let mut expired = self.expired.values();
        let is_due = expired.any(|it| !it.has_been_asked || now >= it.until);
        if !is_due && self.failed.is_empty() {
            return None;
        }
        self.next += 1;
        self.current = Some(Inquiry {
            number: self.next,
            began: now,
            answers: BTreeMap::new(),
        });
        Some(Message::Inquiry {
            number: self.next,
            late: self.expired.keys().copied().collect(),
        })
    }

    fn decide(&mut self, inquiry: &Inquiry) -> Vec<Message> {
        let (keys, open): (Vec<CallKey>, Vec<Open>) =
            open_collectives(&inquiry.answers).into_iter().unzip();
        let stuck = stuck(&open);
        let graph = Graph::new(&stuck);

        let mut verdicts = Vec::new();
        for (communicator, error) in std::mem::take(&mut self.failed) {
            let is_own = |at: &usize| keys[*at].group == communicator;
            let own: Vec<usize> = (0..keys.len()).filter(is_own).collect();
            verdicts.extend(self.verdict(&graph, &keys, &own, [communicator], error));
        }
        let expired: Vec<CallKey> = self.expired.keys().copied().collect();
        for key in expired {
            let own = keys.iter().position(|other| *other == key);
            let Some(expired) = self.expired.get_mut(&key) else {
                continue; // a verdict above was about its communicator
            };
            let Some(own) = own else {
                self.expired.remove(&key); // it is over, or is reported again
                continue;
            };
            let depends_on = graph.reachable(own);
            let is_over = inquiry.began >= expired.until;
            let found = order_inversion(&graph, &open, &depends_on)
                .or_else(|| slow_transfer(&open, own, expired.limit));
            let found = match is_over {
                true => found.or_else(|| absent(&open, &depends_on, expired.limit)),
                false => found,
            };
            expired.has_been_asked = true;
            if let Some((error, causes)) = found {
                verdicts.extend(self.verdict(&graph, &keys, &causes, [], error));
            }
        }
        verdicts
    }

    /// Fails the communicators of `causes` and of all that depend on them, and `also`. `None` if
    /// they have failed.
    fn verdict<const N: usize>(
        &mut self,
        graph: &Graph<'_>,
        keys: &[CallKey],
        causes: &[usize],
        also: [GroupId; N],
        error: CommError,
    ) -> Option<Message> {
        let dependents = graph.dependents(causes);
        let communicators = dependents.iter().map(|at| keys[*at].group).chain(also);
        let communicators: BTreeSet<GroupId> = communicators
            .filter(|communicator| !self.decided.contains(communicator))
            .collect();
        self.expired
            .retain(|key, _| !communicators.contains(&key.group));
        self.decided.extend(&communicators);
        (!communicators.is_empty()).then(|| Message::Verdict {
            communicators: communicators.into_iter().collect(),
            error,
        })
    }
}

/// A collective that all members have started.
fn slow_transfer(open: &[Open], own: usize, limit: Duration) -> Option<Found> {
    let Open {
        group,
        stuck,
        calls,
        ..
    } = &open[own];
    let error = CommError::Timeout {
        group: group.clone(),
        call: calls.first()?.clone(),
        missing: Vec::new(),
        waited: limit,
    };
    stuck.missing.is_empty().then_some((error, vec![own]))
}

/// The collectives that ranks wait in, as all answers together describe them.
fn open_collectives(answers: &BTreeMap<usize, Answer>) -> Vec<(CallKey, Open)> {
    let mut all: BTreeMap<CallKey, Open> = BTreeMap::new();
    for (rank, answer) in answers {
        for started in &answer.calls {
            let open = all.entry(started.key).or_insert_with(|| Open {
                group: started.group.clone(),
                stuck: Stuck {
                    waiting: Vec::new(),
                    missing: started.missing.clone(),
                },
                calls: Vec::new(),
                not_joined: Vec::new(),
            });
            open.calls.push(started.call.clone());
            open.stuck
                .waiting
                .extend(started.is_waiting.then_some(rank));
            // Its part may have reached others, but not yet all.
            let is_missing = |rank: &usize| started.missing.contains(rank);
            open.stuck.missing.retain(is_missing);
        }
    }
    for (key, open) in &mut all {
        let has_started = |rank: &usize| open.calls.iter().any(|call| call.rank == *rank);
        open.stuck.missing.retain(|rank| !has_started(rank));
        open.stuck.missing.sort_unstable();
        let lacks_it = |rank: &&usize| {
            let answer = answers.get(rank);
            answer.is_some_and(|answer| !answer.communicators.contains(&key.group))
        };
        let missing = open.stuck.missing.iter();
        open.not_joined = missing.filter(lacks_it).copied().collect();
    }
    all.retain(|_, open| !open.stuck.waiting.is_empty());
    all.into_iter().collect()
}
