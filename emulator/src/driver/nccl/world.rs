//! The communicators of a process.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread::ThreadId;

use super::call::{Action, Buffers, Call, Kind, Part, Slot};
use super::link::Link;
use super::meeting::Meeting;
use super::refusal::{INVALID_ARGUMENT, INVALID_USAGE, Result, refused};
use super::world_id::WorldId;
use crate::driver::context::ContextHandle;
use crate::driver::handles::{Handle, Named, Table};
use crate::driver::ticket::Ticket;

pub(crate) type CommunicatorHandle = Handle<Communicator>;

/// A communicator, as one rank has it.
pub(crate) struct Communicator {
    pub(super) world: WorldId,
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) context: ContextHandle,
    /// The connection to the other ranks, if they may be in other processes.
    pub(super) link: Option<Arc<Link>>,
    /// How many collectives it has called.
    pub(super) calls: u64,
    /// How many transfers it has called, as the first or the second member, with each rank.
    pub(super) transfers: BTreeMap<(usize, usize), u64>,
    /// Its last operation: its calls run one after the other, on whatever streams.
    pub(super) last: Option<Ticket>,
    /// How often a non-blocking call reports that it is in progress, after all ranks have come.
    pub(super) polls: u32,
    pub(super) is_finalized: bool,
    pub(super) is_blocking: bool,
    /// The thread whose open group calls it.
    pub(super) grouped_by: Option<ThreadId>,
}

impl Named for Communicator {
    const NAME: &'static str = "communicator";
}

impl Communicator {
    /// Its part in its next call, which is counted.
    pub(super) fn next_part(&mut self, action: &Action, is_captured: bool) -> Part {
        let rank = self.rank;
        let (from, to, member, address, count, element) = match *action {
            Action::Collective(call, buffers) => {
                let slot = Slot::Collective(self.calls);
                self.calls += 1;
                return Part { slot, member: rank, call: Call { is_captured, ..call }, buffers };
            }
            Action::Send { to, from, count, element } => (rank, to, 0, from, count, element),
            Action::Receive { from, to, count, element } => (from, rank, 1, to, count, element),
        };
        let peer = if member == 0 { to } else { from };
        let next = self.transfers.entry((member, peer)).or_default();
        let number = *next;
        *next += 1;
        Part {
            slot: Slot::Transfer { number, from, to },
            member,
            call: Call { kind: Kind::Transfer, count, element, is_captured },
            buffers: Buffers { send: address, receive: address },
        }
    }
}

/// The communicators of all ranks that share a unique id, in this process.
pub(crate) struct World {
    pub(super) members: Vec<Option<CommunicatorHandle>>,
    /// Whether all members have come; some may have left since.
    pub(super) is_complete: bool,
    /// The ranks that have finalized or destroyed their communicator, and make no more calls.
    pub(super) departed: BTreeSet<usize>,
    pub(super) meetings: BTreeMap<Slot, Arc<Meeting>>,
}

/// All communicators of the process.
#[derive(Default)]
pub(crate) struct Communicators {
    /// Whether members that call different things wait for each other, and nothing is reported.
    pub(crate) hangs: bool,
    pub(crate) worlds: BTreeMap<WorldId, World>,
    pub(crate) table: Table<Communicator>,
    /// Whether a thread runs operations while ranks in other processes wait for them.
    pub(crate) has_runner: bool,
}

impl Communicators {
    /// Whether the ranks of a communicator may be in several processes.
    pub(super) fn has_links(&self) -> bool {
        self.table.iter().any(|(_, it)| it.link.is_some())
    }
}

impl World {
    pub(super) fn new(size: usize) -> World {
        World {
            members: vec![None; size],
            is_complete: false,
            departed: BTreeSet::new(),
            meetings: BTreeMap::new(),
        }
    }
}

/// Checks that `rank` of `size` may join a world of `known` ranks.
pub(super) fn check_join(
    world: WorldId,
    rank: usize,
    [size, known]: [usize; 2],
    is_taken: bool,
) -> Result<()> {
    if known != size {
        return refused(
            INVALID_ARGUMENT,
            format!("{world} has {known} ranks for others, and {size} for rank {rank}"),
        );
    }
    if is_taken {
        return refused(
            INVALID_USAGE,
            format!("rank {rank} of {world} exists already: an id is for one communicator"),
        );
    }
    Ok(())
}
