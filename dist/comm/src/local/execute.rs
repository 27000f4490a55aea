//! The work of a collective whose members have all arrived.
//!
//! Legend: members and their contributions are in the order of the group; a transfer has two
//! members, the sender and the receiver.

use std::ops::Range;

use meshgrad_mesh::Group;
use meshgrad_runtime::{DType, Lent, Result};

use crate::contribution::{Arrival, Buffer, Tensors};
use crate::error::{CallSite, CommError};
use crate::reduce::{CHUNK, Reduce, Reducer};
use crate::ticket::{Collective, Counts, Fingerprint};

/// One member's elements.
struct Part<'a, T> {
    input: Option<&'a [T]>,
    output: Option<&'a mut [T]>,
}

impl<T> Part<'_, T> {
    /// What the member contributes. In place, that is its output.
    fn source(&self) -> &[T] {
        match (self.input, &self.output) {
            (Some(input), _) => input,
            (None, Some(output)) => output,
            (None, None) => &[],
        }
    }
}

/// Does the work of a collective.
pub(super) fn execute(group: &Group, ranks: &[usize], arrivals: &[Arrival]) -> Result<()> {
    let Some(first) = arrivals.first() else {
        return Ok(());
    };
    match first.ticket.request.fingerprint.dtype {
        None => Ok(()),
        Some(DType::F64) => run::<f64>(group, ranks, arrivals),
        Some(DType::F32) => run::<f32>(group, ranks, arrivals),
        Some(DType::BF16) => run::<half::bf16>(group, ranks, arrivals),
        Some(DType::F16) => run::<half::f16>(group, ranks, arrivals),
        Some(DType::I64) => run::<i64>(group, ranks, arrivals),
        Some(DType::I32) => run::<i32>(group, ranks, arrivals),
        Some(DType::U32) => run::<u32>(group, ranks, arrivals),
        Some(DType::U8) => run::<u8>(group, ranks, arrivals),
        Some(DType::Bool) => run::<meshgrad_runtime::Bool>(group, ranks, arrivals),
        Some(dtype) => Err(CommError::DType { dtype }.into()),
    }
}

fn run<T: Reduce>(group: &Group, ranks: &[usize], arrivals: &[Arrival]) -> Result<()> {
    let fingerprint = &arrivals[0].ticket.request.fingerprint;
    if let Counts::Pairwise { .. } = fingerprint.counts {
        check_pairs(group, ranks, arrivals)?;
    }
    let mut tensors: Vec<_> = arrivals.iter().map(|one| one.contribution.lock()).collect();
    let parts = tensors.iter_mut().map(|tensors| {
        let Tensors { input, output } = &mut **tensors;
        let input = input.as_ref().map(Lent::slice).transpose()?;
        let output = match output {
            Buffer::None => None,
            Buffer::New(tensor) => Some(tensor.slice()?),
            Buffer::Existing(loan) => Some(loan.slice()?),
        };
        Ok(Part { input, output })
    });
    let mut parts: Vec<Part<'_, T>> = parts.collect::<Result<_>>()?;
    let counts: Vec<&Counts> = arrivals
        .iter()
        .map(|one| &one.ticket.request.fingerprint.counts)
        .collect();
    move_elements(fingerprint, &counts, &mut parts);
    Ok(())
}

fn move_elements<T: Reduce>(call: &Fingerprint, counts: &[&Counts], parts: &mut [Part<'_, T>]) {
    let members = parts.len();
    let common = counts[0];
    match call.collective {
        Collective::AllReduce | Collective::Reduce => {
            reduce(call, parts, 0..common.of(0), 0..members);
        }
        Collective::ReduceScatter => {
            for member in 0..members {
                let start = common.before(member);
                let range = start..start + common.of(member);
                reduce(call, parts, range, member..member + 1);
            }
        }
        Collective::AllGather | Collective::Gather => {
            let inputs = inputs(parts);
            for output in parts.iter_mut().filter_map(|part| part.output.as_mut()) {
                for (member, input) in inputs.iter().enumerate() {
                    copy(output, common.before(member), input);
                }
            }
        }
        Collective::Broadcast => broadcast(parts, call.root.unwrap_or(0)),
        Collective::Scatter => {
            let from = inputs(parts)[call.root.unwrap_or(0)];
            for (member, part) in parts.iter_mut().enumerate() {
                let start = common.before(member);
                if let Some(output) = &mut part.output {
                    output.copy_from_slice(&from[start..start + common.of(member)]);
                }
            }
        }
        Collective::AllToAll => {
            let inputs = inputs(parts);
            for (receiver, part) in parts.iter_mut().enumerate() {
                let Some(output) = &mut part.output else {
                    continue;
                };
                let mut at = 0;
                for (input, counts) in inputs.iter().zip(counts) {
                    let start = counts.before(receiver);
                    let block = &input[start..start + counts.of(receiver)];
                    copy(output, at, block);
                    at += block.len();
                }
            }
        }
        Collective::Send | Collective::Recv => {
            let from = inputs(parts)[0];
            if let Some(output) = &mut parts[1].output {
                output.copy_from_slice(from);
            }
        }
        Collective::Barrier => {}
    }
}

/// The separate inputs of all members; empty where there is none.
fn inputs<'a, T>(parts: &[Part<'a, T>]) -> Vec<&'a [T]> {
    parts
        .iter()
        .map(|part| part.input.unwrap_or_default())
        .collect()
}

fn copy<T: Copy>(into: &mut [T], at: usize, from: &[T]) {
    into[at..at + from.len()].copy_from_slice(from);
}

/// Reduces elements `range` of all sources, chunk by chunk, into the outputs of members `into`.
/// An output that has only these elements holds them from 0 on, as one in place does for a range
/// that starts at 0. Outputs are written after all sources of the chunk are read, so they may be
/// the same memory.
fn reduce<T: Reduce>(
    call: &Fingerprint,
    parts: &mut [Part<'_, T>],
    range: Range<usize>,
    into: Range<usize>,
) {
    let Some(reduction) = call.reduction else {
        return;
    };
    let mut reducer = Reducer::new(reduction);
    for start in range.clone().step_by(CHUNK) {
        let chunk = start..range.end.min(start + CHUNK);
        let sources: Vec<&[T]> = parts
            .iter()
            .map(|part| &part.source()[chunk.clone()])
            .collect();
        let reduced = reducer.reduce(&sources);
        drop(sources);
        for part in &mut parts[into.clone()] {
            if let Some(output) = &mut part.output {
                copy(output, start - range.start, reduced);
            }
        }
    }
}

/// Copies the root's elements to all outputs. In place, the root keeps its own.
fn broadcast<T: Copy>(parts: &mut [Part<'_, T>], root: usize) {
    let (before, rest) = parts.split_at_mut(root);
    let Some((root, after)) = rest.split_first_mut() else {
        return;
    };
    for part in before.iter_mut().chain(after) {
        if let Some(output) = &mut part.output {
            output.copy_from_slice(root.source());
        }
    }
    if let (Some(input), Some(output)) = (root.input, &mut root.output) {
        output.copy_from_slice(input);
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
