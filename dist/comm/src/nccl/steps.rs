//! What a collective asks of NCCL.
//!
//! Legend: n members, in the order of the group.

use meshgrad_collectives::{Collective, Counts, Fingerprint, Peer, Reduction, Request};
use meshgrad_nccl::Call;
use meshgrad_runtime::{GpuSlice, GpuSliceMut, LentMut, Result, Shape, StreamWork, UninitTensor};

use crate::contribution::Tensors;
use crate::local::gpus::{Shard, shards, tree_op};
use crate::needed::{received, sent};

/// This member's part in a collective.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    pub(super) call: &'a Fingerprint,
    pub(super) peer: Option<Peer>,
    pub(super) me: usize,
    pub(super) size: usize,
    /// Whether sums are in the order of the other transports.
    pub(super) is_tree: bool,
}

impl<'a> Part<'a> {
    pub(super) fn of(request: &'a Request, [me, size]: [usize; 2], is_tree: bool) -> Part<'a> {
        Part { call: &request.fingerprint, peer: request.peer, me, size, is_tree }
    }

    /// The reduction, if this transport computes it.
    fn tree(self) -> Option<Reduction> {
        let is_ragged = matches!(self.call.counts, Counts::Ragged(_));
        let reduction = self.call.reduction;
        reduction.filter(|it| self.is_tree || is_ragged || *it != Reduction::Sum)
    }

    /// The shards of a reduction that this transport computes.
    fn shards(self) -> Vec<Shard> {
        self.tree().map_or_else(Vec::new, |_| shards(self.call, self.size))
    }

    /// Memory for the shards of other members, on the stream of `work`.
    pub(super) fn scratch(
        self,
        tensors: &mut Tensors,
        work: &mut StreamWork,
    ) -> Result<Option<LentMut>> {
        let own = self.shards().into_iter().find(|it| it.member == self.me);
        let count = own.map_or(0, |it| it.elements.len());
        let (source, _) = tensors.gpu_slices();
        let Some(source) = source.filter(|_| count > 0 && self.size > 1) else {
            return Ok(None);
        };
        work.run(|| {
            let shape = Shape::new(&[self.size - 1, count])?;
            let new = UninitTensor::new(source.device(), shape, source.dtype())?;
            new.lend_mut("collective").map(Some)
        })
    }

    /// Moves the elements that are needed before anything is computed.
    pub(super) fn first<'b>(self, memory: &Memory<'b>) -> Result<Vec<Call<'b>>> {
        let Memory { source, output, .. } = memory;
        if self.tree().is_some() {
            return self.exchange(memory);
        }
        let root = self.call.root.unwrap_or(0);
        let is_even = matches!(self.call.counts, Counts::Even(_));
        let output = output.clone();
        let whole = match (self.call.collective, source.clone(), output) {
            _ if self.call.counts == Counts::Even(0) => None,
            (Collective::AllReduce, Some(x), Some(y)) => Some(Call::AllReduce(x, y)),
            (Collective::ReduceScatter, Some(x), Some(y)) => Some(Call::ReduceScatter(x, y)),
            (Collective::AllGather, Some(x), Some(y)) if is_even => Some(Call::AllGather(x, y)),
            (Collective::Reduce, Some(x), y) => {
                Some(Call::Reduce(x, y.filter(|_| self.me == root), root))
            }
            (Collective::Broadcast, x, Some(y)) => {
                Some(Call::Broadcast(x.filter(|_| self.me == root), y, root))
            }
            _ => return self.transfers(memory),
        };
        Ok(whole.into_iter().collect())
    }

    /// Messages between pairs of members. Both know which are empty.
    fn transfers<'b>(self, memory: &Memory<'b>) -> Result<Vec<Call<'b>>> {
        let Memory { source, output, .. } = memory;
        let mut calls = Vec::new();
        if let Some(x) = source {
            for to in self.receivers() {
                let range = sent(self.call, self.me, to);
                if !range.is_empty() {
                    calls.push(Call::Send(x.part(range)?, to));
                }
            }
        }
        let mut at = 0;
        if let Some(y) = output {
            for from in self.senders() {
                let count = received(self.call, from, self.me);
                if count > 0 {
                    calls.push(Call::Recv(y.part(at..at + count)?, from));
                }
                at += count;
            }
        }
        Ok(without_moves_in_place(calls, self.me))
    }

    fn receivers(self) -> Vec<usize> {
        match self.peer {
            Some(Peer::To(peer)) => vec![peer],
            Some(Peer::From(_)) => Vec::new(),
            None => (0..self.size).collect(),
        }
    }

    fn senders(self) -> Vec<usize> {
        match self.peer {
            Some(Peer::From(peer)) => vec![peer],
            Some(Peer::To(_)) => Vec::new(),
            None => (0..self.size).collect(),
        }
    }

    /// Each member gets its shard of all others.
    fn exchange<'b>(self, memory: &Memory<'b>) -> Result<Vec<Call<'b>>> {
        let mut calls = Vec::new();
        for shard in self.shards().iter().filter(|it| !it.elements.is_empty()) {
            if shard.member != self.me
                && let Some(x) = &memory.source
            {
                calls.push(Call::Send(x.part(shard.elements.clone())?, shard.member));
            }
            if shard.member == self.me
                && let Some(scratch) = &memory.scratch
            {
                for (row, from) in (0..self.size).filter(|it| *it != self.me).enumerate() {
                    let count = shard.elements.len();
                    calls.push(Call::Recv(scratch.part(row * count..(row + 1) * count)?, from));
                }
            }
        }
        Ok(calls)
    }

    /// Reduces this member's shard, on the current stream.
    pub(super) fn reduce(self, memory: &Memory<'_>) -> Result<()> {
        let (Some(reduction), Some(x), Some(y)) = (self.tree(), &memory.source, &memory.output)
        else {
            return Ok(());
        };
        let shards = self.shards();
        let Some(shard) = shards.iter().find(|it| it.member == self.me && !it.elements.is_empty())
        else {
            return Ok(());
        };
        let count = shard.elements.len();
        let mut sources: Vec<GpuSlice<'_>> = Vec::with_capacity(self.size);
        if let Some(scratch) = &memory.scratch {
            let rows = (0..self.size - 1).map(|row| scratch.part(row * count..(row + 1) * count));
            let rows = rows.map(|row| row.map(|row| row.as_slice().clone()));
            sources.extend(rows.collect::<Result<Vec<_>>>()?);
        }
        sources.insert(self.me, x.part(shard.elements.clone())?);
        y.part(shard.at..shard.at + count)?.reduce_from(tree_op(reduction), &sources)
    }

    /// Brings the reduced shards of an all_reduce to all members.
    pub(super) fn last<'b>(self, memory: &Memory<'b>) -> Result<Vec<Call<'b>>> {
        let (Collective::AllReduce, Some(y)) = (self.call.collective, &memory.output) else {
            return Ok(Vec::new());
        };
        let mut calls = Vec::new();
        for shard in self.shards().into_iter().filter(|it| !it.elements.is_empty()) {
            let reduced = y.part(shard.at..shard.at + shard.elements.len())?;
            if shard.member == self.me {
                let others = (0..self.size).filter(|it| *it != self.me);
                calls.extend(others.map(|to| Call::Send(reduced.as_slice().clone(), to)));
            } else {
                calls.push(Call::Recv(reduced, shard.member));
            }
        }
        Ok(calls)
    }
}

