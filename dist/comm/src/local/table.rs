//! The open collectives of a communicator, shared by its members.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use meshgrad_collectives::{CallSite, Clock, CommError, Fingerprint, Ticket};
use meshgrad_error::Error;
use meshgrad_mesh::Group;
use meshgrad_runtime::{Completion, Result};

use super::execute::execute;
use super::meeting::{Failed, Meeting, release};
use super::rules::Rules;
use super::status::Status;
use super::watch::{Attempt, Expiry, OpenCollectives, Snapshot, Watch};
use crate::contribution::Arrival;
use crate::members::{Key, place};
use crate::verdict::first_look;

/// What the tables of a world share.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) status: Status,
    pub(super) watch: Watch,
    pub(super) rules: Rules,
}

pub(super) struct Table {
    group: Group,
    deadline: Duration,
    world: Arc<Shared>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The first failure. It is permanent: members no longer agree on what comes next.
    failure: Option<Error>,
    open: HashMap<Key, Meeting>,
    /// The members that have the communicator, by index.
    joined: Vec<usize>,
}

/// What follows a member's arrival.
enum Next {
    /// Other members are missing.
    Wait,
    /// All members have arrived in time.
    Finish(Meeting),
    /// All have arrived, but one after the time limit of another.
    TooLate(Error),
}

/// A collective that this rank has started.
#[derive(Clone)]
pub(super) struct Begun {
    completion: Completion,
    key: Key,
    rank: usize,
    /// When its time is over.
    until: Option<Duration>,
}

impl Table {
    pub(super) fn new(group: Group, deadline: Duration, world: Arc<Shared>) -> Table {
        Table { group, deadline, world, state: Mutex::default() }
    }

    pub(super) fn group(&self) -> &Group {
        &self.group
    }

    pub(super) fn rules(&self) -> &Rules {
        &self.world.rules
    }

    pub(super) fn time_limit(&self) -> Duration {
        self.deadline
    }

    /// Its first failure.
    pub(super) fn failure(&self) -> Option<Error> {
        self.lock().failure.clone()
    }

    /// Records that a member has the communicator.
    pub(super) fn join(&self, index: usize) {
        self.lock().joined.push(index);
    }

    /// Adds a member's part of a collective, or of several fused ones, which are one entry here.
    /// The last member to arrive does the work on the calling thread.
    pub(super) fn arrive(self: &Arc<Table>, index: usize, calls: Vec<Arrival>) -> Result<Begun> {
        let (rank, ticket) = (self.group.ranks()[index], &calls[0].ticket);
        let peer = ticket.request.peer;
        let (key, place) = (Key::of(index, peer, ticket.number), place(index, peer));
        let now = self.rules().clock.now();
        let failure = self.world.status.begin(rank, &self.group, ticket);

        let mut failed = Failed::default();
        let mut state = self.lock();
        let added = match state.failure.clone().or(failure) {
            Some(failure) => Err(failure),
            None => self.add(&mut state, key, (place, rank), calls, now),
        };
        let added = added.map_err(|error| state.fail(error, &mut failed));
        drop(state);
        failed.complete();

        let (completion, next) = added?;
        match next {
            Next::Wait => {}
            Next::Finish(meeting) => self.finish(key, meeting),
            Next::TooLate(error) => {
                let table: Arc<dyn OpenCollectives> = self.clone();
                return Err(self.world.watch.fail(key, &table, error));
            }
        }
        Ok(Begun { completion, key, rank, until: now.checked_add(self.look()) })
    }

    /// Adds a member's calls to its collective. An error fails the communicator.
    fn add(
        &self,
        state: &mut State,
        key: Key,
        (place, rank): (usize, usize),
        calls: Vec<Arrival>,
        now: Duration,
    ) -> Result<(Completion, Next)> {
        let members = || key.between.ranks(&self.group).len();
        let meeting = state.open.entry(key);
        let meeting = meeting.or_insert_with(|| Meeting::new(now, members()));
        if let Some(error) = self.mismatch(key, meeting, rank, &calls) {
            return Err(error.into());
        }
        let completion = meeting.completion.clone();
        let late = meeting.is_late.then(|| site(rank, &calls));
        meeting.places[place] = Some(calls);
        let is_complete = meeting.places.iter().all(Option::is_some);
        if is_complete && let Some(late) = late {
            let error = self.straggler(key, meeting, late, now);
            return Ok((completion, Next::TooLate(error.into())));
        }
        let done = is_complete.then(|| state.open.remove(&key)).flatten();
        match done {
            Some(meeting) => Ok((completion, Next::Finish(meeting))),
            None => match self.returned(state, key) {
                Some(error) => Err(error.into()),
                None => Ok((completion, Next::Wait)),
            },
        }
    }

