//! The members of one collective or transfer.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::call::{Buffers, Call, difference};
use super::refusal::{INVALID_USAGE, Refusal, Result};
use super::sums::Sums;
use super::world_id::WorldId;
use crate::driver::ticket::Ticket;
use crate::memory::{AddressSpace, MemoryError};

/// One collective, or one transfer, whose members are the sender and the receiver.
pub(crate) struct Meeting {
    /// Such as `collective 3 of communicator 1`.
    name: String,
    call: Call,
    members: Mutex<Members>,
}

struct Members {
    present: Vec<Option<Member>>,
    /// Those that have aborted or failed.
    left: Vec<bool>,
    is_done: bool,
    /// Whether its members called different things, and wait for each other.
    hangs: bool,
}

#[derive(Clone, Copy, PartialEq)]
struct Member {
    ticket: Ticket,
    buffers: Buffers,
}

impl Meeting {
    pub(crate) fn new(name: String, call: Call, size: usize) -> Meeting {
        let (present, left) = (vec![None; size], vec![false; size]);
        let members = Members { present, left, is_done: false, hangs: false };
        Meeting { name, call, members: Mutex::new(members) }
    }

    fn members(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn call(&self) -> &Call {
        &self.call
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Checks that member `member` calls what the others have called.
    pub(crate) fn check(&self, member: usize, call: &Call, world: WorldId) -> Result<()> {
        if self.call == *call {
            return Ok(());
        }
        let first = self.members().present.iter().position(Option::is_some).unwrap_or_default();
        let message = difference(&self.name, [(first, &self.call), (member, call)]);
        Err(Refusal { code: INVALID_USAGE, message, fault_of: Some(world) })
    }

    /// Accepts a call that differs, if such calls hang: they end when they are aborted.
    pub(crate) fn hang_if(&self, hangs: bool, refusal: Refusal) -> Result<()> {
        self.members().hangs |= hangs;
        if hangs { Ok(()) } else { Err(refusal) }
    }

    /// Whether the data has been moved: all members have come.
    pub(crate) fn is_done(&self) -> bool {
        self.members().is_done
    }

    /// A member's operation.
    pub(crate) fn join(&self, member: usize, ticket: Ticket, buffers: Buffers) {
        self.members().present[member] = Some(Member { ticket, buffers });
    }

    /// A member's operation ends without a result, and no other can end.
    pub(crate) fn leave(&self, member: usize) {
        self.members().left[member] = true;
    }

    /// Whether the operation of `member` can end, if operations whose tickets `is_resident` are running.
    pub(crate) fn can_end(&self, member: usize, is_resident: impl Fn(Ticket) -> bool) -> bool {
        let members = self.members();
        let everyone =
            || members.present.iter().all(|it| it.is_some_and(|it| is_resident(it.ticket)));
        let is_open = !members.hangs && !members.left.contains(&true);
        members.is_done || members.left[member] || (is_open && everyone())
    }

    /// Whether the operation of `member` may end some time, if `is_possible` says which operations may become
    /// resident. A member that has not come yet may come, and one that waits for a member that left may be
    /// aborted.
    pub(crate) fn may_end(&self, is_possible: impl Fn(Ticket) -> bool) -> bool {
        let members = self.members();
        let all_present =
            || members.present.iter().all(|it| it.is_none_or(|it| is_possible(it.ticket)));
        let is_open =
            members.hangs || members.present.contains(&None) || members.left.contains(&true);
        members.is_done || is_open || all_present()
    }

    /// Moves the data of all members, once.
    pub(crate) fn run(
        &self,
        member: usize,
        space: &AddressSpace,
        sums: Sums,
    ) -> std::result::Result<(), MemoryError> {
        let mut members = self.members();
        if members.is_done || members.left[member] {
            return Ok(());
        }
        members.is_done = true;
        let buffers: Vec<Buffers> = members.present.iter().flatten().map(|it| it.buffers).collect();
        self.call.run(&buffers, space, sums)
    }
}
