//! The communicators of a process.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::id::WorldId;
use super::meeting::Meeting;
use crate::driver::context::ContextHandle;
use crate::driver::handles::{Handle, Named, Table};
use crate::driver::ticket::Ticket;

pub(crate) type CommunicatorHandle = Handle<Communicator>;

/// A communicator, as one rank has it.
pub(crate) struct Communicator {
    pub(super) world: WorldId,
    pub(super) rank: usize,
    pub(super) context: ContextHandle,
    /// How many collectives it has called.
    pub(super) calls: u64,
    /// Its last operation: its calls run one after the other, on whatever streams.
    pub(super) last: Option<Ticket>,
    /// How often a non-blocking call reports that it is in progress, after all ranks have come.
    pub(super) polls: u32,
    pub(super) is_finalized: bool,
}

impl Named for Communicator {
    const NAME: &'static str = "communicator";
}

/// The communicators of all ranks that share a unique id.
pub(crate) struct World {
    pub(super) members: Vec<Option<CommunicatorHandle>>,
    /// Whether all members have come; some may have left since.
    pub(super) is_complete: bool,
    pub(super) collectives: BTreeMap<u64, Arc<Meeting>>,
    pub(super) transfers: BTreeMap<(usize, usize), Transfers>,
}

/// The transfers from one rank to another.
#[derive(Default)]
pub(super) struct Transfers {
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) meetings: BTreeMap<u64, Arc<Meeting>>,
}

/// All communicators of the process.
#[derive(Default)]
pub(crate) struct Communicators {
    /// Whether members that call different things wait for each other, and nothing is reported.
    pub(crate) hangs: bool,
    pub(crate) worlds: BTreeMap<WorldId, World>,
    pub(crate) table: Table<Communicator>,
}

impl World {
    pub(super) fn new(size: usize) -> World {
        World {
            members: vec![None; size],
            is_complete: false,
            collectives: BTreeMap::new(),
            transfers: BTreeMap::new(),
        }
    }
}