/// The memory of a member's part.
pub(super) struct Memory<'a> {
    source: Option<GpuSlice<'a>>,
    output: Option<GpuSliceMut<'a>>,
    scratch: Option<GpuSliceMut<'a>>,
}

impl<'a> Memory<'a> {
    pub(super) fn new(tensors: &'a mut Tensors, scratch: &'a mut Option<LentMut>) -> Memory<'a> {
        let (source, output) = tensors.gpu_slices();
        Memory { source, output, scratch: scratch.as_mut().map(LentMut::gpu_slice) }
    }
}

/// Without a message to oneself whose elements are in their place.
fn without_moves_in_place(calls: Vec<Call<'_>>, me: usize) -> Vec<Call<'_>> {
    let own_sent = calls.iter().find_map(|call| match call {
        Call::Send(x, to) if *to == me => Some(x.clone()),
        _ => None,
    });
    let is_in_place = |call: &Call<'_>| match call {
        Call::Recv(y, from) => *from == me && own_sent.as_ref().is_some_and(|x| x.is(y.as_slice())),
        _ => false,
    };
    if !calls.iter().any(is_in_place) {
        return calls;
    }
    let is_own =
        |call: &Call<'_>| matches!(call, Call::Send(_, peer) | Call::Recv(_, peer) if *peer == me);
    calls.into_iter().filter(|call| !is_own(call)).collect()
}
