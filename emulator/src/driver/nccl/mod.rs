//! NCCL between the emulated devices of a process: what `libnccl` does, over the streams of this driver.
//!
//! - `mod.rs`: communicators, from creation to the end; `world.rs`: what is known of them; `id.rs`.
//! - `call.rs`: a collective or a transfer, and the data that it moves.
//! - `meeting.rs`: the members of one call.
//! - `group.rs`: calls between `ncclGroupStart` and `ncclGroupEnd`, and how calls become stream operations.
//! - `sums.rs`: reductions; `element.rs`: their types.
//! - `refusal.rs`: results that are not success.
//!
//! A call is an operation of a stream. It is *resident*, as a kernel that waits for its peers, once the
//! operations before it have finished. When all members of a call are resident, one of them moves the data of
//! all. What the library would not notice, such as different calls, is reported and fails the contexts of all
//! members. A deadlock is reported as soon as nothing else can run.

pub(crate) mod call;
pub(crate) mod element;
pub(crate) mod group;
pub(crate) mod id;
pub(crate) mod meeting;
pub(crate) mod refusal;
pub(crate) mod sums;
pub(crate) mod world;

use std::sync::Arc;

use super::context::ContextHandle;
use super::error::{Code, Error};
use super::{Driver, State};
use call::Call;
use id::WorldId;
use meeting::Meeting;
use refusal::{
    IN_PROGRESS, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, Result, SUCCESS,
    UNHANDLED_CUDA_ERROR, refused,
};
use world::{Communicator, CommunicatorHandle, World};

impl Driver {
    /// `ncclCommInitRankConfig`, on the device of the current context. A blocking call returns when all ranks
    /// have come.
    pub(crate) fn create_communicator(
        &self,
        size: usize,
        id: WorldId,
        rank: usize,
        is_blocking: bool,
    ) -> Result<CommunicatorHandle> {
        let mut state = self.lock();
        let context = state.current()?;
        let handle = state.join_world(size, id, rank, context, is_blocking)?;
        self.changed.notify_all();
        while is_blocking && !state.world(handle)?.is_complete {
            let woken = self.changed.wait(state);
            state = woken.unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        Ok(handle)
    }

    /// `ncclCommGetAsyncError`: whether the communicator is still in progress.
    pub(crate) fn poll_communicator(&self, handle: CommunicatorHandle) -> Result<i32> {
        let mut state = self.lock();
        let is_complete = state.world(handle)?.is_complete;
        let communicator = state.nccl.table.get_mut(handle)?;
        let context = communicator.context;
        if !is_complete || communicator.polls > 0 {
            communicator.polls = communicator.polls.saturating_sub(u32::from(is_complete));
            return Ok(IN_PROGRESS);
        }
        match state.check_context(context) {
            Ok(()) => Ok(SUCCESS),
            Err(_) => Ok(UNHANDLED_CUDA_ERROR),
        }
    }

    /// `ncclCommFinalize`.
    pub(crate) fn finalize_communicator(&self, handle: CommunicatorHandle) -> Result<()> {
        let mut state = self.lock();
        state.usable(handle)?;
        state.nccl.table.get_mut(handle)?.is_finalized = true;
        Ok(())
    }

    /// `ncclCommDestroy`: waits for the operations of the communicator.
    pub(crate) fn destroy_communicator(&self, handle: CommunicatorHandle) -> Result<()> {
        let state = self.lock();
        let last = state.nccl.table.get(handle)?.last;
        let mut state =
            self.wait(state, |state| last.is_none_or(|last| state.schedule.is_done(last)));
        state.leave_world(handle)
    }

    /// `ncclCommAbort`: its operations end without a result. Those of other ranks go on waiting.
    pub(crate) fn abort_communicator(&self, handle: CommunicatorHandle) -> Result<()> {
        let mut state = self.lock();
        let Communicator { world, rank, .. } = *state.nccl.table.get(handle)?;
        if let Some(world) = state.nccl.worlds.get(&world) {
            world.collectives.values().for_each(|meeting| meeting.leave(rank));
            for ((from, to), transfers) in &world.transfers {
                let side = [(from, 0), (to, 1)].into_iter().filter(|(member, _)| **member == rank);
                for (_, side) in side {
                    transfers.meetings.values().for_each(|meeting| meeting.leave(side));
                }
            }
        }
        state.leave_world(handle)?;
        self.changed.notify_all();
        Ok(())
    }
}

impl State {
    fn join_world(
        &mut self,
        size: usize,
        id: WorldId,
        rank: usize,
        context: ContextHandle,
        is_blocking: bool,
    ) -> Result<CommunicatorHandle> {
        if rank >= size {
            return refused(
                INVALID_ARGUMENT,
                format!("rank {rank} is not below the {size} ranks of {id}"),
            );
        }
        let world = self.nccl.worlds.entry(id).or_insert_with(|| World::new(size));
        let known = world.members.len();
        if known != size {
            return refused(
                INVALID_ARGUMENT,
                format!("{id} has {known} ranks for others, and {size} for rank {rank}"),
            );
        }
        if world.members[rank].is_some() || world.is_complete {
            return refused(
                INVALID_USAGE,
                format!("rank {rank} of {id} exists already: an id is for one communicator"),
            );
        }
        let device = |context| self.contexts.get(context).map(|it: &super::Context| it.device);
        let others = world.members.iter().flatten().filter_map(|it| self.nccl.table.get(*it).ok());
        for other in others {
            if device(other.context)? == device(context)? {
                let (other, device) = (other.rank, device(context)?);
                return refused(
                    INVALID_USAGE,
                    format!("ranks {other} and {rank} of {id} both use GPU {device}"),
                );
            }
        }
        let polls = id.mixed_with(rank) % 3; // any number is legal
        let communicator = Communicator {
            world: id,
            rank,
            context,
            calls: 0,
            last: None,
            polls: if is_blocking { 0 } else { polls },
            is_finalized: false,
        };
        let handle = self.nccl.table.insert(communicator);
        if let Some(world) = self.nccl.worlds.get_mut(&id) {
            world.members[rank] = Some(handle);
            world.is_complete = world.members.iter().all(Option::is_some);
        }
        Ok(handle)
    }

