//! The work of a collective whose members are GPUs.
//!
//! The last member to arrive enqueues it on one stream per member, and no host thread waits for it.
//! Each stream first waits for all operands. At the end it waits for all streams, because they read
//! its member's memory. A reduction of shards copies them from the other members to scratch memory,
//! and adds them there in the order of the fixed tree.
//!
//! Legend: n members, in the order of the group.

#[cfg(test)]
mod faults;

use std::ops::Range;

use meshgrad_collectives::{Collective, Fingerprint, Reduction};
use meshgrad_runtime::{
    GpuSlice, GpuSliceMut, Result, Shape, StreamEvent, StreamWork, TreeOp, UninitTensor,
};

use super::part::Move;
use super::work::{moves, reductions};
use crate::contribution::{Arrival, Tensors, Work};

/// Enqueues a collective on the streams of its members.
pub(super) fn execute(arrivals: &[Arrival]) -> Result<()> {
    let mut tensors: Vec<_> = arrivals.iter().map(|one| one.contribution.lock()).collect();
    let taken = tensors.iter_mut().map(|tensors| Member::take(tensors));
    let mut members: Vec<Member<'_>> = taken.flatten().collect();
    let enqueued = enqueue(&mut members, arrivals);
    // Even after an error, because the streams run what was enqueued.
    let left = all_wait(&members, Wait::End);
    let works: Vec<StreamWork> = members.into_iter().map(|member| member.work).collect();
    let finished = tensors.iter_mut().zip(works).map(|(tensors, work)| {
        tensors.work = Work::Enqueued(work.finish()?);
        Ok(())
    });
    let finished = all(finished);
    enqueued.and(left).and(finished)
}

/// The first error. A device that fails does not keep the others from ending their work.
fn all(results: impl Iterator<Item = Result<()>>) -> Result<()> {
    results.fold(Ok(()), Result::and)
}

fn enqueue(members: &mut [Member<'_>], arrivals: &[Arrival]) -> Result<()> {
    let fingerprint = &arrivals[0].ticket.request.fingerprint;
    all_wait(members, Wait::Operands)?;
    let Some(reduction) = fingerprint.reduction else {
        return moves(arrivals).into_iter().try_for_each(|one| copy(members, one));
    };
    let shards = shards(fingerprint, members.len());
    for shard in &shards {
        reduce(members, reduction, shard)?;
    }
    if fingerprint.collective == Collective::AllReduce {
        // All members must have read their shards of an operand before its output overwrites it.
        all_wait(members, Wait::Shards)?;
        gather(members, &shards)?;
    }
    Ok(())
}

/// What the streams of all members wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// That the members' operands are written.
    Operands,
    /// That the shards of an all_reduce are reduced.
    Shards,
    /// That no stream uses the memory of another member.
    End,
}

fn all_wait(members: &[Member<'_>], wait: Wait) -> Result<()> {
    #[cfg(test)]
    if faults::is_left_out(wait) {
        return Ok(());
    }
    let works = || members.iter().map(|member| &member.work);
    let all_wait_for = |event: &StreamEvent| all(works().map(|it| it.wait_for(event)));
    match wait {
        Wait::Operands => all(works().map(|it| all_wait_for(it.ready()))),
        Wait::Shards | Wait::End => {
            // All events precede the first wait, which they would otherwise include.
            let events: Vec<Result<StreamEvent>> = works().map(StreamWork::event).collect();
            all(events.into_iter().map(|event| all_wait_for(&event?)))
        }
    }
}

/// A member's stream and memory.
struct Member<'a> {
    work: StreamWork,
    /// What it contributes.
    source: Option<GpuSlice<'a>>,
    output: Option<GpuSliceMut<'a>>,
}

