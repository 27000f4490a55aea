//! Misuse of communicators that the library would not notice. It is reported, and fails the contexts of all ranks.

use std::collections::BTreeSet;
use std::thread;

use super::call::{Buffers, Call};
use super::group::Issued;
use super::refusal::{INVALID_ARGUMENT, INVALID_USAGE, Refusal, Result, refused};
use super::world::{Communicator, CommunicatorHandle};
use crate::driver::error::{Code, Error};
use crate::driver::{Driver, State};
use crate::memory::MemoryKind;

impl Driver {
    /// Reports what the library would not notice, and fails the contexts of all ranks in this process.
    pub(super) fn reported<T>(&self, state: &mut State, result: Result<T>) -> Result<T> {
        let found = result.as_ref().err().and_then(|refusal| state.fail_for(refusal));
        if let Some(finding) = found {
            self.reports.report_failure(&finding);
            self.changed.notify_all();
        }
        result
    }
}

impl State {
    /// Fails the contexts of all members of the world whose program is at fault. Returns what to report.
    pub(crate) fn fail_for(&mut self, refusal: &Refusal) -> Option<Error> {
        let world = refusal.fault_of?;
        let finding = Code::LaunchFailed.because(refusal.message.clone());
        let members = self.nccl.table.iter().filter(|(_, it)| it.world == world);
        let contexts: Vec<_> = members.map(|(_, it)| it.context).collect();
        contexts.into_iter().for_each(|context| self.fail(context, finding.clone()));
        Some(finding)
    }

    /// Checks that no other thread is calling the communicator in a group.
    pub(super) fn check_thread(&self, handle: CommunicatorHandle) -> Result<()> {
        let Communicator { world, rank, grouped_by, .. } = *self.nccl.table.get(handle)?;
        if grouped_by.is_none_or(|thread| thread == thread::current().id()) {
            return Ok(());
        }
        let message = format!(
            "rank {rank} of {world} is called by two threads at once: another one calls it in a group that is open"
        );
        Err(Refusal::fault(INVALID_USAGE, message, world))
    }

    /// Checks the communicators of a group.
    pub(super) fn check_group(&self, calls: &[Issued]) -> Result<()> {
        let is_blocking = |call: &Issued| Ok(self.nccl.table.get(call.communicator)?.is_blocking);
        let kinds = calls.iter().map(is_blocking).collect::<Result<BTreeSet<bool>>>()?;
        match kinds.len() {
            0 | 1 => Ok(()),
            _ => refused(INVALID_ARGUMENT, "a group calls blocking and other communicators"),
        }
    }

    /// Checks that a buffer is not memory of another GPU. Its range has been checked.
    pub(super) fn check_device(&self, communicator: &Communicator, address: u64) -> Result<()> {
        let Communicator { world, rank, context, .. } = *communicator;
        let own = self.contexts.get(context)?.device;
        match self.space.find(address).map(|it| it.kind) {
            Some(MemoryKind::Device(other) | MemoryKind::Module(other)) if own != other => {
                let message = format!(
                    "rank {rank} of {world} is on GPU {own}, but its buffer on GPU {other}"
                );
                Err(Refusal::fault(INVALID_ARGUMENT, message, world))
            }
            _ => Ok(()),
        }
    }

    /// Checks that the buffers of a collective are apart or in place.
    pub(super) fn check_overlap(
        &self,
        communicator: &Communicator,
        call: &Call,
        buffers: Buffers,
    ) -> Result<()> {
        let Communicator { world, rank, size, .. } = *communicator;
        if !call.overlaps(buffers, rank, size) {
            return Ok(());
        }
        let [from, to] = [buffers.send, buffers.receive].map(|it| self.space.describe(it));
        let message = format!(
            "rank {rank} of {world}: the buffers of {call} overlap, but not in place: it sends from {from}, and \
             receives to {to}"
        );
        Err(Refusal::fault(INVALID_ARGUMENT, message, world))
    }

    /// Checks that a rank which makes no more calls has made all that others wait for, and remembers it.
    pub(super) fn depart(&mut self, handle: CommunicatorHandle) -> Result<()> {
        let Communicator { world: id, rank, context, grouped_by, .. } =
            *self.nccl.table.get(handle)?;
        if self.check_context(context).is_err() {
            return Ok(()); // which has been reported
        }
        if grouped_by.is_some() {
            let message = format!("rank {rank} of {id} ends while a group that calls it is open");
            return Err(Refusal::fault(INVALID_USAGE, message, id));
        }
        let Some(world) = self.nccl.worlds.get_mut(&id) else {
            return Ok(());
        };
        world.departed.insert(rank);
        let mut members = world.members.iter().enumerate();
        let was_aborted = members.any(|(it, own)| own.is_none() && !world.departed.contains(&it));
        let mut meetings = world.meetings.values().filter(|_| !was_aborted && !self.nccl.hangs);
        match meetings.find(|it| it.waits_for(rank)) {
            Some(meeting) => Err(meeting.missing(rank)),
            None => Ok(()),
        }
    }
}
