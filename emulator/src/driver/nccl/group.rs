//! Calls between `ncclGroupStart` and `ncclGroupEnd`, and how calls become stream operations.

use std::cell::RefCell;
use std::sync::Arc;
use std::thread;

use super::call::{Action, Call, Kind, Part};
use super::link::Exchange;
use super::meeting::Meeting;
use super::refusal::{INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, Refusal, Result, refused};
use super::world::{Communicator, CommunicatorHandle};
use super::world_id::WorldId;
use crate::driver::context::ContextHandle;
use crate::driver::graph::NodeKind;
use crate::driver::stream::StreamHandle;
use crate::driver::ticket::Ticket;
use crate::driver::work::Work;
use crate::driver::{Driver, State};

/// A call, on the stream with this handle of the caller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Issued {
    pub(crate) communicator: CommunicatorHandle,
    pub(crate) stream: u64,
    pub(crate) action: Action,
}

/// The open groups of a thread, and what was called in them.
#[derive(Default)]
struct Group {
    depth: usize,
    calls: Vec<Issued>,
    driver: Option<&'static Driver>,
}

impl Drop for Group {
    /// Reports a group that is open when its thread ends.
    fn drop(&mut self) {
        if let Some(driver) = self.driver
            && self.depth > 0
        {
            driver.abandon_group(&self.calls);
        }
    }
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

/// Whether this thread has an open group.
pub(super) fn is_open() -> bool {
    GROUP.with_borrow(|group| group.depth > 0)
}

impl Driver {
    /// `ncclGroupStart`.
    pub(crate) fn start_group(&'static self) {
        GROUP.with_borrow_mut(|group| {
            group.depth += 1;
            group.driver = Some(self);
        });
    }

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
        let mut state = self.lock();
        let checked = state.check_call(&call).and_then(|()| state.check_thread(call.communicator));
        self.reported(&mut state, checked)?;
        if !is_open() {
            drop(state);
            return self.submit_calls(&[call]);
        }
        state.nccl.table.get_mut(call.communicator)?.grouped_by = Some(thread::current().id());
        GROUP.with_borrow_mut(|group| group.calls.push(call));
        Ok(())
    }

    /// Submits calls that start together: one operation for all transfers of a communicator, and one for each
    /// collective.
    fn submit_calls(&self, calls: &[Issued]) -> Result<()> {
        let mut handles: Vec<CommunicatorHandle> = Vec::new();
        for call in calls {
            if !handles.contains(&call.communicator) {
                handles.push(call.communicator);
            }
        }
        let mut state = self.lock();
        for handle in &handles {
            state.nccl.table.get_mut(*handle)?.grouped_by = None;
        }
        state.check_group(calls)?;
        drop(state);
        let mut streams = Vec::new();
        for handle in handles {
            let own = calls.iter().filter(|call| call.communicator == handle);
            let own: Vec<Issued> = own.copied().collect();
            let mut state = self.lock();
            let on = state.submit_calls_of(handle, &own);
            streams.extend(self.reported(&mut state, on)?);
        }
        for stream in streams {
            self.run_submitted(self.lock(), stream)?;
        }
        Ok(())
    }

    /// Reports that a thread has ended, and these calls of its group are never submitted.
    fn abandon_group(&self, calls: &[Issued]) {
        let mut state = self.lock();
        for call in calls {
            let fault = state.nccl.table.get(call.communicator).map(|it| {
                let (rank, world) = (it.rank, it.world);
                let message = format!(
                    "a thread ended while its group with calls of rank {rank} of {world} was open"
                );
                Refusal::fault(INVALID_USAGE, message, world)
            });
            // There is no caller that could get the error.
            let _ = self.reported(&mut state, fault.map_or(Ok(()), Err));
        }
    }
}

impl Issued {
    /// Whether it is a collective that moves nothing, which the library drops.
    fn is_empty(&self) -> bool {
        matches!(self.action, Action::Collective(Call { count: 0, .. }, _))
    }
}

impl State {
    /// Checks the arguments of a call.
    pub(super) fn check_call(&mut self, call: &Issued) -> Result<()> {
        let communicator = self.usable(call.communicator)?;
        let Communicator { rank, size, world, context, .. } = *communicator;
        let (_, of_stream) = self.stream(call.stream)?;
        if of_stream != context {
            return refused(
                INVALID_ARGUMENT,
                format!("rank {rank} of {world} got a stream of another context"),
            );
        }
        let peer_is_known = |peer: usize| match peer < size {
            true => Ok(()),
            false => {
                refused(INVALID_ARGUMENT, format!("{world} has {size} ranks, and no rank {peer}"))
            }
        };
        let communicator = self.nccl.table.get(call.communicator)?;
        match call.action {
            Action::Collective(collective, buffers) => {
                if let Kind::Reduce(_, root) | Kind::Broadcast(root) = collective.kind {
                    peer_is_known(root)?;
                }
                let (sent, received) = collective.extents(rank, size);
                self.check_buffer(communicator, buffers.send, sent)?;
                self.check_buffer(communicator, buffers.receive, received)?;
                self.check_overlap(communicator, &collective, buffers)
            }
            Action::Send { to: peer, from: address, count, element }
            | Action::Receive { from: peer, to: address, count, element } => {
                peer_is_known(peer)?;
                self.check_buffer(communicator, address, element.bytes_of(count))
            }
        }
    }

    fn check_buffer(&self, of: &Communicator, address: u64, bytes: usize) -> Result<()> {
        let checked = self.check_range(address, bytes);
        checked.or_else(|error| refused(INVALID_ARGUMENT, error.message))?;
        if bytes == 0 { Ok(()) } else { self.check_device(of, address) }
    }

