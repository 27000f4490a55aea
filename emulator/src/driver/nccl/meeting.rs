//! The members of one collective or transfer.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::call::{Buffers, Call, Slot, difference};
use super::refusal::{INVALID_USAGE, Refusal, Result};
use super::sums::Sums;
use super::world_id::WorldId;
use crate::driver::ticket::Ticket;
use crate::memory::{AddressSpace, MemoryError, Undefined};

/// One collective, or one transfer, whose members are the sender and the receiver.
pub(crate) struct Meeting {
    world: WorldId,
    slot: Slot,
    call: Call,
    members: Mutex<Members>,
}

struct Members {
    present: Vec<Option<Member>>,
    /// Those that have aborted or failed.
    left: Vec<bool>,
    /// Those whose call moves nothing, and which have no operation.
    skipped: Vec<bool>,
    is_done: bool,
    /// Whether its members called different things, and wait for each other.
    hangs: bool,
}

#[derive(PartialEq)]
struct Member {
    ticket: Ticket,
    buffers: Buffers,
    /// What it sends, from when its operation has begun.
    sent: Option<Sent>,
}

/// The bytes that a member sends, and which of them have no value.
#[derive(PartialEq)]
struct Sent {
    bytes: Vec<u8>,
    undefined: Undefined,
}

impl Meeting {
    pub(crate) fn new(world: WorldId, slot: Slot, call: Call, size: usize) -> Meeting {
        let [left, skipped] = [vec![false; size], vec![false; size]];
        let present = (0..size).map(|_| None).collect();
        let members = Members { present, left, skipped, is_done: false, hangs: false };
        Meeting { world, slot, call, members: Mutex::new(members) }
    }

