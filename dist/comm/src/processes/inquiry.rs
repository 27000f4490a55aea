//! Why collectives do not complete: the coordinator asks all ranks what they have started, and
//! decides for all.
//!
//! A rank reports a collective whose time limit has passed. If the answers of all ranks show ranks
//! that wait for each other, that is the verdict. Otherwise missing ranks count as late for a grace
//! period, in which the collective may not complete any more: a rank that could complete it reports
//! a straggler instead. After that, the ranks are asked again, and the missing ones are named.
//! Other failures of communicators are also decided here, so that all members fail with the same
//! error.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use meshgrad_collectives::{CallSite, CommError};
use meshgrad_mesh::Group;

use super::message::{Answer, CallKey, GroupId, Message};
use crate::hang::{Graph, Stuck};
use crate::verdict::{Open, absent, failing, order_inversion, stuck};

/// Longer times are shortened to this, so that adding them to an `Instant` cannot overflow.
pub(super) const LONGEST: Duration = Duration::from_secs(1 << 30);
/// How long an inquiry waits for answers. Ranks that do not answer count as missing.
const ANSWER: Duration = Duration::from_secs(2);
/// The pause between inquiries about a collective that remains undecided.
const AGAIN: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct Inquiries {
    /// Collectives whose time is over.
    expired: BTreeMap<CallKey, Expired>,
    /// Other failures.
    failed: BTreeMap<GroupId, CommError>,
    /// For each rank that has returned, the first failure that this caused, whatever waits for it.
    returned: BTreeMap<usize, CommError>,
    /// The communicators that have failed for all.
    decided: BTreeSet<GroupId>,
    current: Option<Inquiry>,
    next: u64,
}

struct Expired {
    limit: Duration,
    /// When the grace period ends, in which only a message of a control channel may complete.
    until: Instant,
    has_been_asked: bool,
    /// Whether all members had started it when its time was over.
    is_slow: bool,
    /// Whether it is a message of a control channel.
    is_control: bool,
}

struct Inquiry {
    number: u64,
    began: Instant,
    /// What it is about, besides failures.
    expired: Vec<CallKey>,
    /// By rank.
    answers: BTreeMap<usize, Answer>,
}

impl Inquiries {
    /// A rank reports that the time of a collective is over.
    pub(super) fn expired(
        &mut self,
        key: CallKey,
        limit: Duration,
        grace: Duration,
        is_control: bool,
    ) {
        if !self.decided.contains(&key.group) {
            self.expired.entry(key).or_insert(Expired {
                limit,
                until: Instant::now() + grace.min(LONGEST),
                has_been_asked: false,
                is_slow: false,
                is_control,
            });
        }
    }

