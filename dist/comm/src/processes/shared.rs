//! What the threads of a rank share: its open collectives, and what has arrived early.
//!
//! Lock order: the state first, then tensors and completions.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use meshgrad_collectives::CommError;
use meshgrad_error::{Error, FailedRank, Result, error};
use meshgrad_runtime::Completion;

use super::call::{Arrival, Call, Membership};
use super::frame::Frame;
use super::message::{Answer, CallKey, GroupId, Message};
use super::poll::Waker;
use crate::first_failure::report_failure;
use crate::members::Members;
use crate::verdict::is_control;

pub(super) struct Shared {
    pub(super) rank: usize,
    pub(super) world: usize,
    waker: Waker,
    state: Mutex<State>,
    /// Notified when an exchange is complete or the world ends.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Why no collective can complete any more.
    ended: Option<Ended>,
    /// The failures of communicators. They are permanent.
    failed: HashMap<GroupId, Error>,
    /// The communicators whose failure this rank has reported.
    reported: HashSet<GroupId>,
    /// Those that this rank has.
    communicators: HashSet<GroupId>,
    /// The number of collectives that this rank has started.
    counts: HashMap<(GroupId, Members), u64>,
    /// When the coordinator last asked.
    asked: Option<Instant>,
    open: HashMap<CallKey, Call>,
    /// Parts of collectives that this rank has not started.
    early: HashMap<CallKey, Vec<Arrival>>,
    /// Collectives that this rank has not started and that may not complete any more.
    late: HashSet<CallKey>,
    /// The ranks that left, with the number of frames that they have sent here.
    left: BTreeMap<usize, u64>,
    /// The frames received from each rank and sent to it.
    received: Vec<u64>,
    sent: Vec<u64>,
    outbox: Outbox,
    gathered: HashMap<u64, Vec<Vec<u8>>>,
}

/// Why the world ended for this rank.
#[derive(Clone, Debug)]
pub(super) enum Ended {
    /// A rank failed or its process ended.
    Died(FailedRank),
    /// This rank left.
    Left,
}

/// Requests to the progress thread.
#[derive(Default)]
pub(super) struct Outbox {
    /// Frames for other ranks.
    pub(super) data: Vec<(usize, Frame)>,
    /// Frames for the coordinator.
    pub(super) control: Vec<Frame>,
    /// Whether this rank leaves.
    pub(super) leave: bool,
}