    /// Waits for a collective. If its time is over, all that wait for the same ranks fail with the
    /// same verdict.
    pub(super) fn wait(self: &Arc<Table>, begun: &Begun, clock: &Clock) -> Result<()> {
        if begun.completion.is_complete() {
            return begun.completion.wait();
        }
        let (world, table) = (&self.world, self.clone() as Arc<dyn OpenCollectives>);
        let _waiting = world.watch.enter(begun.rank, begun.key, table.clone());
        let (mut until, mut attempt) = (begun.until, Attempt::AtLimit);
        loop {
            if let Some(result) = clock.wait(&begun.completion, until) {
                return result;
            }
            let limit = self.deadline;
            let expired = world.watch.expire(begun.key, &table, &world.status, limit, attempt);
            let left = match expired {
                Expiry::Extend => {
                    let left = limit.saturating_sub(self.look());
                    Some((left.saturating_add(self.rules().grace(limit)), Attempt::AfterGrace))
                }
                Expiry::Again => Some((self.look(), Attempt::AtLimit)),
                Expiry::Over => None,
            };
            until = left.and_then(|(left, _)| clock.now().checked_add(left));
            attempt = left.map_or(attempt, |(_, next)| next);
        }
    }

    fn look(&self) -> Duration {
        first_look(&self.group, self.deadline)
    }

    /// The error if a call differs from the first that arrived.
    fn mismatch(
        &self,
        key: Key,
        meeting: &Meeting,
        rank: usize,
        calls: &[Arrival],
    ) -> Option<CommError> {
        let (place, first) = meeting.first()?;
        let first_rank = || key.between.ranks(&self.group)[place];
        let (first, second) = if first.len() == calls.len() {
            let mut pairs = first.iter().zip(calls);
            let (one, other) = pairs.find(|(one, other)| !agree(&one.ticket, &other.ticket))?;
            (CallSite::new(first_rank(), &one.ticket), CallSite::new(rank, &other.ticket))
        } else {
            (site(first_rank(), first), site(rank, calls))
        };
        Some(CommError::Mismatch { group: self.group.clone(), first, second })
    }

    /// The error if the last member of a collective arrived after the time limit of another.
    fn straggler(&self, key: Key, meeting: &Meeting, late: CallSite, now: Duration) -> CommError {
        let ranks = key.between.ranks(&self.group);
        let calls = meeting.places.iter().zip(ranks);
        let mut others = calls.filter(|(_, rank)| *rank != late.rank);
        let first = others.find_map(|(calls, rank)| Some(site(rank, calls.as_ref()?)));
        CommError::Straggler {
            group: self.group.clone(),
            first: first.unwrap_or_else(|| late.clone()),
            late,
            after: now.saturating_sub(meeting.since),
            limit: self.deadline,
        }
    }

    /// The error if a member that is missing from an open collective has returned.
    fn returned(&self, state: &State, key: Key) -> Option<CommError> {
        let meeting = state.open.get(&key)?;
        let (place, first) = meeting.first()?;
        let rank = || key.between.ranks(&self.group)[place];
        let missing = self.missing(key, meeting);
        let call = || Some(site(rank(), first));
        self.world.status.returned(&self.group, &missing, call)
    }

    /// The ranks that are missing from a collective.
    fn missing(&self, key: Key, meeting: &Meeting) -> Vec<usize> {
        let places = meeting.places.iter().zip(key.between.ranks(&self.group));
        let missing = places.filter(|(arrival, _)| arrival.is_none());
        missing.map(|(_, rank)| rank).collect()
    }

    /// Does the work of a collective whose members have all arrived.
    fn finish(self: &Arc<Table>, key: Key, meeting: Meeting) {
        let ranks = key.between.ranks(&self.group);
        let completion = meeting.completion;
        let guard =
            Interrupted { completion: Some(&completion), group: &self.group, number: key.number };
        let fused = by_call(meeting.places);
        let end = self.end_of_transfer(&ranks, &fused);
        let mut works = fused
            .iter()
            .map(|arrivals| execute(&self.group, &ranks, arrivals, || self.threads(key)));
        let result = works.find(Result::is_err).unwrap_or(Ok(()));
        drop(works);
        let abandoned = release(fused.into_iter().flatten());
        guard.disarm();
        match end {
            Some(end) => self.rules().clock.complete_at(end, completion, result),
            None => drop(completion.complete(result)),
        }
        drop(abandoned); // other members do not wait for this
    }