    /// A rank reports that a communicator has to fail. The first reason counts.
    pub(super) fn failed(&mut self, communicator: GroupId, mut error: CommError) {
        if let CommError::Straggler { group, first, .. } = &error {
            // If all members had started the collective in time, its transfer was slow.
            let is_it = |key: &CallKey| (key.group, key.key.number) == (communicator, first.number);
            let slow = self.expired.iter().find(|(key, it)| it.is_slow && is_it(key));
            if let Some((_, expired)) = slow {
                error = slow_transfer(group, first, expired.limit);
            }
        }
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

    /// The messages to send to all of these ranks now.
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
        let late = self.expired.iter().filter(|(_, it)| !it.is_control || now >= it.until);
        let late: Vec<CallKey> = late.map(|(key, _)| *key).collect();
        self.current = Some(Inquiry {
            number: self.next,
            began: now,
            expired: self.expired.keys().copied().collect(),
            answers: BTreeMap::new(),
        });
        let number = self.next;
        Some(Message::Inquiry { number, late })
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
            verdicts.extend(self.verdict((&graph, &keys, &open), &own, Some(communicator), error));
        }
        for key in &inquiry.expired {
            let own = keys.iter().position(|other| other == key);
            let Some(expired) = self.expired.get_mut(key) else {
                continue; // a verdict above was about its communicator
            };
            let Some(own) = own else {
                self.expired.remove(key); // it is over, or is reported again
                continue;
            };
            let depends_on = graph.reachable(own);
            let has_all = open[own].stuck.missing.is_empty();
            expired.is_slow |= has_all && !expired.has_been_asked;
            expired.has_been_asked = true;
            let mut found = order_inversion(&graph, &open, &depends_on);
            if found.is_none() && inquiry.began >= expired.until {
                expired.until = inquiry.began + AGAIN; // if it remains undecided
                found = match open[own].calls.first() {
                    Some(call) if has_all => {
                        let error = slow_transfer(&open[own].group, call, expired.limit);
                        Some((error, vec![own]))
                    }
                    _ => absent(&open, &depends_on, expired.limit),
                };
            }
            if let Some((error, causes)) = found {
                verdicts.extend(self.verdict((&graph, &keys, &open), &causes, None, error));
                self.expired.remove(key); // if it has not failed, it is reported again
            }
        }
        verdicts
    }

    /// Fails `also`, the communicators of `causes`, and those that fail with them. `None` if they
    /// have failed before.
    fn verdict(
        &mut self,
        (graph, keys, open): (&Graph<'_>, &[CallKey], &[Open]),
        causes: &[usize],
        also: Option<GroupId>,
        error: CommError,
    ) -> Option<Message> {
        let failing = failing(graph, open, causes);
        let communicators = failing.iter().map(|at| keys[*at].group).chain(also);
        let communicators: BTreeSet<GroupId> =
            communicators.filter(|communicator| !self.decided.contains(communicator)).collect();
        self.expired.retain(|key, _| !communicators.contains(&key.group));
        self.decided.extend(&communicators);
        (!communicators.is_empty())
            .then(|| Message::Verdict { communicators: communicators.into_iter().collect(), error })
    }
}

/// The error of a collective that all members have started in time.
fn slow_transfer(group: &Group, call: &CallSite, limit: Duration) -> CommError {
    CommError::Timeout {
        group: group.clone(),
        call: call.clone(),
        missing: Vec::new(),
        waited: limit,
    }
}

