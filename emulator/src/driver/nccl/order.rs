//! Communicators of the same GPUs that are called in different orders.
//!
//! If one GPU starts `a` before `b` and another one `b` before `a`, each may wait for the other: a GPU need not run
//! two collectives at a time. In one run they may still end, because there was room for both.

use std::sync::Arc;

use super::meeting::Meeting;
use super::refusal::{INVALID_USAGE, Refusal};
use super::world::World;
use super::world_id::WorldId;
use crate::driver::ticket::Ticket;
use crate::driver::{Driver, State};

/// A GPU that two calls share, and when it was given each of them.
struct Shared {
    device: u32,
    first: Option<Ticket>,
    second: Option<Ticket>,
}

impl Shared {
    fn is_first_earlier(&self) -> bool {
        self.first.is_some() && (self.second.is_none() || self.first < self.second)
    }
}

impl Driver {
    /// Reports collectives, which have ended here, that are not in the same order everywhere.
    pub(in crate::driver) fn check_order(
        &self,
        state: &mut State,
        ended: &[(Arc<Meeting>, usize)],
    ) {
        for (meeting, _) in ended {
            if let Err(refusal) = state.check_order(meeting) {
                // The calls have returned; their streams get the error.
                let _ = self.refuse::<()>(state, refusal);
            }
        }
    }
}

impl State {
    /// Checks that the GPUs of a call got it in the same order as those of other communicators. All members have
    /// come, so those of another call that have not are later.
    fn check_order(&self, meeting: &Meeting) -> Result<(), Refusal> {
        if self.nccl.hangs {
            return Ok(());
        }
        let id = meeting.world();
        let Some(world) = self.nccl.worlds.get(&id) else {
            return Ok(());
        };
        let others = self.nccl.worlds.iter().filter(|(other, _)| **other != id);
        for (other, second) in others.flat_map(|(_, it)| it.meetings.values().map(move |m| (it, m)))
        {
            let shared = self.shared((world, meeting), (other, second));
            let earlier = shared.iter().find(|it| it.is_first_earlier());
            let later = shared.iter().find(|it| it.second.is_some() && it.second < it.first);
            if let (Some(earlier), Some(later)) = (earlier, later) {
                return Err(in_two_orders(id, [meeting, second], [earlier, later]));
            }
        }
        Ok(())
    }

    /// The GPUs that two calls share.
    fn shared(&self, first: (&World, &Meeting), second: (&World, &Meeting)) -> Vec<Shared> {
        let of = |(world, meeting): (&World, &Meeting)| {
            let members = world.members.iter().enumerate();
            let placed = members.filter_map(|(rank, handle)| {
                let context = self.nccl.table.get((*handle)?).ok()?.context;
                let device = self.contexts.get(context).ok()?.device;
                Some((device, meeting.ticket_of_rank(rank)?))
            });
            placed.collect::<Vec<_>>()
        };
        let second = of(second);
        let both = of(first).into_iter().filter_map(|(device, first)| {
            let (_, second) = second.iter().find(|(other, _)| *other == device)?;
            Some(Shared { device, first, second: *second })
        });
        both.collect()
    }
}

fn in_two_orders(
    world: WorldId,
    [first, second]: [&Meeting; 2],
    [earlier, later]: [&Shared; 2],
) -> Refusal {
    let (first, second) = (first.name(), second.name());
    let (earlier, later) = (earlier.device, later.device);
    let message = format!(
        "different orders: {first} was called before {second} on GPU {earlier}, and after it on GPU {later}, which \
         can deadlock; call collectives in the same order on all ranks"
    );
    Refusal::fault(INVALID_USAGE, message, world)
}
