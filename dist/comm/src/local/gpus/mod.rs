//! The work of a collective whose members are GPUs.
//!
//! The last member to arrive enqueues it on one stream per member, and no host thread waits for it.
//! Each stream waits for the members' operands, and each member's stream for all streams at the
//! end, because they read its memory. A reduction of shards copies them from the other members to
//! scratch memory, and adds them there in the order of the fixed tree.
//!
//! Legend: n members, in the order of the group.

#[cfg(test)]
mod faults;

use std::ops::Range;
use std::sync::MutexGuard;

use meshgrad_runtime::{
    GpuSlice, GpuSliceMut, Result, Shape, StreamEvent, StreamWork, TreeOp, UninitTensor,
};

use super::part::Move;
use super::work::{moves, reductions};
use crate::contribution::{Arrival, Tensors, Work};
use crate::ticket::{Collective, Fingerprint, Reduction};

/// Enqueues a collective on the streams of its members.
pub(super) fn execute(arrivals: &[Arrival]) -> Result<()> {
    let mut tensors: Vec<_> = arrivals.iter().map(|one| one.contribution.lock()).collect();
    let mut members: Vec<Member> = tensors.iter_mut().filter_map(Member::take).collect();
    let enqueued = enqueue(&mut members, arrivals);
    // Also after an error, because the streams run what was enqueued.
    let left = all_wait(&members, Wait::End);
    for (tensors, member) in tensors.iter_mut().zip(members) {
        tensors.work = Work::Enqueued(member.work.finish()?);
    }
    enqueued.and(left)
}

fn enqueue(members: &mut [Member], arrivals: &[Arrival]) -> Result<()> {
    let fingerprint = &arrivals[0].ticket.request.fingerprint;
    all_wait(members, Wait::Operands)?;
    let Some(reduction) = fingerprint.reduction else {
        return moves(arrivals)
            .into_iter()
            .try_for_each(|one| copy(members, one));
    };
    let shards = shards(fingerprint, members.len());
    for shard in &shards {
        reduce(members, reduction, shard)?;
    }
    if fingerprint.collective == Collective::AllReduce {
        // Other members have read their shards of this one's operand, which may be its output.
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

fn all_wait(members: &[Member], wait: Wait) -> Result<()> {
    #[cfg(test)]
    if faults::is_left_out(wait) {
        return Ok(());
    }
    let works = || members.iter().map(|member| &member.work);
    let all_wait_for = |event: &StreamEvent| works().try_for_each(|it| it.wait_for(event));
    match wait {
        Wait::Operands => works().try_for_each(|it| all_wait_for(it.ready())),
        Wait::Shards | Wait::End => {
            let events = works().map(StreamWork::event).collect::<Result<Vec<_>>>()?;
            events.iter().try_for_each(all_wait_for)
        }
    }
}

/// A member's stream and memory.
struct Member {
    work: StreamWork,
    /// What it contributes.
    source: Option<GpuSlice>,
    output: Option<GpuSliceMut>,
}

impl Member {
    fn take(tensors: &mut MutexGuard<'_, Tensors>) -> Option<Member> {
        match std::mem::replace(&mut tensors.work, Work::None) {
            Work::Begun(work) => {
                let (source, output) = tensors.gpu_slices();
                Some(Member {
                    work,
                    source,
                    output,
                })
            }
            Work::None | Work::Enqueued(_) => None,
        }
    }
}

/// Copies on the receiver's stream.
fn copy(members: &mut [Member], one: Move) -> Result<()> {
    let Move {
        sender,
        from,
        receiver,
        at,
    } = one;
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
struct Shard {
    elements: Range<usize>,
    member: usize,
    /// Where they go in its output.
    at: usize,
}

fn shards(call: &Fingerprint, n: usize) -> Vec<Shard> {
    let count = call.counts.of(0);
    match call.collective {
        Collective::AllReduce => {
            let each = count.div_ceil(n).max(1);
            let of_member = |member: usize| {
                let start = (member * each).min(count);
                Shard {
                    elements: start..(start + each).min(count),
                    member,
                    at: start,
                }
            };
            (0..n).map(of_member).collect()
        }
        Collective::Reduce => vec![Shard {
            elements: 0..count,
            member: call.root.unwrap_or(0),
            at: 0,
        }],
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
fn reduce(members: &mut [Member], reduction: Reduction, shard: &Shard) -> Result<()> {
    let count = shard.elements.len();
    let sources = members.iter().filter_map(|member| member.source.as_ref());
    let sources = sources.map(|source| source.part(shard.elements.clone()));
    let mut sources: Vec<GpuSlice> = sources.collect::<Result<_>>()?;
    let member = &mut members[shard.member];
    let Some(output) = member.output.as_ref().filter(|_| count > 0) else {
        return Ok(());
    };
    let output = output.part(shard.at..shard.at + count)?;
    member.work.run(|| {
        let (device, dtype) = (output.as_slice().device(), output.as_slice().dtype());
        let scratch = Shape::new(&[sources.len() - 1, count])?;
        let scratch = UninitTensor::new(device, scratch, dtype)?;
        let scratch = scratch.lend_mut("collective")?.gpu_slice();
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
fn gather(members: &mut [Member], shards: &[Shard]) -> Result<()> {
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

fn tree_op(reduction: Reduction) -> TreeOp {
    match reduction {
        Reduction::Sum => TreeOp::Sum,
        Reduction::Mean => TreeOp::Mean,
        Reduction::Max => TreeOp::Max,
        Reduction::Min => TreeOp::Min,
    }
}
