//! A collective or a transfer: what its members must agree on, and the data that it moves.

use std::fmt;

use super::element::Element;
use super::sums::{Reduction, Sums, reduce};
use super::world_id::WorldId;
use crate::memory::{AddressSpace, MemoryError, Undefined};

/// What all members must agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) kind: Kind,
    /// Elements: of the buffer that is per rank, as in `nccl.h`.
    pub(crate) count: usize,
    pub(crate) element: Element,
    /// Whether it is part of a graph.
    pub(crate) is_captured: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    AllReduce(Reduction),
    Reduce(Reduction, usize),
    Broadcast(usize),
    AllGather,
    ReduceScatter(Reduction),
    AllToAll,
    /// From member 0 to member 1.
    Transfer,
}

/// Which call of a communicator it is. Ranks count their collectives, and the transfers of each pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Slot {
    Collective(u64),
    Transfer { number: u64, from: usize, to: usize },
}

impl Slot {
    /// Such as `collective 3 of communicator 1`.
    pub(super) fn name(self, world: WorldId) -> String {
        match self {
            Slot::Collective(number) => format!("collective {number} of {world}"),
            Slot::Transfer { number, from, to } => {
                format!("transfer {number} from rank {from} to rank {to} of {world}")
            }
        }
    }

    /// How many members the call has in a world of `size` ranks.
    pub(super) fn members(self, size: usize) -> usize {
        match self {
            Slot::Collective(_) => size,
            Slot::Transfer { .. } => 2,
        }
    }

    /// Whether `rank` is member `member` of the call.
    pub(super) fn is_member(self, member: usize, rank: usize) -> bool {
        match self {
            Slot::Collective(_) => member == rank,
            Slot::Transfer { from, to, .. } => [from, to][member] == rank,
        }
    }
}

/// A rank's part in a call: its place among the members, and its buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(super) slot: Slot,
    pub(super) member: usize,
    pub(super) call: Call,
    pub(super) buffers: Buffers,
}

/// The addresses of a member's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Buffers {
    pub(crate) send: u64,
    pub(crate) receive: u64,
}

/// What a rank calls.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    Collective(Call, Buffers),
    Send { to: usize, from: u64, count: usize, element: Element },
    Receive { from: usize, to: u64, count: usize, element: Element },
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, element) = (self.count, self.element.name());
        match self.kind {
            Kind::AllReduce(by) => write!(f, "all_reduce({element} x {count}, {by})"),
            Kind::Reduce(by, root) => write!(f, "reduce({element} x {count}, {by}, root {root})"),
            Kind::Broadcast(root) => write!(f, "broadcast({element} x {count}, root {root})"),
            Kind::AllGather => write!(f, "all_gather({element} x {count})"),
            Kind::ReduceScatter(by) => write!(f, "reduce_scatter({element} x {count}, {by})"),
            Kind::AllToAll => write!(f, "all_to_all({element} x {count})"),
            Kind::Transfer => write!(f, "transfer({element} x {count})"),
        }?;
        f.write_str(if self.is_captured { " in a graph" } else { "" })
    }
}

impl Call {
    /// The bytes of the buffers of member `rank` of `size`: what it sends from and receives to. Sizes that
    /// overflow are larger than any allocation.
    pub(crate) fn extents(&self, rank: usize, size: usize) -> (usize, usize) {
        let one = self.element.bytes_of(self.count);
        let all = one.saturating_mul(size);
        match self.kind {
            Kind::AllReduce(_) => (one, one),
            Kind::Reduce(_, root) => (one, if rank == root { one } else { 0 }),
            Kind::Broadcast(root) => (if rank == root { one } else { 0 }, one),
            Kind::AllGather => (one, all),
            Kind::ReduceScatter(_) => (all, one),
            Kind::AllToAll => (all, all),
            Kind::Transfer => (if rank == 0 { one } else { 0 }, if rank == 1 { one } else { 0 }),
        }
    }

    /// Whether the buffers of member `rank` of `size` overlap as the library allows.
    pub(super) fn is_in_place(&self, buffers: Buffers, rank: usize, size: usize) -> bool {
        let Buffers { send, receive } = buffers;
        let (sent, received) = self.extents(rank, size);
        let own = (rank * self.element.bytes_of(self.count)) as u64;
        sent > 0
            && received > 0
            && match self.kind {
                Kind::AllGather => send == receive + own,
                Kind::ReduceScatter(_) => receive == send + own,
                Kind::AllToAll => false,
                _ => send == receive,
            }
    }

    /// Whether the buffers of member `rank` of `size` overlap, but not as the library allows.
    pub(super) fn overlaps(&self, buffers: Buffers, rank: usize, size: usize) -> bool {
        let Buffers { send, receive } = buffers;
        let (sent, received) = self.extents(rank, size);
        let are_apart = send + sent as u64 <= receive || receive + received as u64 <= send;
        sent > 0 && received > 0 && !are_apart && !self.is_in_place(buffers, rank, size)
    }

