//! The open collectives of a communicator, shared by its members.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use meshgrad_mesh::Group;
use meshgrad_runtime::{Completion, Result};

use super::execute::execute;
use super::status::Status;
use crate::contribution::{Arrival, Contribution};
use crate::error::{CallSite, CommError};
use crate::ticket::{Peer, Ticket};

pub(super) struct Table {
    group: Group,
    deadline: Duration,
    world: Arc<Status>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The first failure. It is permanent: members no longer agree on what comes next.
    failure: Option<CommError>,
    open: HashMap<Key, Meeting>,
}

/// Identifies a collective in its communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    between: Members,
    number: u64,
}

/// The members that take part, by their indices in the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Members {
    All,
    /// Sender and receiver.
    Two(usize, usize),
}

impl Members {
    fn of(index: usize, peer: Option<Peer>) -> Members {
        match peer {
            None => Members::All,
            Some(Peer::To(receiver)) => Members::Two(index, receiver),
            Some(Peer::From(sender)) => Members::Two(sender, index),
        }
    }

    /// The ranks, in the order of a meeting's places.
    fn ranks(self, group: &Group) -> Vec<usize> {
        let ranks = group.ranks();
        match self {
            Members::All => ranks.to_vec(),
            Members::Two(sender, receiver) => vec![ranks[sender], ranks[receiver]],
        }
    }
}

/// A collective that some members have started.
struct Meeting {
    completion: Completion,
    /// One per member.
    places: Vec<Option<Arrival>>,
}

/// A collective that this rank has started.
pub(super) struct Begun {
    pub(super) completion: Completion,
    key: Key,
    site: CallSite,
}

impl Table {
    pub(super) fn new(group: Group, deadline: Duration, world: Arc<Status>) -> Table {
        Table {
            group,
            deadline,
            world,
            state: Mutex::default(),
        }
    }

    pub(super) fn group(&self) -> &Group {
        &self.group
    }

    pub(super) fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Adds a member's part. The last member to arrive does the work on the calling thread.
    pub(super) fn arrive(
        &self,
        index: usize,
        ticket: Ticket,
        contribution: Contribution,
    ) -> Result<Begun, CommError> {
        let peer = ticket.request.peer;
        let between = Members::of(index, peer);
        let key = Key {
            between,
            number: ticket.number,
        };
        let place = match peer {
            None => index,
            Some(Peer::To(_)) => 0,
            Some(Peer::From(_)) => 1,
        };
        let site = CallSite::new(self.group.ranks()[index], &ticket);

        let mut state = self.lock();
        self.check_failure(&mut state)?;
        let meeting = state.open.entry(key).or_insert_with(|| Meeting {
            completion: Completion::default(),
            places: between.ranks(&self.group).iter().map(|_| None).collect(),
        });
        if let Some(error) = self.mismatch(between, meeting, &site, &ticket) {
            return Err(state.fail(error));
        }
        let completion = meeting.completion.clone();
        meeting.places[place] = Some(Arrival {
            ticket,
            contribution,
        });
        let is_complete = meeting.places.iter().all(Option::is_some);
        let done = is_complete.then(|| state.open.remove(&key)).flatten();
        if !is_complete && let Some(error) = self.returned(&state, key) {
            return Err(state.fail(error));
        }
        drop(state);

        if let Some(meeting) = done {
            self.finish(key, meeting);
        }
        Ok(Begun {
            completion,
            key,
            site,
        })
    }

    fn check_failure(&self, state: &mut State) -> Result<(), CommError> {
        let of_world = || self.world.failure();
        match state.failure.clone().or_else(of_world) {
            Some(failure) => Err(state.fail(failure)),
            None => Ok(()),
        }
    }

    /// The error if a call differs from the first that arrived.
    fn mismatch(
        &self,
        between: Members,
        meeting: &Meeting,
        site: &CallSite,
        ticket: &Ticket,
    ) -> Option<CommError> {
        let mut arrived = meeting.places.iter().zip(between.ranks(&self.group));
        let (first, rank) = arrived.find_map(|(place, rank)| Some((place.as_ref()?, rank)))?;
        let agrees = |one: &Ticket, other: &Ticket| {
            one.request
                .fingerprint
                .agrees_with(&other.request.fingerprint)
        };
        (!agrees(&first.ticket, ticket)).then(|| CommError::Mismatch {
            group: self.group.clone(),
            first: CallSite::new(rank, &first.ticket),
            second: site.clone(),
        })
    }

    /// The error if a member that is missing from an open collective has returned.
    fn returned(&self, state: &State, key: Key) -> Option<CommError> {
        let meeting = state.open.get(&key)?;
        let (missing, call) = self.missing(key, meeting);
        let missing = self.world.returned_of(&missing);
        (!missing.is_empty()).then_some(CommError::Returned {
            group: self.group.clone(),
            call: call?,
            missing,
        })
    }

    /// The ranks that are missing from a collective, and the first call that is not.
    fn missing(&self, key: Key, meeting: &Meeting) -> (Vec<usize>, Option<CallSite>) {
        let ranks = key.between.ranks(&self.group);
        let places = || meeting.places.iter().zip(&ranks);
        let missing = places().filter(|(place, _)| place.is_none());
        let first = places().find_map(|(place, rank)| {
            let arrival = place.as_ref()?;
            Some(CallSite::new(*rank, &arrival.ticket))
        });
        (missing.map(|(_, rank)| *rank).collect(), first)
    }

    /// Does the work of a collective whose members have all arrived.
    fn finish(&self, key: Key, meeting: Meeting) {
        let ranks = key.between.ranks(&self.group);
        let completion = meeting.completion;
        let guard = Interrupted {
            completion: &completion,
            group: &self.group,
            number: key.number,
        };
        let arrivals: Vec<Arrival> = meeting.places.into_iter().flatten().collect();
        let result = execute(&self.group, &ranks, &arrivals);
        drop(arrivals);
        guard.completion.complete(result);
    }

    /// Fails all open and later collectives.
    pub(super) fn fail(&self, failure: &CommError) {
        self.lock().fail(failure.clone());
    }

    /// Fails if a rank that returned is missing from an open collective.
    pub(super) fn fail_missing_returned(&self) {
        let mut state = self.lock();
        let mut open = state.open.keys().copied();
        if let Some(error) = open.find_map(|key| self.returned(&state, key)) {
            state.fail(error);
        }
    }

    /// Fails if members are still missing from a collective whose time is over.
    pub(super) fn expire(&self, begun: &Begun) {
        let mut state = self.lock();
        let Some(meeting) = state.open.get(&begun.key) else {
            return; // it runs, or has failed
        };
        let (missing, _) = self.missing(begun.key, meeting);
        let error = CommError::Timeout {
            group: self.group.clone(),
            call: begun.site.clone(),
            missing,
            waited: self.deadline,
        };
        state.fail(error);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Fails all open and later collectives, with the first failure, and returns it.
    fn fail(&mut self, failure: CommError) -> CommError {
        let failure = self.failure.get_or_insert(failure).clone();
        for (_, meeting) in self.open.drain() {
            meeting.completion.complete(Err(failure.clone().into()));
        }
        failure
    }
}

/// Completes a collective with an error if its work panics.
struct Interrupted<'a> {
    completion: &'a Completion,
    group: &'a Group,
    number: u64,
}

impl Drop for Interrupted<'_> {
    fn drop(&mut self) {
        if !self.completion.is_complete() {
            let error = CommError::Interrupted {
                group: self.group.clone(),
                number: self.number,
            };
            self.completion.complete(Err(error.into()));
        }
    }
}
