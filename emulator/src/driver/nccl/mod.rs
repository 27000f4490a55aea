//! NCCL between emulated devices: what `libnccl` does, over the streams of this driver.
//!
//! - `mod.rs`: communicators, from creation to the end; `world.rs`: what is known of them; `id.rs`.
//! - `call.rs`: a collective or a transfer, and the data that it moves.
//! - `meeting.rs`: the members of one call.
//! - `group.rs`: calls between `ncclGroupStart` and `ncclGroupEnd`, and how calls become stream operations.
//! - `sums.rs`: reductions; `element.rs`: their types.
//! - `refusal.rs`: results that are not success.
//! - `misuse.rs`, `order.rs`: what the library would not notice.
//! - `hub.rs`, `link.rs`, `protocol.rs`: ranks in several processes.
//!
//! A call is an operation of a stream. It is *resident*, as a kernel that waits for its peers, once the
//! operations before it have finished. When all members of a call are resident, one of them moves the data of
//! all. What the library would not notice, such as different calls, is reported and fails the contexts of all
//! members. A deadlock is reported as soon as nothing else can run.
//!
//! If ranks may be in several processes (`MESHGRAD_EMULATOR_PROCESSES=1`), a resident call sends its data to the
//! hub of the communicator, a thread of the process that created the id. The hub computes the results. Deadlocks
//! are not found.

pub(crate) mod call;
pub(crate) mod element;
pub(crate) mod group;
mod hub;
pub(crate) mod id;
pub(crate) mod link;
pub(crate) mod meeting;
mod misuse;
mod order;
mod protocol;
pub(crate) mod refusal;
pub(crate) mod sums;
pub(crate) mod world;
pub(crate) mod world_id;

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::context::ContextHandle;
use super::error::{Code, Error};
use super::schedule::Stuck;
use super::{Driver, State};
use id::UniqueId;
use link::Link;
use refusal::{
    IN_PROGRESS, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, Refusal, Result,
    SUCCESS, SYSTEM_ERROR, UNHANDLED_CUDA_ERROR, refused,
};
use world::{Communicator, CommunicatorHandle, World, check_join};

/// The time between the steps that a process takes while ranks in others may wait for it.
const STEP: Duration = Duration::from_millis(1);
/// GPU memory that a communicator takes.
const MEMORY: usize = 4 << 20;
/// How long `ncclCommDestroy` waits for ranks in other processes, whose calls need the hub of this one.
const LEAVING: Duration = Duration::from_secs(5);
/// From this version on, communicators can be aborted in a group.
const GROUPED_ABORT: i32 = 22200;

