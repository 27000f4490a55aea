//! A collective that this rank has started.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use meshgrad_collectives::{CallSite, CommError, Counters, Counts, Fingerprint, Request, Ticket};
use meshgrad_error::Error;
use meshgrad_mesh::Group;
use meshgrad_runtime::{Completion, Result};

use super::bytes::Holders;
use super::engine::{self, Part};
use super::frame::Frame;
use super::message::{CallKey, GroupId, Message, RemoteCall, StartedCall, WireCall};
use crate::contribution::Contribution;
use crate::members::{Key, Members};

/// A communicator on this rank.
pub(super) struct Membership {
    pub(super) id: GroupId,
    pub(super) group: Group,
    /// This rank's index in the group.
    pub(super) index: usize,
    pub(super) deadline: Duration,
    /// The time after which ranks are asked why a collective is not complete.
    pub(super) look: Duration,
    /// How long members that miss it count as late, not as missing.
    pub(super) grace: Duration,
}

impl Membership {
    pub(super) fn rank(&self) -> usize {
        self.group.ranks()[self.index]
    }
}

pub(super) struct Call {
    pub(super) membership: Arc<Membership>,
    pub(super) completion: Completion,
    /// Whether this rank waits for it.
    pub(super) is_waiting: Arc<AtomicBool>,
    /// Whether the time limit of a member has passed, so that the call may not complete.
    pub(super) is_late: bool,
    key: Key,
    ticket: Ticket,
    contribution: Contribution,
    rounds: Vec<Fingerprint>,
    /// The current round.
    round: usize,
    /// Counts the frames with bytes of the lent tensor that are not sent yet.
    holders: Option<Holders>,
    /// One per member that takes part.
    places: Vec<Place>,
}

/// What has arrived from a member.
struct Place {
    member: usize,
    call: Option<RemoteCall>,
    /// When its call arrived.
    since: Option<Instant>,
    /// One per round.
    parts: Vec<Option<Part>>,
}

/// What another member sent.
pub(super) struct Arrival {
    pub(super) rank: usize,
    pub(super) round: usize,
    pub(super) call: WireCall,
    pub(super) part: Part,
    pub(super) at: Instant,
}

/// Frames to send, each with its receiver's rank.
pub(super) type Frames = Vec<(usize, Frame)>;

impl Call {
    /// A call, and the frames of its first round. The call takes its number only when nothing can
    /// fail any more.
    pub(super) fn new(
        membership: &Arc<Membership>,
        request: Request,
        counters: &Counters,
        contribution: Contribution,
    ) -> Result<(Call, Frames)> {
        let (index, size) = (membership.index, membership.group.len());
        let members = Members::of(index, request.peer).indices(size);
        let rounds = match contribution.is_empty() {
            true => vec![engine::WITHOUT_TENSORS],
            false => engine::rounds(&request.fingerprint, size),
        };
        let (parts, holders) = {
            let mut tensors = contribution.lock();
            engine::parts(&mut tensors, &rounds[0], index, &members)?
        };
        let ticket = counters.ticket(request);
        let place =
            |member| Place { member, call: None, since: None, parts: vec![None; rounds.len()] };
        let mut call = Call {
            membership: membership.clone(),
            completion: Completion::default(),
            is_waiting: Arc::default(),
            is_late: false,
            key: Key::of(index, ticket.request.peer, ticket.number),
            places: members.iter().copied().map(place).collect(),
            ticket,
            contribution,
            rounds,
            round: 0,
            holders,
        };
        let frames = call.send(parts);
        Ok((call, frames))
    }

    pub(super) fn key(&self) -> CallKey {
        CallKey { group: self.membership.id, key: self.key }
    }

    pub(super) fn site(&self) -> CallSite {
        CallSite::new(self.membership.rank(), &self.ticket)
    }

    /// Keeps this rank's own part of the current round. Returns frames with the other parts.
    fn send(&mut self, parts: Vec<Part>) -> Frames {
        let (key, round) = (self.key(), self.round);
        let own = WireCall::new(&self.ticket.request);
        let mut frames = Vec::new();
        for (place, part) in self.places.iter_mut().zip(parts) {
            if place.member == self.membership.index {
                place.call = own.clone().read(self.membership.group.len());
                place.since.get_or_insert_with(Instant::now);
                place.parts[round] = Some(part);
                continue;
            }
            let call = own.clone();
            let frame = Frame { message: Message::Part { key, round, call }, payload: part };
            frames.push((self.membership.group.ranks()[place.member], frame));
        }
        frames
    }

    /// Adds a part of another member. Parts that are not expected are ignored.
    ///
    /// # Errors
    /// When its call differs.
    pub(super) fn add(&mut self, arrival: Arrival) -> Result<(), CommError> {
        let Arrival { rank, round, call, part, at } = arrival;
        let group = &self.membership.group;
        let ranks = group.ranks();
        let place = self.places.iter_mut().find(|it| ranks[it.member] == rank);
        let Some(place) = place else {
            return Ok(());
        };
        place.since.get_or_insert(at);
        if let (Some(slot @ None), Some(call)) =
            (place.parts.get_mut(round), call.clone().read(ranks.len()))
        {
            *slot = Some(part);
            place.call = Some(call);
        } else if let Some(call) = call.read(ranks.len()) {
            place.call.get_or_insert(call); // of another number of rounds
        }
        self.check_agreement()
    }