    fn members(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn call(&self) -> &Call {
        &self.call
    }

    /// Such as `collective 3 of communicator 1`.
    pub(crate) fn name(&self) -> String {
        self.slot.name(self.world)
    }

    pub(super) fn world(&self) -> WorldId {
        self.world
    }

    /// Checks that member `member` calls what the others have called.
    pub(crate) fn check(&self, member: usize, call: &Call) -> Result<()> {
        if self.call == *call {
            return Ok(());
        }
        let members = self.members();
        let has_come = |it: &usize| members.present[*it].is_some() || members.skipped[*it];
        let first = (0..members.present.len()).find(has_come).unwrap_or_default();
        let message = difference(&self.name(), [(first, &self.call), (member, call)]);
        Err(Refusal::fault(INVALID_USAGE, message, self.world))
    }

    /// Accepts a call that differs, if such calls hang: they end when they are aborted.
    pub(crate) fn hang_if(&self, hangs: bool, refusal: Refusal) -> Result<()> {
        self.members().hangs |= hangs;
        if hangs { Ok(()) } else { Err(refusal) }
    }

    /// Whether all members have come, and the data has been moved.
    pub(crate) fn is_done(&self) -> bool {
        let members = self.members();
        members.is_done || !members.skipped.contains(&false)
    }

    /// A member's operation.
    pub(crate) fn join(&self, member: usize, ticket: Ticket, buffers: Buffers) {
        self.members().present[member] = Some(Member { ticket, buffers, sent: None });
    }

    /// A member's call moves nothing, and has no operation.
    pub(crate) fn skip(&self, member: usize) {
        self.members().skipped[member] = true;
    }

    /// When a rank called it; `None` if it is no member, `Some(None)` if it has no operation.
    pub(super) fn ticket_of_rank(&self, rank: usize) -> Option<Option<Ticket>> {
        let member = self.member_of_rank(rank)?;
        Some(self.members().present[member].as_ref().map(|it| it.ticket))
    }

    fn member_of_rank(&self, rank: usize) -> Option<usize> {
        (0..self.members().present.len()).find(|member| self.slot.is_member(*member, rank))
    }

    /// Whether a member of this rank has not called it.
    pub(super) fn is_missing(&self, rank: usize) -> bool {
        self.member_of_rank(rank).is_some_and(|member| {
            let members = self.members();
            members.present[member].is_none() && !members.skipped[member]
        })
    }

    /// Whether operations of other members wait for a rank that has not come, and none of them was aborted.
    pub(super) fn waits_for(&self, rank: usize) -> bool {
        let is_open = || {
            let members = self.members();
            !members.left.contains(&true) && members.present.iter().any(Option::is_some)
        };
        self.is_missing(rank) && is_open()
    }

    /// The fault of a rank that ends its communicator without this call.
    pub(super) fn missing(&self, rank: usize) -> Refusal {
        let (name, call) = (self.name(), self.call);
        let message =
            format!("{name}: rank {rank} ends its communicator without {call}, which others call");
        Refusal::fault(INVALID_USAGE, message, self.world)
    }

    /// A member's operation ends without a result, and no other can end.
    pub(crate) fn leave(&self, member: usize) {
        self.members().left[member] = true;
    }

    /// Whether the operation of `member` can end, if operations whose tickets `is_resident` are running.
    pub(crate) fn can_end(&self, member: usize, is_resident: impl Fn(Ticket) -> bool) -> bool {
        let members = self.members();
        let everyone = || {
            members.present.iter().all(|it| it.as_ref().is_some_and(|it| is_resident(it.ticket)))
        };
        let is_open = !members.hangs && !members.left.contains(&true);
        members.is_done || members.left[member] || (is_open && everyone())
    }

    /// Whether the operation of `member` may end some time, if `is_possible` says which operations may become
    /// resident. A member that has not come yet may come, and one that waits for a member that left may be
    /// aborted.
    pub(crate) fn may_end(&self, is_possible: impl Fn(Ticket) -> bool) -> bool {
        let members = self.members();
        let all_present =
            || members.present.iter().all(|it| it.as_ref().is_none_or(|it| is_possible(it.ticket)));
        let is_open =
            members.hangs || members.present.contains(&None) || members.left.contains(&true);
        members.is_done || is_open || all_present()
    }

    /// The operation of `member` waits for its peers. What it receives has no value until it ends, so that a
    /// program which reads it too early is found; and what it sends is kept, to find one that writes too early.
    pub(crate) fn begin(&self, member: usize, space: &AddressSpace) {
        let mut members = self.members();
        let size = members.present.len();
        let Some(Member { buffers, sent, .. }) = &mut members.present[member] else {
            return;
        };
        let (sends, receives) = self.call.extents(member, size);
        let mut bytes = vec![0; sends];
        // Memory that is not valid any more is reported when the operation runs.
        if let Ok(undefined) = space.read_any(buffers.send, &mut bytes) {
            *sent = Some(Sent { bytes, undefined });
            let _ = space.forget(buffers.receive, receives);
        }
    }

    /// Checks that the memory of `member` has not been written since its operation began. Memory in place, which
    /// had no value until now, has the one that is sent again.
    fn check_unchanged(
        &self,
        member: usize,
        size: usize,
        Member { buffers, sent, .. }: &Member,
        space: &AddressSpace,
    ) -> std::result::Result<(), MemoryError> {
        let Some(Sent { bytes, undefined }) = sent else {
            return Ok(());
        };
        let written = |what: &str| {
            let (name, call) = (self.name(), self.call);
            MemoryError::Race(format!(
                "{name}: what member {member} {what} by {call} was written before the call was done; let the writer \
                 wait for it, on its stream or by an event"
            ))
        };
        let (_, receives) = self.call.extents(member, size);
        if !space.is_forgotten(buffers.receive, receives)? {
            return Err(written("receives"));
        }
        let mut now = vec![0; bytes.len()];
        space.read_any(buffers.send, &mut now)?;
        if now != *bytes {
            return Err(written("sends"));
        }
        if self.call.is_in_place(*buffers, member, size) {
            space.write(buffers.send, bytes)?;
            space.undefine(buffers.send, undefined.iter().map(|(at, store)| (*at, store)))?;
        }
        Ok(())
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
        let present: Vec<&Member> = members.present.iter().flatten().collect();
        for (member, it) in present.iter().enumerate() {
            self.check_unchanged(member, present.len(), it, space)?;
        }
        let buffers: Vec<Buffers> = present.iter().map(|it| it.buffers).collect();
        self.call.run(&buffers, space, sums)
    }
}
