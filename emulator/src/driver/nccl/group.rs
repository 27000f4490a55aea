//! Calls between `ncclGroupStart` and `ncclGroupEnd`, and how calls become stream operations.

use std::cell::RefCell;
use std::sync::Arc;

use super::call::{Buffers, Call, Kind};
use super::element::Element;
use super::id::WorldId;
use super::meeting::Meeting;
use super::refusal::{INVALID_ARGUMENT, INVALID_USAGE, Result, refused};
use super::world::{Communicator, CommunicatorHandle};
use crate::driver::error::Code;
use crate::driver::stream::StreamHandle;
use crate::driver::work::Work;
use crate::driver::{Driver, State};

/// A call, on the stream with this handle of the caller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Issued {
    pub(crate) communicator: CommunicatorHandle,
    pub(crate) stream: u64,
    pub(crate) action: Action,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    Collective(Call, Buffers),
    Send { to: usize, from: u64, count: usize, element: Element },
    Receive { from: usize, to: u64, count: usize, element: Element },
}

/// The open groups of a thread, and what was called in them.
#[derive(Default)]
struct Group {
    depth: usize,
    calls: Vec<Issued>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

/// `ncclGroupStart`.
pub(crate) fn start() {
    GROUP.with_borrow_mut(|group| group.depth += 1);
}

impl Driver {
    /// `ncclGroupEnd`: submits the calls of the outermost group.
    pub(crate) fn end_group(&self) -> Result<()> {
        let ended = GROUP.with_borrow_mut(|group| {
            group.depth = group.depth.checked_sub(1)?;
            Some(if group.depth == 0 { std::mem::take(&mut group.calls) } else { Vec::new() })
        });
        match ended {
            Some(calls) => self.submit_calls(&calls),
            None => refused(INVALID_USAGE, "ncclGroupEnd without ncclGroupStart on this thread"),
        }
    }

    /// Submits a call, or keeps it for the end of the group.
    pub(crate) fn issue(&self, call: Issued) -> Result<()> {
        self.lock().check_call(&call)?;
        let is_grouped = GROUP.with_borrow_mut(|group| {
            group.calls.extend((group.depth > 0).then_some(call));
            group.depth > 0
        });
        if is_grouped { Ok(()) } else { self.submit_calls(&[call]) }
    }

    /// Submits calls that start together: one operation for all transfers of a communicator, and one for each
    /// collective.
    fn submit_calls(&self, calls: &[Issued]) -> Result<()> {
        let mut handles: Vec<CommunicatorHandle> = Vec::new();
        let calls = || calls.iter().filter(|call| !call.is_empty());
        for call in calls() {
            if !handles.contains(&call.communicator) {
                handles.push(call.communicator);
            }
        }
        let mut streams = Vec::new();
        for handle in handles {
            let own = calls().filter(|call| call.communicator == handle);
            let own: Vec<Issued> = own.copied().collect();
            let mut state = self.lock();
            match state.submit_calls_of(handle, &own) {
                Ok(on) => streams.extend(on),
                Err(refusal) => {
                    let found = refusal.fault_of.map(|world| (world, refusal.message.clone()));
                    if let Some((world, message)) = found {
                        let finding = Code::LaunchFailed.because(message);
                        self.reports.report_failure(&finding);
                        state.fail_world(world, &finding);
                        self.changed.notify_all();
                    }
                    return Err(refusal);
                }
            }
        }
        for stream in streams {
            self.run_submitted(self.lock(), stream)?;
        }
        Ok(())
    }
}

impl Issued {
    /// Whether it moves nothing. The library drops such collectives, also if other ranks send something.
    fn is_empty(&self) -> bool {
        matches!(self.action, Action::Collective(Call { count: 0, .. }, _))
    }
}

impl State {
    /// Checks the arguments of a call.
    pub(super) fn check_call(&mut self, call: &Issued) -> Result<()> {
        let communicator = self.usable(call.communicator)?;
        let (rank, world, context) = (communicator.rank, communicator.world, communicator.context);
        let size = self.world(call.communicator)?.members.len();
        let (stream, of_stream) = self.stream(call.stream)?;
        if of_stream != context {
            return refused(
                INVALID_ARGUMENT,
                format!("rank {rank} of {world} got a stream of another context"),
            );
        }
        if self.streams.get(stream)?.capture.is_some() {
            return refused(
                INVALID_USAGE,
                "capturing collectives into a graph is not emulated yet",
            );
        }
        let peer_is_known = |peer: usize| match peer < size {
            true => Ok(()),
            false => {
                refused(INVALID_ARGUMENT, format!("{world} has {size} ranks, and no rank {peer}"))
            }
        };
        match call.action {
            Action::Collective(collective, buffers) => {
                if let Kind::Reduce(_, root) | Kind::Broadcast(root) = collective.kind {
                    peer_is_known(root)?;
                }
                let (sent, received) = collective.extents(rank, size);
                self.check_buffer(buffers.send, sent)?;
                self.check_buffer(buffers.receive, received)
            }
            Action::Send { to: peer, from: address, count, element }
            | Action::Receive { from: peer, to: address, count, element } => {
                peer_is_known(peer)?;
                self.check_buffer(address, element.bytes_of(count))
            }
        }
    }