impl Shared {
    pub(super) fn new(rank: usize, world: usize, waker: Waker) -> Shared {
        let state = State { received: vec![0; world], sent: vec![0; world], ..State::default() };
        Shared { rank, world, waker, state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(super) fn wake(&self) {
        self.waker.wake();
    }

    /// Starts a collective with the frames of its first round.
    pub(super) fn start(&self, call: Call, frames: Vec<(usize, Frame)>) -> Result<()> {
        let key = call.key();
        let mut state = self.lock();
        state.check(&call)?;
        let count = (key.group, key.key.between);
        state.counts.insert(count, key.key.number + 1);
        state.push(frames);
        state.insert(call);
        state.check_left();
        // The frames leave while this rank works on the collective.
        self.wake();
        self.settle(state, key);
        Ok(())
    }

    /// Does the work of a collective, round by round, while all parts of a round have arrived. The
    /// state is not locked during the work.
    fn settle<'a>(&'a self, mut state: MutexGuard<'a, State>, key: CallKey) {
        while let Some(call) = state.open.get(&key)
            && call.is_ready()
            && !state.reported.contains(&key.group)
        {
            if call.is_late {
                let straggler = call.straggler();
                state.report(key.group, straggler);
                self.wake();
                return;
            }
            let Some(mut call) = state.open.remove(&key) else {
                return;
            };
            drop(state);
            let guard =
                Interrupted(&call.completion.clone(), &call.membership.clone(), key.key.number);
            let result = call.finish_round();
            state = self.lock();
            match result {
                Ok(None) => {
                    guard.0.complete(Ok(()));
                    return;
                }
                Ok(Some(frames)) => match state.check(&call) {
                    Ok(()) => {
                        state.push(frames);
                        state.insert(call);
                        state.check_left();
                        self.wake();
                    }
                    Err(error) => {
                        guard.0.complete(Err(error));
                        return;
                    }
                },
                Err(error) => {
                    if let Some(error) = error.details::<CommError>() {
                        state.report(key.group, error.clone());
                        self.wake();
                    }
                    guard.0.complete(Err(error));
                    return;
                }
            }
        }
    }

    /// Does the work of collectives that waited only until their frames were sent.
    pub(super) fn settle_sent(&self) {
        let state = self.lock();
        let ready = state.open.values().filter(|call| call.is_ready());
        let keys: Vec<CallKey> = ready.map(Call::key).collect();
        drop(state);
        keys.into_iter().for_each(|key| self.settle(self.lock(), key));
    }

    /// Handles a frame of another rank. An error is the reason to close the connection.
    pub(super) fn deliver(&self, rank: usize, frame: Frame) -> Result<(), &'static str> {
        let mut state = self.lock();
        state.received[rank] += 1;
        match frame.message {
            Message::Part { key, round, call } => {
                let arrival =
                    Arrival { rank, round, call, part: frame.payload, at: Instant::now() };
                state.arrive(key, arrival);
                if state.left.contains_key(&rank) {
                    state.check_left();
                }
                self.settle(state, key);
            }
            _ => return Err("it sent a message that is not for a rank"),
        }
        Ok(())
    }

    /// Reports a collective that is still open at its time limit. Returns whether it is.
    pub(super) fn expire(&self, key: CallKey) -> bool {
        let mut state = self.lock();
        let Some(call) = state.open.get_mut(&key) else {
            return false; // it runs, or is complete
        };
        let of = &call.membership;
        let is_control = is_control(&of.group);
        call.is_late |= !is_control;
        let message = Message::Expired { key, limit: of.deadline, grace: of.grace, is_control };
        state.outbox.control.push(message.into());
        drop(state);
        self.wake();
        true
    }

    /// Answers an inquiry of the coordinator. The collectives of `late` may not complete any more.
    pub(super) fn inquire(&self, number: u64, late: Vec<CallKey>) {
        let mut state = self.lock();
        state.asked = Some(Instant::now());
        for key in late {
            let started = state.counts.get(&(key.group, key.key.between));
            let is_started = started.is_some_and(|started| key.key.number < *started);
            if let Some(call) = state.open.get_mut(&key) {
                call.is_late = true;
            } else if !is_started && !state.failed.contains_key(&key.group) {
                state.late.insert(key);
            }
        }
        let counts = state.counts.iter();
        let answer = Answer {
            calls: state.open.values().map(Call::started).collect(),
            communicators: state.communicators.iter().copied().collect(),
            counts: counts.map(|(of, count)| (of.0, of.1, *count)).collect(),
        };
        // Numbers and texts can always be serialized. An empty answer would be unreadable.
        let payload = serde_json::to_vec(&answer).unwrap_or_default().into();
        let message = Message::Answer { number };
        state.outbox.control.push(Frame { message, payload });
    }

    /// Fails communicators, as the coordinator decided.
    pub(super) fn verdict(&self, communicators: &[GroupId], error: &Error) {
        let mut state = self.lock();
        for id in communicators {
            state.fail(*id, error);
        }
    }

    /// When the coordinator last asked this rank.
    pub(super) fn asked(&self) -> Option<Instant> {
        self.lock().asked
    }

    /// Records that this rank has a communicator.
    pub(super) fn join(&self, id: GroupId) {
        self.lock().communicators.insert(id);
    }