    fn check_agreement(&self) -> Result<(), CommError> {
        let mut calls = self.calls();
        let Some((first, rank)) = calls.next() else {
            return Ok(());
        };
        let differs = |other: &&RemoteCall| !first.fingerprint.agrees_with(&other.fingerprint);
        let other = calls.find(|(other, _)| differs(other));
        match other {
            None => Ok(()),
            Some((other, other_rank)) => Err(CommError::Mismatch {
                group: self.membership.group.clone(),
                first: first.site(rank, self.ticket.number),
                second: other.site(other_rank, self.ticket.number),
            }),
        }
    }

    /// The calls that have arrived, with their ranks.
    fn calls(&self) -> impl Iterator<Item = (&RemoteCall, usize)> {
        let ranks = self.membership.group.ranks();
        let calls = self.places.iter();
        calls.filter_map(|place| Some((place.call.as_ref()?, ranks[place.member])))
    }

    /// The ranks whose part of the current round has not arrived.
    pub(super) fn missing(&self) -> Vec<usize> {
        let ranks = self.membership.group.ranks();
        let missing = self.places.iter().filter(|it| it.parts[self.round].is_none());
        missing.map(|place| ranks[place.member]).collect()
    }

    /// Ends the loan of the call's tensors and completes it with an error.
    pub(super) fn fail(self, error: Error) {
        let completion = self.completion.clone();
        drop(self);
        completion.complete(Err(error));
    }

    /// What this rank reports to the coordinator about the call.
    pub(super) fn started(&self) -> StartedCall {
        StartedCall {
            key: self.key(),
            group: self.membership.group.clone(),
            call: self.site(),
            is_waiting: self.is_waiting.load(Ordering::Relaxed),
            missing: self.missing(),
        }
    }

    /// The error of a call whose `missing` ranks have left.
    pub(super) fn returned(&self, missing: Vec<usize>) -> CommError {
        CommError::Returned { group: self.membership.group.clone(), call: self.site(), missing }
    }

    /// The error of a call that is ready, but too late.
    pub(super) fn straggler(&self) -> CommError {
        let ranks = self.membership.group.ranks();
        let site = |place: &Place| {
            let call = place.call.as_ref();
            let site = call.map(|call| call.site(ranks[place.member], self.ticket.number));
            site.unwrap_or_else(|| self.site())
        };
        let first = self.places.iter().min_by_key(|place| place.since);
        let last = self.places.iter().max_by_key(|place| place.since);
        let since = |place: Option<&Place>| place.and_then(|place| place.since);
        let after = since(last).zip(since(first)).map(|(last, first)| last - first);
        CommError::Straggler {
            group: self.membership.group.clone(),
            first: first.map_or_else(|| self.site(), site),
            late: last.map_or_else(|| self.site(), site),
            after: after.unwrap_or_default(),
            limit: self.membership.deadline,
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        self.places.iter().all(|it| it.parts[self.round].is_some()) && !self.is_sending()
    }

    /// Whether frames with bytes of the lent tensor are not sent yet.
    pub(super) fn is_sending(&self) -> bool {
        self.holders.as_ref().is_some_and(|it| it.count() > 0)
    }

    /// Does the work of a round whose parts have all arrived. Returns the frames of the next round;
    /// `None` if it was the last one.
    pub(super) fn finish_round(&mut self) -> Result<Option<Frames>> {
        self.check_parts()?;
        let round = &self.rounds[self.round];
        let taken = self.places.iter_mut().map(|it| it.parts[self.round].take());
        let parts: Vec<Part> = taken.flatten().collect();
        if self.round + 1 == self.rounds.len() {
            engine::finish(&mut self.contribution.lock(), round, &parts)?;
            return Ok(None);
        }
        let reduced = engine::reduced(round, &parts)?;
        self.round += 1;
        let next = &self.rounds[self.round];
        let members: Vec<usize> = self.places.iter().map(|place| place.member).collect();
        let parts = engine::parts_of(&reduced, next, self.membership.index, &members)?;
        Ok(Some(self.send(parts)))
    }

    /// Checks that each part has the expected length, and that pairs of members agree.
    fn check_parts(&self) -> Result<(), CommError> {
        self.check_pairs()?;
        let round = &self.rounds[self.round];
        let (number, group) = (self.ticket.number, &self.membership.group);
        for place in &self.places {
            let bytes = place.parts[self.round].as_ref().map_or(0, |part| part.len());
            let is_receiver = match self.key.between {
                Members::All => true,
                Members::Two(sender, receiver) => {
                    place.member == sender && receiver == self.membership.index
                }
            };
            let expected = match is_receiver {
                true => engine::expected(round, place.member, self.membership.index),
                false => bytes,
            };
            if bytes != expected {
                return Err(CommError::Corrupt {
                    group: group.clone(),
                    number,
                    rank: group.ranks()[place.member],
                    bytes,
                    expected,
                });
            }
        }
        Ok(())
    }

    fn check_pairs(&self) -> Result<(), CommError> {
        let number = self.ticket.number;
        for (from, (sender, sender_rank)) in self.calls().enumerate() {
            for (to, (receiver, receiver_rank)) in self.calls().enumerate() {
                let (Counts::Pairwise { send, .. }, Counts::Pairwise { recv, .. }) =
                    (&sender.fingerprint.counts, &receiver.fingerprint.counts)
                else {
                    return Ok(());
                };
                if send[to] != recv[from] {
                    return Err(CommError::PairCounts {
                        group: self.membership.group.clone(),
                        sender: sender.site(sender_rank, number),
                        receiver: receiver.site(receiver_rank, number),
                        sent: send[to],
                        expected: recv[from],
                    });
                }
            }
        }
        Ok(())
    }
}