    fn world(&self, handle: CommunicatorHandle) -> Result<&World> {
        let id = self.nccl.table.get(handle)?.world;
        match self.nccl.worlds.get(&id) {
            Some(world) => Ok(world),
            None => refused(INTERNAL_ERROR, format!("{id} has no ranks")),
        }
    }

    /// A communicator that may be called.
    fn usable(&self, handle: CommunicatorHandle) -> Result<&Communicator> {
        let communicator = self.nccl.table.get(handle)?;
        let (rank, world) = (communicator.rank, communicator.world);
        if !self.world(handle)?.is_complete || communicator.polls > 0 {
            return refused(
                INVALID_ARGUMENT,
                format!(
                    "rank {rank} of {world} is used before ncclCommGetAsyncError reported success"
                ),
            );
        }
        if communicator.is_finalized {
            return refused(
                INVALID_ARGUMENT,
                format!("rank {rank} of {world} is used after ncclCommFinalize"),
            );
        }
        Ok(communicator)
    }

    fn leave_world(&mut self, handle: CommunicatorHandle) -> Result<()> {
        let Communicator { world: id, rank, .. } = self.nccl.table.remove(handle)?;
        if let Some(world) = self.nccl.worlds.get_mut(&id) {
            world.members[rank] = None;
            if world.members.iter().all(Option::is_none) {
                self.nccl.worlds.remove(&id);
            }
        }
        Ok(())
    }

    /// Reports a fault of the program, and fails the contexts of all members of a world.
    fn fail_world(&mut self, id: WorldId, finding: &Error) {
        let Some(world) = self.nccl.worlds.get(&id) else {
            return;
        };
        let members = world.members.iter().flatten();
        let contexts = members.filter_map(|it| self.nccl.table.get(*it).ok()).map(|it| it.context);
        for context in contexts.collect::<Vec<_>>() {
            self.fail(context, finding.clone());
        }
    }

    /// The meeting of a collective's members, which all make this call.
    fn meeting(
        &mut self,
        id: WorldId,
        number: u64,
        rank: usize,
        call: &Call,
    ) -> Result<Arc<Meeting>> {
        let hangs = self.nccl.hangs;
        let Some(world) = self.nccl.worlds.get_mut(&id) else {
            return refused(INTERNAL_ERROR, format!("{id} has no ranks"));
        };
        let size = world.members.len();
        let new = || Arc::new(Meeting::new(format!("collective {number} of {id}"), *call, size));
        world.collectives.retain(|_, it| !it.is_done());
        let meeting = world.collectives.entry(number).or_insert_with(new).clone();
        meeting.check(rank, call, id).or_else(|refusal| meeting.hang_if(hangs, refusal))?;
        Ok(meeting)
    }

    /// The operations that wait for each other, if nothing else can ever run, as an error.
    pub(crate) fn deadlock(&self) -> Option<(Vec<ContextHandle>, Error)> {
        let stuck = self.schedule.stuck();
        let contexts: Vec<ContextHandle> = stuck.iter().map(|(context, _)| *context).collect();
        let line = |(context, meeting): &(ContextHandle, Arc<Meeting>)| {
            let device = self.contexts.get(*context).map_or(0, |it| it.device);
            format!("GPU {device} waits in {}: {}", meeting.name(), meeting.call())
        };
        let lines: Vec<String> = stuck.iter().map(line).collect();
        (!lines.is_empty()).then(|| {
            let message = format!(
                "deadlock: {}; call collectives in the same order on all ranks",
                lines.join("; ")
            );
            (contexts, Code::LaunchFailed.because(message))
        })
    }
}
