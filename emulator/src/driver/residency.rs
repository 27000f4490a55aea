//! The collectives that occupy a GPU.
//!
//! A collective that waits for its peers is a kernel that spins. A GPU may have room for a limited number of them
//! (`MESHGRAD_EMULATOR_RESIDENT`). One that has started keeps its place until it is done.

use std::collections::BTreeMap;

use super::ticket::Ticket;

/// The collectives that have started, with their devices.
pub(crate) struct Residency {
    limit: Option<usize>,
    devices: BTreeMap<Ticket, u32>,
}

impl Residency {
    pub(crate) fn new(limit: Option<usize>) -> Residency {
        Residency { limit, devices: BTreeMap::new() }
    }

    pub(crate) fn is_limited(&self) -> bool {
        self.limit.is_some()
    }

    /// Whether a collective has started, if nothing but a place on its GPU may keep it from that.
    pub(crate) fn has_started(&self, ticket: Ticket) -> bool {
        !self.is_limited() || self.devices.contains_key(&ticket)
    }

    /// Whether a collective may start on `device`, once those that started and that `ends` have done so.
    pub(crate) fn has_room(&self, device: u32, ends: impl Fn(&Ticket) -> bool) -> bool {
        let kept = self.devices.iter().filter(|(ticket, on)| **on == device && !ends(ticket));
        let kept = kept.count();
        self.limit.is_none_or(|limit| kept < limit)
    }

    pub(crate) fn start(&mut self, ticket: Ticket, device: u32) {
        self.devices.insert(ticket, device);
    }

    pub(crate) fn finish(&mut self, ticket: Ticket) {
        self.devices.remove(&ticket);
    }
}