    /// Moves the data between the members, in the order of their ranks.
    pub(super) fn run(
        &self,
        members: &[Buffers],
        space: &AddressSpace,
        sums: Sums,
    ) -> Result<(), MemoryError> {
        let size = members.len();
        let one = self.element.bytes_of(self.count);
        let at = |address: u64, index: usize| address + (index * one) as u64;
        match self.kind {
            Kind::Transfer => space.copy(members[1].receive, members[0].send, one),
            Kind::Broadcast(root) => {
                let others = members.iter().filter(|it| it.receive != members[root].send);
                others
                    .map(|it| it.receive)
                    .try_for_each(|to| space.copy(to, members[root].send, one))
            }
            Kind::AllGather => {
                for to in members {
                    for (index, from) in members.iter().enumerate() {
                        move_unless_there(space, at(to.receive, index), from.send, one)?;
                    }
                }
                Ok(())
            }
            Kind::AllToAll => {
                for (to_index, to) in members.iter().enumerate() {
                    for (index, from) in members.iter().enumerate() {
                        move_unless_there(
                            space,
                            at(to.receive, index),
                            at(from.send, to_index),
                            one,
                        )?;
                    }
                }
                Ok(())
            }
            Kind::AllReduce(_) | Kind::Reduce(..) | Kind::ReduceScatter(_) => {
                // Buffers can be in place, so all are read before any is written.
                let mut undefined = Undefined::new();
                let read = |(rank, it): (usize, &Buffers)| {
                    let mut bytes = vec![0; self.extents(rank, size).0];
                    undefined.extend(space.read_any(it.send, &mut bytes)?);
                    Ok(bytes)
                };
                let inputs = members.iter().enumerate().map(read).collect::<Result<Vec<_>, _>>()?;
                let results = self.results(&inputs, sums);
                for (rank, (to, bytes)) in members.iter().zip(results).enumerate() {
                    space.write(to.receive, &bytes)?;
                    let first = if let Kind::ReduceScatter(_) = self.kind { rank * one } else { 0 };
                    let of_result = undefined.range(first..first + bytes.len());
                    space.undefine(to.receive, of_result.map(|(at, store)| (at - first, store)))?;
                }
                Ok(())
            }
        }
    }

    /// The bytes that each member receives, from those that each member sends.
    pub(super) fn results(&self, inputs: &[Vec<u8>], sums: Sums) -> Vec<Vec<u8>> {
        let size = inputs.len();
        let one = self.element.bytes_of(self.count);
        let whole: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
        let parts =
            |index: usize| whole.iter().map(|it| &it[index * one..][..one]).collect::<Vec<_>>();
        match self.kind {
            Kind::Transfer => vec![Vec::new(), inputs[0].clone()],
            Kind::Broadcast(root) => vec![inputs[root].clone(); size],
            Kind::AllGather => vec![inputs.concat(); size],
            Kind::AllToAll => (0..size).map(|to| parts(to).concat()).collect(),
            Kind::AllReduce(by) => {
                let orders: Vec<_> = (0..size).map(|chunk| sums.order(chunk, size)).collect();
                vec![self.reduced(by, &whole, &orders); size]
            }
            Kind::Reduce(by, root) => {
                let mut results = vec![Vec::new(); size];
                results[root] = self.reduced(by, &whole, &[sums.order(root, size)]);
                results
            }
            Kind::ReduceScatter(by) => {
                let of = |to| self.reduced(by, &parts(to), &[sums.order(to, size)]);
                (0..size).map(of).collect()
            }
        }
    }

    /// The reduction of `count` elements, in as many chunks as there are orders of members.
    fn reduced(&self, by: Reduction, inputs: &[&[u8]], orders: &[Vec<usize>]) -> Vec<u8> {
        reduce(self.element, by, inputs, self.count.div_ceil(orders.len()), orders)
    }
}

/// Describes the different calls of two members.
pub(super) fn difference(name: &str, [first, second]: [(usize, &Call); 2]) -> String {
    let caller = |member: usize| match (first.1.kind, member) {
        (Kind::Transfer, 0) => "the sender".to_owned(),
        (Kind::Transfer, _) => "the receiver".to_owned(),
        _ => format!("rank {member}"),
    };
    let (earlier, later) = (caller(first.0), caller(second.0));
    format!("{name}: {earlier} called {}, but {later} called {}", first.1, second.1)
}

/// A copy; nothing if the bytes are in place.
fn move_unless_there(
    space: &AddressSpace,
    to: u64,
    from: u64,
    bytes: usize,
) -> Result<(), MemoryError> {
    if to == from { Ok(()) } else { space.copy(to, from, bytes) }
}