    /// Submits the calls of one communicator. Returns the streams.
    fn submit_calls_of(
        &mut self,
        handle: CommunicatorHandle,
        calls: &[Issued],
    ) -> Result<Vec<StreamHandle>> {
        let is_collective = |call: &&Issued| matches!(call.action, Action::Collective(..));
        let (collectives, transfers): (Vec<_>, Vec<_>) = calls.iter().partition(is_collective);
        self.check_transfers_to_self(handle, &transfers)?;
        let operations = [transfers].into_iter().filter(|all| !all.is_empty());
        let operations = operations.chain(collectives.into_iter().map(|call| vec![call]));
        let mut streams = Vec::new();
        for calls in operations {
            match calls[0].is_empty() {
                true => self.skip_call(handle, calls[0])?,
                false => streams.push(self.submit_operation(handle, &calls)?),
            }
        }
        Ok(streams)
    }

    /// Only compares a collective that moves nothing with the calls of other ranks, which would wait for this one. In a
    /// graph it is dropped.
    fn skip_call(&mut self, handle: CommunicatorHandle, call: &Issued) -> Result<()> {
        let (stream, _) = self.stream(call.stream)?;
        let is_captured = self.streams.get(stream)?.capture.is_some();
        let communicator = self.nccl.table.get_mut(handle)?;
        if communicator.link.is_none() && !is_captured {
            let (world, part) = (communicator.world, communicator.next_part(&call.action, false));
            self.meeting(world, &part)?.skip(part.member);
        }
        Ok(())
    }

    /// Enqueues calls as one operation of their stream, or captures them.
    fn submit_operation(
        &mut self,
        handle: CommunicatorHandle,
        calls: &[&Issued],
    ) -> Result<StreamHandle> {
        let (stream, context) = self.stream(calls[0].stream)?;
        let actions: Arc<[Action]> = calls.iter().map(|call| call.action).collect();
        if self.streams.get(stream)?.capture.is_some() {
            self.capture_node(stream, NodeKind::Calls(handle, actions))?;
            return Ok(stream);
        }
        self.reject_implicit_sync(stream)?;
        let after = self.predecessors(stream)?;
        let last = self.enqueue_calls(handle, &actions, false, context, after)?;
        self.set_last(stream, last)?;
        Ok(stream)
    }

    fn check_transfers_to_self(&self, handle: CommunicatorHandle, calls: &[&Issued]) -> Result<()> {
        let Communicator { world, rank, .. } = *self.nccl.table.get(handle)?;
        let to_self =
            |call: &&&Issued| matches!(call.action, Action::Send { to, .. } if to == rank);
        let from_self =
            |call: &&&Issued| matches!(call.action, Action::Receive { from, .. } if from == rank);
        if calls.iter().filter(to_self).count() == calls.iter().filter(from_self).count() {
            return Ok(());
        }
        let message =
            format!("rank {rank} of {world} sends to itself without receiving in the same group");
        refused(INVALID_USAGE, message)
    }

    /// Enqueues calls as one operation, after the last one of the communicator, and after those in `after`.
    pub(crate) fn enqueue_calls(
        &mut self,
        handle: CommunicatorHandle,
        actions: &[Action],
        is_captured: bool,
        context: ContextHandle,
        mut after: Vec<Ticket>,
    ) -> Result<Ticket> {
        let communicator = self.nccl.table.get_mut(handle)?;
        let parts = actions.iter().map(|action| communicator.next_part(action, is_captured));
        let parts: Vec<Part> = parts.collect();
        let world = communicator.world;
        after.extend(communicator.last);
        let last = match communicator.link.clone() {
            Some(link) => {
                let exchange = Arc::new(Exchange::new(link, parts));
                let posted = self.schedule.add(context, after, Work::Post(exchange.clone()));
                self.schedule.add(context, vec![posted], Work::Receive(exchange))
            }
            None => self.enqueue_meetings(context, after, world, &parts)?,
        };
        self.nccl.table.get_mut(handle)?.last = Some(last);
        Ok(last)
    }

    fn enqueue_meetings(
        &mut self,
        context: ContextHandle,
        after: Vec<Ticket>,
        world: WorldId,
        parts: &[Part],
    ) -> Result<Ticket> {
        let meeting = |part: &Part| Ok((self.meeting(world, part)?, part.member));
        let meetings = parts.iter().map(meeting).collect::<Result<Arc<[_]>>>()?;
        let ticket = self.schedule.add(context, after, Work::Meet(meetings.clone()));
        for ((meeting, member), part) in meetings.iter().zip(parts) {
            meeting.join(*member, ticket, part.buffers);
        }
        self.start_collectives();
        Ok(ticket)
    }

    /// The meeting of a call's members, which all make this call.
    fn meeting(&mut self, id: WorldId, part: &Part) -> Result<Arc<Meeting>> {
        let hangs = self.nccl.hangs;
        let Some(world) = self.nccl.worlds.get_mut(&id) else {
            return refused(INTERNAL_ERROR, format!("{id} has no ranks"));
        };
        let members = part.slot.members(world.members.len());
        let new = || Arc::new(Meeting::new(id, part.slot, part.call, members));
        world.meetings.retain(|_, it| !it.is_done());
        let meeting = world.meetings.entry(part.slot).or_insert_with(new).clone();
        let checked = meeting.check(part.member, &part.call);
        checked.or_else(|refusal| meeting.hang_if(hangs, refusal))?;
        match world.departed.iter().find(|rank| meeting.is_missing(**rank)) {
            Some(rank) if !hangs && part.call.count > 0 => Err(meeting.missing(*rank)),
            _ => Ok(meeting),
        }
    }
}