impl Driver {
    /// `ncclCommInitRankConfig`, on the device of the current context. A blocking call returns when all ranks
    /// have come.
    pub(crate) fn create_communicator(
        &'static self,
        size: usize,
        id: &[u8; 128],
        rank: usize,
        is_blocking: bool,
    ) -> Result<CommunicatorHandle> {
        let id = UniqueId::read(id, &self.configuration)?;
        let world = id.world;
        let context = self.with(|state| {
            let context = state.current()?;
            state.check_room(state.contexts.get(context)?.device, MEMORY)?;
            Ok(context)
        })?;
        if rank >= size {
            return refused(
                INVALID_ARGUMENT,
                format!("rank {rank} is not below the {size} ranks of {world}"),
            );
        }
        let link = match self.configuration.processes {
            true => Some(self.link(&id, rank, size)?),
            false => None,
        };
        let polls = world.mixed_with(rank) % 3; // any number is legal
        let communicator = Communicator {
            world,
            rank,
            size,
            context,
            link,
            calls: 0,
            transfers: BTreeMap::new(),
            last: None,
            polls: if is_blocking { 0 } else { polls },
            is_finalized: false,
            is_blocking,
            grouped_by: None,
        };
        let mut state = self.lock();
        let handle = state.add_communicator(communicator)?;
        self.start_runner(&mut state)?;
        self.changed.notify_all();
        while is_blocking && state.status(handle)? == IN_PROGRESS {
            let woken = self.changed.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
        match state.status(handle)? {
            REMOTE_ERROR if is_blocking => {
                state.nccl.table.remove(handle)?;
                refused(REMOTE_ERROR, format!("the process of the hub of {world} has ended"))
            }
            _ => Ok(handle),
        }
    }

    /// Joins a world whose ranks may be in other processes.
    fn link(&'static self, id: &UniqueId, rank: usize, size: usize) -> Result<Arc<Link>> {
        let link = Arc::new(Link::join(&id.hub, rank, size)?);
        let listener = link.clone();
        start_thread("nccl link", move || {
            listener.listen(|| {
                // Locked, so that a thread which is about to wait is not missed.
                let _state = self.lock();
                self.changed.notify_all();
            });
        })?;
        Ok(link)
    }

    /// Starts a thread that runs operations as a GPU would: those that ranks in other processes wait for, even if
    /// this process calls nothing. It ends with the last communicator.
    fn start_runner(&'static self, state: &mut State) -> Result<()> {
        if state.nccl.has_runner || !state.nccl.has_links() {
            return Ok(());
        }
        start_thread("nccl runner", || {
            let mut state = self.lock();
            while state.nccl.has_links() {
                let woken = self.changed.wait_timeout(state, STEP);
                state = woken.unwrap_or_else(PoisonError::into_inner).0;
                let steps = state.schedule.steps_after_submission();
                state = self.progress(state, steps);
            }
            state.nccl.has_runner = false;
        })?;
        state.nccl.has_runner = true;
        Ok(())
    }

    /// `ncclCommGetAsyncError`: whether the communicator is still in progress.
    pub(crate) fn poll_communicator(&self, handle: CommunicatorHandle) -> Result<i32> {
        let mut state = self.lock();
        let status = state.status(handle)?;
        let communicator = state.nccl.table.get_mut(handle)?;
        if status == SUCCESS && communicator.polls > 0 {
            communicator.polls -= 1;
            return Ok(IN_PROGRESS);
        }
        Ok(status)
    }

    /// `ncclCommFinalize`.
    pub(crate) fn finalize_communicator(&self, handle: CommunicatorHandle) -> Result<()> {
        let mut state = self.lock();
        state.usable(handle)?;
        let departed = state.depart(handle);
        self.reported(&mut state, departed)?;
        state.nccl.table.get_mut(handle)?.is_finalized = true;
        Ok(())
    }

    /// `ncclCommDestroy`: waits for the operations of the communicator, and for ranks in other processes if they
    /// need the hub of this one.
    pub(crate) fn destroy_communicator(&self, handle: CommunicatorHandle) -> Result<()> {
        let mut state = self.lock();
        if state.executables.iter().any(|(_, graph)| graph.calls(handle)) {
            let Communicator { world, rank, .. } = state.nccl.table.get(handle)?;
            return refused(
                INVALID_USAGE,
                format!("rank {rank} of {world} is destroyed before graphs that call it"),
            );
        }
        let departed = state.depart(handle);
        self.reported(&mut state, departed)?;
        let last = state.nccl.table.get(handle)?.last;
        let mut state =
            self.wait(state, |state| last.is_none_or(|last| state.schedule.is_done(last)));
        if let Some(link) = state.nccl.table.get(handle)?.link.clone() {
            link.finish();
            let until = Instant::now() + LEAVING;
            state = self.wait(state, |_| link.status() == REMOTE_ERROR || Instant::now() > until);
        }
        state.leave_world(handle)
    }

    /// `ncclCommAbort`: its operations end without a result. Those of other ranks go on waiting.
    pub(crate) fn abort_communicator(&self, handle: CommunicatorHandle) -> Result<()> {
        let mut state = self.lock();
        let Communicator { world, rank, size, .. } = *state.nccl.table.get(handle)?;
        if group::is_open() && self.configuration.nccl < GROUPED_ABORT {
            let message = format!(
                "rank {rank} of {world} is aborted in a group, which NCCL can do from 2.22 on; abort each \
                 communicator on a thread of its own"
            );
            let refusal = Refusal::fault(INVALID_USAGE, message, world);
            return self.reported(&mut state, Err(refusal));
        }
        if let Some(world) = state.nccl.worlds.get(&world) {
            for (slot, meeting) in &world.meetings {
                let own = (0..slot.members(size)).filter(|member| slot.is_member(*member, rank));
                own.for_each(|member| meeting.leave(member));
            }
        }
        state.leave_world(handle)?;
        self.changed.notify_all();
        Ok(())
    }
}

impl State {
    /// Bytes that communicators take.
    pub(crate) fn memory_of_communicators(&self, device: u32) -> usize {
        let is_on = |it: &Communicator| {
            self.contexts.get(it.context).is_ok_and(|context| context.device == device)
        };
        MEMORY * self.nccl.table.iter().filter(|(_, it)| is_on(it)).count()
    }