    fn check_buffer(&self, address: u64, bytes: usize) -> Result<()> {
        let checked = self.check_range(address, bytes);
        checked.or_else(|error| refused(INVALID_ARGUMENT, error.message))
    }

    /// Submits the calls of one communicator. Returns the streams.
    fn submit_calls_of(
        &mut self,
        handle: CommunicatorHandle,
        calls: &[Issued],
    ) -> Result<Vec<StreamHandle>> {
        let mut streams = Vec::new();
        let transfers: Vec<&Issued> =
            calls.iter().filter(|call| !matches!(call.action, Action::Collective(..))).collect();
        if let Some(first) = transfers.first() {
            let meetings = self.transfers(handle, &transfers)?;
            streams.push(self.enqueue_call(handle, first.stream, meetings)?);
        }
        for call in calls {
            let Action::Collective(collective, buffers) = call.action else {
                continue;
            };
            let Communicator { world, rank, calls: number, .. } = *self.nccl.table.get(handle)?;
            let meeting = self.meeting(world, number, rank, &collective)?;
            self.nccl.table.get_mut(handle)?.calls += 1;
            streams.push(self.enqueue_call(handle, call.stream, vec![(meeting, rank, buffers)])?);
        }
        Ok(streams)
    }

    /// The meetings of the transfers of a group: each is with another rank, in the order of calls.
    fn transfers(&mut self, handle: CommunicatorHandle, calls: &[&Issued]) -> Result<Vec<Part>> {
        let Communicator { world, rank, .. } = *self.nccl.table.get(handle)?;
        let to_self =
            |call: &&&Issued| matches!(call.action, Action::Send { to, .. } if to == rank);
        let from_self =
            |call: &&&Issued| matches!(call.action, Action::Receive { from, .. } if from == rank);
        if calls.iter().filter(to_self).count() != calls.iter().filter(from_self).count() {
            let message = format!(
                "rank {rank} of {world} sends to itself without receiving in the same group"
            );
            return refused(INVALID_USAGE, message);
        }
        calls.iter().map(|call| self.transfer(world, rank, call)).collect()
    }

    fn transfer(&mut self, id: WorldId, rank: usize, call: &Issued) -> Result<Part> {
        let (pair, side, address, count, element) = match call.action {
            Action::Send { to, from, count, element } => ((rank, to), 0, from, count, element),
            Action::Receive { from, to, count, element } => ((from, rank), 1, to, count, element),
            Action::Collective(..) => {
                return refused(INVALID_USAGE, "a collective is not a transfer");
            }
        };
        let own = Call { kind: Kind::Transfer, count, element };
        let hangs = self.nccl.hangs;
        let Some(world) = self.nccl.worlds.get_mut(&id) else {
            return refused(INVALID_USAGE, format!("{id} has no ranks"));
        };
        let transfers = world.transfers.entry(pair).or_default();
        let next = if side == 0 { &mut transfers.sent } else { &mut transfers.received };
        let number = *next;
        *next += 1;
        let new = || {
            let name = format!("transfer {number} from rank {} to rank {} of {id}", pair.0, pair.1);
            Arc::new(Meeting::new(name, own, 2))
        };
        transfers.meetings.retain(|_, it| !it.is_done());
        let meeting = transfers.meetings.entry(number).or_insert_with(new).clone();
        meeting.check(side, &own, id).or_else(|refusal| meeting.hang_if(hangs, refusal))?;
        let buffers = Buffers { send: address, receive: address };
        Ok((meeting, side, buffers))
    }

    /// Adds an operation after the last one of the communicator, and after those of the stream.
    fn enqueue_call(
        &mut self,
        handle: CommunicatorHandle,
        stream: u64,
        parts: Vec<Part>,
    ) -> Result<StreamHandle> {
        let (stream, _) = self.stream(stream)?;
        let last = self.nccl.table.get(handle)?.last;
        let meetings =
            parts.iter().map(|(meeting, member, _)| (meeting.clone(), *member)).collect();
        let ticket = self.enqueue(stream, last.into_iter().collect(), Work::Meet(meetings))?;
        for (meeting, member, buffers) in parts {
            meeting.join(member, ticket, buffers);
        }
        self.nccl.table.get_mut(handle)?.last = Some(ticket);
        Ok(stream)
    }
}

/// A meeting, this rank's place in it, and its buffers.
type Part = (Arc<Meeting>, usize, Buffers);