/// The collectives that ranks wait in, as all answers together describe them.
fn open_collectives(answers: &BTreeMap<usize, Answer>) -> Vec<(CallKey, Open)> {
    let mut all: BTreeMap<CallKey, Open> = BTreeMap::new();
    for (rank, answer) in answers {
        for started in &answer.calls {
            let open = all.entry(started.key).or_insert_with(|| Open {
                group: started.group.clone(),
                stuck: Stuck { waiting: Vec::new(), missing: started.missing.clone() },
                calls: Vec::new(),
                not_joined: Vec::new(),
            });
            open.calls.push(started.call.clone());
            open.stuck.waiting.extend(started.is_waiting.then_some(rank));
            // A missing rank's part may have reached some ranks: it is missing only if all lack it.
            let is_missing = |rank: &usize| started.missing.contains(rank);
            open.stuck.missing.retain(is_missing);
        }
    }
    for (key, open) in &mut all {
        // A rank that has started it is not missing: its parts are on their way.
        let has_started =
            |rank: &usize| answers.get(rank).is_some_and(|it: &Answer| it.has_started(key));
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

#[cfg(test)]
mod tests {
    use meshgrad_collectives::SourceLine;

    use super::super::message::StartedCall;
    use super::*;
    use crate::members::{Key, Members};

    const LIMIT: Duration = Duration::from_secs(10);
    const GRACE: Duration = Duration::from_millis(1);

    fn group(ranks: &[usize]) -> Group {
        Group::new(ranks.to_vec()).unwrap()
    }

    fn key(ranks: &[usize], number: u64) -> CallKey {
        let between = Members::All;
        CallKey { group: GroupId::of(&group(ranks), 0), key: Key { between, number } }
    }

    /// The answer of `rank`: the collectives in which it waits, each with the ranks that it misses.
    /// It has completed all earlier ones.
    fn answer(rank: usize, waits: &[(&[usize], u64, &[usize])]) -> Answer {
        let mut answer = Answer::default();
        for (ranks, number, missing) in waits {
            let key = key(ranks, *number);
            answer.communicators.push(key.group);
            answer.counts.push((key.group, Members::All, number + 1));
            answer.calls.push(StartedCall {
                key,
                group: group(ranks),
                call: CallSite {
                    rank,
                    call: "barrier()".to_owned(),
                    number: *number,
                    at: SourceLine::new("a.rs", 1, 1),
                },
                is_waiting: true,
                missing: missing.to_vec(),
            });
        }
        answer
    }

    /// One inquiry in which these ranks answer. Returns the errors of the verdicts.
    fn ask(inquiries: &mut Inquiries, now: Instant, answers: Vec<Answer>) -> Vec<CommError> {
        let ranks: Vec<usize> = (0..answers.len()).collect();
        let messages = inquiries.advance(now, &ranks);
        let [Message::Inquiry { number, .. }] = messages[..] else {
            panic!("{messages:?}");
        };
        for (rank, answer) in answers.into_iter().enumerate() {
            inquiries.answer(rank, number, answer);
        }
        let verdicts = inquiries.advance(now, &ranks).into_iter();
        let error = |message| match message {
            Message::Verdict { error, .. } => Some(error),
            _ => None,
        };
        verdicts.filter_map(error).collect()
    }

    fn expired(ranks: &[usize], number: u64) -> (Inquiries, Instant) {
        let mut inquiries = Inquiries::default();
        inquiries.expired(key(ranks, number), LIMIT, GRACE, false);
        (inquiries, Instant::now())
    }

    const LATER: Duration = Duration::from_millis(10);

    #[test]
    fn a_missing_rank_is_named_after_the_grace_period() {
        let (mut inquiries, now) = expired(&[0, 1, 2], 4);
        let answers = || {
            let waits = |rank| answer(rank, &[(&[0, 1, 2], 4, &[1])]);
            vec![waits(0), answer(1, &[]), waits(2)]
        };
        let long_ago = now - Duration::from_secs(1); // within the grace period
        assert_eq!(ask(&mut inquiries, long_ago, answers()), []);
        let found = ask(&mut inquiries, now + LATER, answers());
        let [CommError::BootstrapStuck { missing, .. }] = &found[..] else {
            panic!("{found:?}");
        };
        assert_eq!(missing, &[1]);
    }

    /// Rank 1 has sent its part of collective 4 to rank 0, completed it, and waits in the next one.
    #[test]
    fn data_in_transit_is_not_an_order_inversion() {
        let (mut inquiries, now) = expired(&[0, 2], 0);
        let answers = || {
            vec![
                answer(0, &[(&[0, 1], 4, &[1])]),
                answer(1, &[(&[0, 1], 5, &[0])]),
                answer(2, &[(&[0, 2], 0, &[0])]),
            ]
        };
        assert_eq!(ask(&mut inquiries, now + LATER, answers()), []);
        // It is still undecided, so the ranks are asked again: not at once.
        assert_eq!(inquiries.advance(now + LATER * 2, &[0, 1, 2]), []);
        let next = now + LATER + AGAIN;
        assert_eq!(ask(&mut inquiries, next, answers()), []);
    }

    #[test]
    fn ranks_that_wait_for_each_other_are_found_at_once() {
        let (mut inquiries, now) = expired(&[0, 1], 0);
        let answers = vec![answer(0, &[(&[0, 1], 0, &[1])]), answer(1, &[(&[1, 0], 0, &[0])])];
        let found = ask(&mut inquiries, now - Duration::from_secs(1), answers);
        assert!(matches!(found[0], CommError::OrderInversion { .. }));
    }

    /// All members have started it in time, and one of them completes it late.
    #[test]
    fn a_slow_transfer_is_not_a_straggler() {
        let (mut inquiries, now) = expired(&[0, 1], 0);
        let mut done = answer(1, &[]);
        done.counts.push((key(&[0, 1], 0).group, Members::All, 1));
        let answers = vec![answer(0, &[(&[0, 1], 0, &[1])]), done];
        let first = answers[0].calls[0].call.clone();
        assert_eq!(ask(&mut inquiries, now - Duration::from_secs(1), answers.clone()), []);
        inquiries.failed(
            key(&[0, 1], 0).group,
            CommError::Straggler {
                group: group(&[0, 1]),
                late: first.clone(),
                first,
                after: LIMIT,
                limit: LIMIT,
            },
        );
        let found = ask(&mut inquiries, now, answers);
        let [CommError::Timeout { missing, .. }] = &found[..] else {
            panic!("{found:?}");
        };
        assert_eq!(missing, &[0; 0]);
    }
}
