//! The work of a collective whose members have all arrived.
//!
//! Legend: members and their contributions are in the order of the group; a transfer has two
//! members, the sender and the receiver.

use std::ops::Range;

use meshgrad_collectives::{CallSite, CommError, Counts, Reduction};
use meshgrad_mesh::Group;
use meshgrad_runtime::Result;

use super::part::{Move, Part, write};
use super::work::{moves, reductions};
use super::{gpus, shards};
use crate::by_dtype::by_dtype;
use crate::contribution::{Arrival, Buffer, Tensors};
use crate::reduce::{CHUNK, Reduce, Reducer};

/// Does the work of a collective. If it is large, uses as many threads as `threads` returns.
pub(super) fn execute(
    group: &Group,
    ranks: &[usize],
    arrivals: &[Arrival],
    threads: impl FnOnce() -> usize,
) -> Result<()> {
    let Some(first) = arrivals.first() else {
        return Ok(());
    };
    if let Counts::Pairwise { .. } = first.ticket.request.fingerprint.counts {
        check_pairs(group, ranks, arrivals)?;
    }
    if arrivals.iter().all(|one| one.contribution.is_empty()) {
        return Ok(()); // its tensors travel on another transport
    }
    if first.contribution.is_on_gpu() {
        return gpus::execute(arrivals);
    }
    match first.ticket.request.fingerprint.dtype {
        None => Ok(()),
        Some(dtype) => by_dtype!(dtype, T => run::<T>(arrivals, threads)),
    }
}

fn run<T: Reduce>(arrivals: &[Arrival], threads: impl FnOnce() -> usize) -> Result<()> {
    let fingerprint = &arrivals[0].ticket.request.fingerprint;
    let mut tensors: Vec<_> = arrivals.iter().map(|one| one.contribution.lock()).collect();
    let parts = tensors.iter_mut().map(|tensors| {
        let Tensors { input, output, .. } = &mut **tensors;
        let input = input.as_ref().map(|input| input.slice()).transpose()?;
        let output = match output {
            Buffer::None => None,
            Buffer::New(tensor) => Some(tensor.slice()?),
            Buffer::Existing(loan) => Some(loan.slice()?),
            Buffer::Shared(loan) => {
                let (all, input, output) = loan.slice()?;
                return Ok(Part::Shared { all, input, output });
            }
        };
        Ok(Part::Apart { input, output })
    });
    let mut parts: Vec<Part<'_, T>> = parts.collect::<Result<_>>()?;
    let elements: usize = parts.iter_mut().map(Part::written).sum();
    let threads = match shards::is_large(elements) {
        true => threads(),
        false => 1,
    };
    match fingerprint.reduction {
        Some(reduction) => {
            let ranges = reductions(fingerprint, parts.len());
            reduce_all(reduction, &mut parts, &ranges, threads);
        }
        None => move_all(&mut parts, moves(arrivals), threads),
    }
    Ok(())
}

fn reduce_all<T: Reduce>(
    reduction: Reduction,
    parts: &mut [Part<'_, T>],
    ranges: &[(Range<usize>, Range<usize>)],
    threads: usize,
) {
    let divided = match threads {
        1 => None,
        _ => shards::of_reductions(parts, ranges),
    };
    match divided {
        Some(shards) => shards::run(shards, threads, |mut parts| {
            let (count, members) = (parts[0].source().len(), parts.len());
            reduce(reduction, &mut parts, 0..count, 0..members);
        }),
        None => {
            for (range, into) in ranges {
                reduce(reduction, parts, range.clone(), into.clone());
            }
        }
    }
}

/// Reduces elements `range` of all sources, chunk by chunk, into the outputs of members `into`. The
/// first reduced element goes to index 0 of an output. All sources of a chunk are read before the
/// outputs are written, so they may be the same memory.
fn reduce<T: Reduce>(
    reduction: Reduction,
    parts: &mut [Part<'_, T>],
    range: Range<usize>,
    into: Range<usize>,
) {
    let mut reducer = Reducer::new(reduction);
    for start in range.clone().step_by(CHUNK) {
        let chunk = start..range.end.min(start + CHUNK);
        let sources: Vec<&[T]> = parts.iter().map(|part| &part.source()[chunk.clone()]).collect();
        let reduced = reducer.reduce(&sources);
        drop(sources);
        for part in &mut parts[into.clone()] {
            if let Some(output) = part.output() {
                write(output, start - range.start, reduced);
            }
        }
    }
}

fn move_all<T: Reduce>(parts: &mut [Part<'_, T>], moves: Vec<Move>, threads: usize) {
    let divided = match threads {
        1 => None,
        _ => shards::of_moves(parts, &moves),
    };
    match divided {
        Some(copies) => shards::run(copies, threads, |(from, to)| to.copy_from_slice(from)),
        None => moves.into_iter().for_each(|one| one.run(parts)),
    }
}

/// Checks that each member sends what the receiver expects.
fn check_pairs(group: &Group, ranks: &[usize], arrivals: &[Arrival]) -> Result<(), CommError> {
    for (from, sender) in arrivals.iter().enumerate() {
        for (to, receiver) in arrivals.iter().enumerate() {
            let (Counts::Pairwise { send, .. }, Counts::Pairwise { recv, .. }) = (
                &sender.ticket.request.fingerprint.counts,
                &receiver.ticket.request.fingerprint.counts,
            ) else {
                continue;
            };
            if send[to] != recv[from] {
                return Err(CommError::PairCounts {
                    group: group.clone(),
                    sender: CallSite::new(ranks[from], &sender.ticket),
                    receiver: CallSite::new(ranks[to], &receiver.ticket),
                    sent: send[to],
                    expected: recv[from],
                });
            }
        }
    }
    Ok(())
}
