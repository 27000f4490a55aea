//! A collective or a transfer: what its members must agree on, and the data that it moves.

use std::fmt;

use super::element::Element;
use super::sums::{Reduction, Sums, reduce};
use crate::memory::{AddressSpace, MemoryError};

/// What all members must agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) kind: Kind,
    /// Elements: of the buffer that is per rank, as in `nccl.h`.
    pub(crate) count: usize,
    pub(crate) element: Element,
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

/// The addresses of a member's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Buffers {
    pub(crate) send: u64,
    pub(crate) receive: u64,
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
        }
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
            Kind::AllReduce(by) => {
                let sends = members.iter().map(|it| it.send);
                let orders: Vec<_> = (0..size).map(|chunk| sums.order(chunk, size)).collect();
                let sum = self.reduced(by, sends.collect(), space, &orders)?;
                members.iter().try_for_each(|it| space.write(it.receive, &sum))
            }
            Kind::Reduce(by, root) => {
                let sends = members.iter().map(|it| it.send);
                let sum = self.reduced(by, sends.collect(), space, &[sums.order(root, size)])?;
                space.write(members[root].receive, &sum)
            }
            Kind::ReduceScatter(by) => {
                // Buffers can be in place, so all are read before any is written.
                let part = |rank: usize| {
                    let sends = members.iter().map(|it| at(it.send, rank));
                    self.reduced(by, sends.collect(), space, &[sums.order(rank, size)])
                };
                let parts = (0..size).map(part).collect::<Result<Vec<_>, _>>()?;
                members.iter().zip(parts).try_for_each(|(it, part)| space.write(it.receive, &part))
            }
        }
    }

    /// The reduction of `count` elements at each address, in as many chunks as there are orders of members.
    fn reduced(
        &self,
        by: Reduction,
        addresses: Vec<u64>,
        space: &AddressSpace,
        orders: &[Vec<usize>],
    ) -> Result<Vec<u8>, MemoryError> {
        let read = |address: u64| {
            let mut bytes = vec![0; self.element.bytes_of(self.count)];
            space.read(address, &mut bytes).map(|()| bytes)
        };
        let inputs = addresses.into_iter().map(read).collect::<Result<Vec<_>, _>>()?;
        Ok(reduce(self.element, by, &inputs, self.count.div_ceil(orders.len()), orders))
    }
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