    /// Ends the world: every collective that waits or starts later fails. The first reason counts.
    pub(super) fn end(&self, ended: Ended) {
        let mut state = self.lock();
        let ended = state.ended.get_or_insert(ended).clone();
        for (_, call) in state.open.drain() {
            let error = ended.error(&call);
            call.fail(error);
        }
        state.early.clear();
        drop(state);
        self.changed.notify_all();
    }

    /// Ends the world because a rank failed or its process ended.
    pub(super) fn died(&self, rank: usize, reason: impl Into<String>) {
        let reason = reason.into();
        report_failure(rank);
        self.end(Ended::Died(FailedRank { rank, reason }));
    }

    /// The rank whose failure ended the world.
    pub(super) fn death(&self) -> Option<FailedRank> {
        match &self.lock().ended {
            Some(Ended::Died(failed)) => Some(failed.clone()),
            _ => None,
        }
    }

    /// Why collectives of a communicator fail from now on.
    pub(super) fn failure(&self, communicator: GroupId) -> Option<Error> {
        let state = self.lock();
        match &state.ended {
            Some(Ended::Died(failed)) => {
                let FailedRank { rank, reason } = failed;
                let error = error!(PeerFailed, "rank {rank} died: {reason}");
                Some(error.and_details(failed.clone()))
            }
            _ => state.failed.get(&communicator).cloned(),
        }
    }

    /// Whether a collective waits for other ranks.
    #[cfg(feature = "mpi")]
    pub(super) fn is_waiting(&self) -> bool {
        !self.lock().open.is_empty()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.lock().ended.is_some()
    }

    /// Whether the world or a communicator of this rank has failed.
    pub(super) fn has_failed(&self) -> bool {
        let state = self.lock();
        let is_own = |id| state.communicators.contains(id);
        state.ended.is_some() || state.failed.keys().any(is_own)
    }

    /// Records that a rank left after `sent` frames.
    pub(super) fn left(&self, rank: usize, sent: u64) {
        let mut state = self.lock();
        state.left.insert(rank, sent);
        state.check_left();
        drop(state);
        self.changed.notify_all();
    }

    /// Reports a collective that has received all parts, but whose own part will not be received,
    /// because the receiver has left.
    #[cfg(feature = "mpi")]
    pub(super) fn not_received(&self, key: CallKey, receiver: usize) {
        let mut state = self.lock();
        if let Some(call) = state.open.get(&key) {
            let error = call.returned(vec![receiver]);
            state.report(key.group, error);
            drop(state);
            self.wake();
        }
    }

    pub(super) fn has_left(&self, rank: usize) -> bool {
        self.lock().left.contains_key(&rank)
    }

    /// Asks the progress thread to send what is left and to end.
    pub(super) fn leave(&self) {
        self.lock().outbox.leave = true;
        self.wake();
    }

    pub(super) fn take_outbox(&self) -> Outbox {
        let mut state = self.lock();
        Outbox {
            leave: state.outbox.leave,
            data: std::mem::take(&mut state.outbox.data),
            control: std::mem::take(&mut state.outbox.control),
        }
    }

    /// The numbers of frames sent to each rank.
    pub(super) fn sent(&self) -> Vec<u64> {
        self.lock().sent.clone()
    }

    pub(super) fn gather(&self, number: u64, bytes: &[u8]) {
        let frame = Frame { message: Message::Gather { number }, payload: bytes.to_vec().into() };
        self.lock().outbox.control.push(frame);
        self.wake();
    }

    pub(super) fn gathered(&self, number: u64, parts: Vec<Vec<u8>>) {
        self.lock().gathered.insert(number, parts);
        self.changed.notify_all();
    }