impl<'a> Member<'a> {
    fn take(tensors: &'a mut Tensors) -> Option<Member<'a>> {
        let Work::Begun(work) = std::mem::replace(&mut tensors.work, Work::None) else {
            return None;
        };
        let (source, output) = tensors.gpu_slices();
        Some(Member { work, source, output })
    }
}

/// Copies on the receiver's stream.
fn copy(members: &mut [Member<'_>], one: Move) -> Result<()> {
    let Move { sender, from, receiver, at } = one;
    let to = at..at + from.len();
    if let (Some(source), Some(output)) = (&members[sender].source, &members[receiver].output) {
        let (source, output) = (source.part(from)?, output.part(to)?);
        if !source.is(output.as_slice()) {
            members[receiver].work.run(|| output.copy_from(&source))?;
        }
    }
    Ok(())
}

/// Elements that one member reduces.
pub(crate) struct Shard {
    pub(crate) elements: Range<usize>,
    pub(crate) member: usize,
    /// Where they go in its output.
    pub(crate) at: usize,
}

pub(crate) fn shards(call: &Fingerprint, n: usize) -> Vec<Shard> {
    let count = call.counts.of(0);
    match call.collective {
        Collective::AllReduce => {
            let each = count.div_ceil(n).max(1);
            let of_member = |member: usize| {
                let start = (member * each).min(count);
                Shard { elements: start..(start + each).min(count), member, at: start }
            };
            (0..n).map(of_member).collect()
        }
        Collective::Reduce => {
            vec![Shard { elements: 0..count, member: call.root.unwrap_or(0), at: 0 }]
        }
        _ => {
            let of_member = |(elements, members): (Range<usize>, Range<usize>)| Shard {
                elements,
                member: members.start,
                at: 0,
            };
            reductions(call, n).into_iter().map(of_member).collect()
        }
    }
}

/// Reduces a shard on its member's stream.
fn reduce(members: &mut [Member<'_>], reduction: Reduction, shard: &Shard) -> Result<()> {
    let count = shard.elements.len();
    let sources = members.iter().filter_map(|member| member.source.as_ref());
    let sources = sources.map(|source| source.part(shard.elements.clone()));
    let sources: Vec<GpuSlice<'_>> = sources.collect::<Result<_>>()?;
    let member = &mut members[shard.member];
    let Some(output) = member.output.as_ref().filter(|_| count > 0) else {
        return Ok(());
    };
    let output = output.part(shard.at..shard.at + count)?;
    member.work.run(|| {
        let (device, dtype) = (output.as_slice().device(), output.as_slice().dtype());
        let scratch = Shape::new(&[sources.len() - 1, count])?;
        let scratch = UninitTensor::new(device, scratch, dtype)?;
        let mut scratch = scratch.lend_mut("collective")?;
        let scratch = scratch.gpu_slice();
        let mut sources = sources;
        let others = sources.iter_mut().enumerate();
        let others = others.filter(|(source, _)| *source != shard.member);
        for (row, (_, source)) in others.enumerate() {
            let copy = scratch.part(row * count..(row + 1) * count)?;
            copy.copy_from(source)?;
            *source = copy.as_slice().clone();
        }
        output.reduce_from(tree_op(reduction), &sources)
    })
}

/// Copies reduced shards to all members, each to its place.
fn gather(members: &mut [Member<'_>], shards: &[Shard]) -> Result<()> {
    for shard in shards {
        let output = members[shard.member].output.as_ref();
        let place = shard.at..shard.at + shard.elements.len();
        let Some(reduced) = output.map(|it| it.part(place.clone())).transpose()? else {
            continue;
        };
        for member in members.iter_mut() {
            let output = member.output.as_ref().map(|it| it.part(place.clone()));
            if let Some(output) = output.transpose()?
                && !output.as_slice().is(reduced.as_slice())
            {
                member.work.run(|| output.copy_from(reduced.as_slice()))?;
            }
        }
    }
    Ok(())
}

pub(crate) fn tree_op(reduction: Reduction) -> TreeOp {
    match reduction {
        Reduction::Sum => TreeOp::Sum,
        Reduction::Mean => TreeOp::Mean,
        Reduction::Max => TreeOp::Max,
        Reduction::Min => TreeOp::Min,
    }
}