    /// When the links have transferred collectives that start now; `None` without links.
    fn end_of_transfer(&self, ranks: &[usize], fused: &[Vec<Arrival>]) -> Option<Duration> {
        let links = self.rules().links.as_ref()?;
        let fingerprint = |one: &Arrival| one.ticket.request.fingerprint.clone();
        let of_members = |one: &Vec<Arrival>| one.iter().map(fingerprint).collect();
        let calls: Vec<Vec<Fingerprint>> = fused.iter().map(of_members).collect();
        Some(links.end(self.rules().clock.now(), ranks, &calls))
    }

    /// The threads for a large collective: this rank's, and those of the ranks that wait for it.
    fn threads(self: &Arc<Table>, key: Key) -> usize {
        let table: Arc<dyn OpenCollectives> = self.clone();
        let idle = self.world.watch.waiting_in(key, &table);
        let cores = thread::available_parallelism().map_or(1, usize::from);
        (self.rules().threads * (1 + idle)).min(cores)
    }

    /// Fails if a rank that returned is missing from an open collective.
    pub(super) fn fail_missing_returned(&self) {
        let mut failed = Failed::default();
        let mut state = self.lock();
        let mut open: Vec<Key> = state.open.keys().copied().collect();
        open.sort_unstable();
        if let Some(error) = open.iter().find_map(|key| self.returned(&state, *key)) {
            state.fail(error.into(), &mut failed);
        }
        drop(state);
        failed.complete();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenCollectives for Table {
    fn group(&self) -> &Group {
        &self.group
    }

    fn snapshot(&self, key: Key) -> Option<Snapshot> {
        let state = self.lock();
        let meeting = state.open.get(&key)?;
        let calls = meeting.places.iter().zip(key.between.ranks(&self.group));
        let calls = calls.filter_map(|(calls, rank)| Some(site(rank, calls.as_ref()?)));
        let missing = self.missing(key, meeting);
        let has_joined = |rank: &usize| {
            let index = self.group.index_of(*rank);
            index.is_some_and(|index| state.joined.contains(&index))
        };
        let not_joined = missing.iter().copied().filter(|rank| !has_joined(rank));
        Some(Snapshot { calls: calls.collect(), not_joined: not_joined.collect(), missing })
    }

    fn set_late(&self, key: Key) {
        if let Some(meeting) = self.lock().open.get_mut(&key) {
            meeting.is_late = true;
        }
    }

    fn fail(&self, error: &Error, failed: &mut Failed) -> Error {
        self.lock().fail(error.clone(), failed)
    }
}

impl State {
    /// Fails all open and later collectives, with the first failure, and returns it. Those that
    /// were open are moved to `failed`.
    fn fail(&mut self, failure: Error, failed: &mut Failed) -> Error {
        let failure = self.failure.get_or_insert(failure).clone();
        for (_, meeting) in self.open.drain() {
            failed.push(meeting, failure.clone());
        }
        failure
    }
}

fn agree(one: &Ticket, other: &Ticket) -> bool {
    let (one, other) = (&one.request, &other.request);
    one.fingerprint.agrees_with(&other.fingerprint)
}

/// A member's call, or its fused calls as one.
fn site(rank: usize, calls: &[Arrival]) -> CallSite {
    let mut site = CallSite::new(rank, &calls[0].ticket);
    if calls.len() > 1 {
        let texts = calls.iter().map(|one| one.ticket.request.fingerprint.to_string());
        site.call = format!("fuse({})", texts.collect::<Vec<_>>().join(", "));
    }
    site
}

/// Transposes the arrivals of fused calls: from one list per member to one list per call.
fn by_call(places: Vec<Option<Vec<Arrival>>>) -> Vec<Vec<Arrival>> {
    let mut members: Vec<_> = places.into_iter().flatten().map(Vec::into_iter).collect();
    let calls = members.first().map_or(0, ExactSizeIterator::len);
    let of_call = |_| members.iter_mut().filter_map(Iterator::next).collect();
    (0..calls).map(of_call).collect()
}

/// Completes a collective with an error if its work panics.
struct Interrupted<'a> {
    completion: Option<&'a Completion>,
    group: &'a Group,
    number: u64,
}

impl Interrupted<'_> {
    fn disarm(mut self) {
        self.completion = None;
    }
}

impl Drop for Interrupted<'_> {
    fn drop(&mut self) {
        if let Some(completion) = self.completion {
            let error = CommError::Interrupted { group: self.group.clone(), number: self.number };
            completion.complete(Err(error.into()));
        }
    }
}

#[cfg(test)]
mod tests;
