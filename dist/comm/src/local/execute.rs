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
enum Part<'a, T> {
    /// Input and output are different memory. In place, there is only an output.
    Apart {
        input: Option<&'a [T]>,
        output: Option<&'a mut [T]>,
    },
    /// Both are ranges of one slice.
    Shared {
        all: &'a mut [T],
        input: Range<usize>,
        output: Range<usize>,
    },
}

impl<T: Copy> Part<'_, T> {
    /// What the member contributes. In place, that is its output.
    fn source(&self) -> &[T] {
        match self {
            Part::Apart { input, output } => match (input, output) {
                (Some(input), _) => input,
                (None, Some(output)) => output,
                (None, None) => &[],
            },
            Part::Shared { all, input, .. } => &all[input.clone()],
        }
    }

    fn output(&mut self) -> Option<&mut [T]> {
        match self {
            Part::Apart { output, .. } => output.as_deref_mut(),
            Part::Shared { all, output, .. } => Some(&mut all[output.clone()]),
        }
    }

    /// Copies elements `from` of its source to its output, from `at` on.
    fn keep(&mut self, from: Range<usize>, at: usize) {
        match self {
            Part::Apart {
                input: Some(input),
                output: Some(output),
            } => write(output, at, &input[from]),
            Part::Apart { .. } => {}
            Part::Shared { all, input, output } => {
                let from = input.start + from.start..input.start + from.end;
                all.copy_within(from, output.start + at);
            }
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
            Buffer::Shared(loan) => {
                let (all, input, output) = loan.slice()?;
                return Ok(Part::Shared { all, input, output });
            }
        };
        Ok(Part::Apart { input, output })
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
            for receiver in 0..members {
                let mut at = 0;
                for sender in 0..members {
                    let count = common.of(sender);
                    copy(parts, sender, 0..count, receiver, at);
                    at += count;
                }
            }
        }
        Collective::Broadcast => {
            let root = call.root.unwrap_or(0);
            for receiver in 0..members {
                copy(parts, root, 0..common.of(0), receiver, 0);
            }
        }
        Collective::Scatter => {
            let root = call.root.unwrap_or(0);
            let mut start = 0;
            for receiver in 0..members {
                let end = start + common.of(receiver);
                copy(parts, root, start..end, receiver, 0);
                start = end;
            }
        }
        Collective::AllToAll => {
            for receiver in 0..members {
                let mut at = 0;
                for (sender, counts) in counts.iter().enumerate() {
                    let (start, count) = (counts.before(receiver), counts.of(receiver));
                    copy(parts, sender, start..start + count, receiver, at);
                    at += count;
                }
            }
        }
        Collective::Send | Collective::Recv => copy(parts, 0, 0..common.of(0), 1, 0),
        Collective::Barrier => {}
    }
}

/// Copies elements `from` of a member's source to another's output, from `at` on.
fn copy<T: Copy>(
    parts: &mut [Part<'_, T>],
    sender: usize,
    from: Range<usize>,
    receiver: usize,
    at: usize,
) {
    if sender == receiver {
        parts[sender].keep(from, at);
    } else if let Ok([sender, receiver]) = parts.get_disjoint_mut([sender, receiver])
        && let Some(output) = receiver.output()
    {
        write(output, at, &sender.source()[from]);
    }
}

fn write<T: Copy>(into: &mut [T], at: usize, from: &[T]) {
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
            if let Some(output) = part.output() {
                write(output, start - range.start, reduced);
            }
        }
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