    /// Adds a communicator, and adds it to its world if all ranks are in this process.
    fn add_communicator(&mut self, communicator: Communicator) -> Result<CommunicatorHandle> {
        if communicator.link.is_some() {
            return Ok(self.nccl.table.insert(communicator));
        }
        let Communicator { world: id, rank, size, context, .. } = communicator;
        let world = self.nccl.worlds.entry(id).or_insert_with(|| World::new(size));
        let known = world.members.len();
        let is_taken = world.is_complete || world.members.get(rank).is_some_and(Option::is_some);
        check_join(id, rank, [size, known], is_taken)?;
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
        let handle = self.nccl.table.insert(communicator);
        if let Some(world) = self.nccl.worlds.get_mut(&id) {
            world.members[rank] = Some(handle);
            world.is_complete = world.members.iter().all(Option::is_some);
        }
        Ok(handle)
    }

    /// The status of a communicator, apart from polls.
    fn status(&self, handle: CommunicatorHandle) -> Result<i32> {
        let communicator = self.nccl.table.get(handle)?;
        let status = match &communicator.link {
            Some(link) => link.status(),
            None if self.world(handle)?.is_complete => SUCCESS,
            None => IN_PROGRESS,
        };
        let has_failed = self.check_context(communicator.context).is_err();
        Ok(if status == SUCCESS && has_failed { UNHANDLED_CUDA_ERROR } else { status })
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
        if self.status(handle)? == IN_PROGRESS || communicator.polls > 0 {
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
        let Communicator { world: id, rank, link, .. } = self.nccl.table.remove(handle)?;
        if let Some(link) = link {
            link.leave();
            return Ok(());
        }
        if let Some(world) = self.nccl.worlds.get_mut(&id) {
            world.members[rank] = None;
            if world.members.iter().all(Option::is_none) {
                self.nccl.worlds.remove(&id);
            }
        }
        Ok(())
    }

    /// The operations that wait for each other, if nothing else can ever run, as an error.
    pub(crate) fn deadlock(&self) -> Option<(Vec<ContextHandle>, Error)> {
        let device_of = |context| self.contexts.get(context).map_or(0, |it| it.device);
        let stuck = self.schedule.stuck();
        let contexts: Vec<ContextHandle> = stuck.iter().map(|it| it.context).collect();
        let line = |Stuck { context, meeting, has_started }: &Stuck| {
            let state = if *has_started { "waits in" } else { "has no room for" };
            let (device, name) = (device_of(*context), meeting.name());
            format!("GPU {device} {state} {name}: {}", meeting.call())
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

fn start_thread(name: &str, body: impl FnOnce() + Send + 'static) -> Result<()> {
    let started = thread::Builder::new().name(name.to_owned()).spawn(body);
    started.map(drop).or_else(|error| {
        refused(SYSTEM_ERROR, format!("the thread `{name}` cannot be started: {error}"))
    })
}