    /// Waits for an exchange. The error is the reason why it cannot complete.
    pub(super) fn wait_gathered(
        &self,
        number: u64,
        limit: Duration,
    ) -> Result<Vec<Vec<u8>>, String> {
        let began = Instant::now();
        let mut state = self.lock();
        loop {
            if let Some(parts) = state.gathered.remove(&number) {
                return Ok(parts);
            }
            match &state.ended {
                Some(Ended::Died(FailedRank { rank, reason })) => {
                    return Err(format!("rank {rank} died: {reason}"));
                }
                Some(Ended::Left) => return Err("this rank has left the world".to_owned()),
                None => {}
            }
            if let Some(rank) = state.left.keys().next() {
                return Err(format!("rank {rank} left the world"));
            }
            let left = limit.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Err("not all ranks called it in time".to_owned());
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Why a call cannot complete any more.
    fn check(&self, call: &Call) -> Result<()> {
        if let Some(ended) = &self.ended {
            return Err(ended.error(call));
        }
        match self.failed.get(&call.membership.id) {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    fn push(&mut self, frames: Vec<(usize, Frame)>) {
        for (rank, _) in &frames {
            self.sent[*rank] += 1;
        }
        self.outbox.data.extend(frames);
    }

    /// Opens a call and adds what has arrived early.
    fn insert(&mut self, mut call: Call) {
        let key = call.key();
        call.is_late |= self.late.remove(&key);
        self.open.insert(key, call);
        for arrival in self.early.remove(&key).into_iter().flatten() {
            self.arrive(key, arrival);
        }
    }

    fn arrive(&mut self, key: CallKey, arrival: Arrival) {
        let Some(call) = self.open.get_mut(&key) else {
            if self.ended.is_none() && !self.failed.contains_key(&key.group) {
                self.early.entry(key).or_default().push(arrival);
            }
            return;
        };
        if let Err(error) = call.add(arrival) {
            self.report(key.group, error);
        }
    }

    /// Reports once to the coordinator that a communicator has to fail; the coordinator's verdict
    /// fails it.
    fn report(&mut self, communicator: GroupId, error: CommError) {
        if self.reported.insert(communicator) {
            let message = Message::Failed { communicator, error };
            self.outbox.control.push(message.into());
        }
    }

    /// Fails a communicator: its open and later collectives. The first failure counts.
    fn fail(&mut self, id: GroupId, error: &Error) {
        let error = self.failed.entry(id).or_insert_with(|| error.clone());
        for (_, call) in self.open.extract_if(|key, _| key.group == id) {
            call.fail(error.clone());
        }
        self.early.retain(|key, _| key.group != id);
        self.late.retain(|key| key.group != id);
    }

    /// Fails collectives that wait for a rank that left, if all frames of that rank have arrived.
    fn check_left(&mut self) {
        let State { left, received, .. } = &*self;
        if left.is_empty() {
            return;
        }
        let has_left = |rank: &usize| left.get(rank).is_some_and(|sent| received[*rank] >= *sent);
        let failures = self.open.values().filter_map(|call| {
            let mut missing = call.missing();
            missing.retain(has_left);
            (!missing.is_empty()).then(|| (call.membership.id, call.returned(missing)))
        });
        for (id, error) in failures.collect::<Vec<_>>() {
            self.report(id, error);
        }
    }
}

impl Ended {
    fn error(&self, call: &Call) -> Error {
        let (group, call) = (&call.membership.group, call.site());
        match self {
            Ended::Died(failed) => error!(
                PeerFailed,
                "collective {} of {group}: {call}, but rank {} died: {}",
                call.number,
                failed.rank,
                failed.reason
            )
            .and_details(failed.clone()),
            Ended::Left => error!(
                Invalid,
                "rank {} has left its world; keep the world until its last collective is done",
                call.rank
            ),
        }
    }
}

/// Completes a collective with an error if its work panics.
struct Interrupted<'a>(&'a Completion, &'a Arc<Membership>, u64);

impl Drop for Interrupted<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let error = CommError::Interrupted { group: self.1.group.clone(), number: self.2 };
            self.0.complete(Err(error.into()));
        }
    }
}
