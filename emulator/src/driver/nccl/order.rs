//! Communicators of the same GPUs that are called in different orders.
//!
//! If one GPU is given `a` before `b` and another one `b` before `a`, each may wait for the other: a GPU need not run
//! two collectives at a time. They end nevertheless if there happens to be room for both.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::meeting::Meeting;
use super::refusal::{INVALID_USAGE, Refusal, Result};
use super::world::World;
use crate::driver::context::ContextHandle;
use crate::driver::ticket::Ticket;
use crate::driver::{Driver, State};

/// The ticket of a member that has not called.
const LATER: Ticket = Ticket(u64::MAX);

impl Driver {
    /// Reports calls, which have ended, that are not in the same order everywhere.
    pub(in crate::driver) fn check_order(
        &self,
        state: &mut State,
        calls: &[(Arc<Meeting>, usize)],
    ) {
        for (call, _) in calls.iter().filter(|_| !self.configuration.hangs) {
            let checked = state.check_order(call);
            // It has no caller any more.
            let _ = self.reported(state, checked);
        }
    }
}

impl State {
    fn check_order(&self, first: &Meeting) -> Result<()> {
        let id = first.world();
        // One that was aborted says nothing about an order.
        let Some(world) = self.nccl.worlds.get(&id).filter(|_| first.is_done()) else {
            return Ok(());
        };
        let own = self.tickets(world, first);
        let others = self.nccl.worlds.iter().filter(|(other, _)| **other != id);
        let others = others.flat_map(|(_, it)| it.meetings.values().map(move |call| (it, call)));
        for (other, second) in others {
            let theirs = self.tickets(other, second);
            let both = |(on, first)| Some((on, first, theirs.get(on)?));
            let mut shared = own.iter().filter_map(both);
            let before = shared.clone().find(|(_, first, second)| first < second);
            let after = shared.find(|(_, first, second)| first > second);
            if let (Some((before, ..)), Some((after, ..))) = (before, after) {
                let [before, after] = [before, after].map(|it| self.contexts.get(*it));
                let (before, after) = (before?.device, after?.device);
                let (first, second) = (first.name(), second.name());
                let message = format!(
                    "different orders: {first} was called before {second} on GPU {before}, and after it on GPU \
                     {after}, which can deadlock; call collectives in the same order on all ranks"
                );
                return Err(Refusal::fault(INVALID_USAGE, message, id));
            }
        }
        Ok(())
    }

    /// The contexts of a call's members, with their tickets. Contexts take turns on a GPU, so others do not matter.
    fn tickets(&self, world: &World, call: &Meeting) -> BTreeMap<ContextHandle, Ticket> {
        let members = world.members.iter().enumerate();
        let ticket = |(rank, handle): (usize, &Option<_>)| {
            let context = self.nccl.table.get((*handle)?).ok()?.context;
            Some((context, call.ticket_of_rank(rank)?.unwrap_or(LATER)))
        };
        members.filter_map(ticket).collect()
    }
}
