//! What members send each other in a collective, and how a member computes its result from it.
//!
//! In every round, each member sends one message to each other member, possibly without elements.
//! So every member knows the calls of all others, and a collective completes when all have started
//! it. Reductions use the same tree as all transports ([`crate::reduce`]).
//!
//! Legend: a part is what one member sends to one member (possibly itself) in a round.

use std::borrow::Cow;
use std::ops::Range;

use meshgrad_collectives::{Collective, Counts, Fingerprint};
use meshgrad_error::{Error, error};
use meshgrad_runtime::{Element, Result};

use super::bytes::{Bytes, Holders};
use crate::by_dtype::by_dtype;
use crate::contribution::{Buffer, Tensors};
use crate::needed::{received, sent};
use crate::reduce::{CHUNK, Reduce, Reducer};

pub(super) type Part = Bytes;

/// From this many bytes on, tensors are sent without a copy, and an all_reduce of at least 3
/// members is a reduce_scatter and an all_gather: each member then sends 2 (n - 1) / n of its
/// tensor instead of n - 1 times the whole.
const LARGE: usize = 16 << 10;

/// The round of a call that only tells the other members of it.
pub(super) const WITHOUT_TENSORS: Fingerprint = Fingerprint {
    collective: Collective::Barrier,
    dtype: None,
    counts: Counts::Even(0),
    reduction: None,
    root: None,
};

/// The rounds of a collective of `size` members.
pub(super) fn rounds(call: &Fingerprint, size: usize) -> Vec<Fingerprint> {
    let (Collective::AllReduce, Counts::Even(count), Some(dtype)) =
        (call.collective, &call.counts, call.dtype)
    else {
        return vec![call.clone()];
    };
    if size < 3 || dtype.bytes(*count) < LARGE {
        return vec![call.clone()];
    }
    let shard = |index: usize| (index + 1) * count / size - index * count / size;
    let counts = Counts::Ragged((0..size).map(shard).collect());
    let round = |collective| Fingerprint { collective, counts: counts.clone(), ..call.clone() };
    vec![round(Collective::ReduceScatter), round(Collective::AllGather)]
}

/// The bytes that member `me` expects from member `from`.
pub(super) fn expected(round: &Fingerprint, from: usize, me: usize) -> usize {
    round.dtype.map_or(0, |dtype| dtype.bytes(received(round, from, me)))
}

/// The parts of this member's tensor for `members`. Large parts are not copied: the tensor stays
/// lent while frames [hold](Holders) them. In-place operands are copied, because the result
/// overwrites them.
pub(super) fn parts(
    tensors: &mut Tensors,
    round: &Fingerprint,
    me: usize,
    members: &[usize],
) -> Result<(Vec<Part>, Option<Holders>)> {
    fn of_dtype<T: Element>(
        tensors: &mut Tensors,
        round: &Fingerprint,
        me: usize,
        members: &[usize],
    ) -> Result<(Vec<Part>, Option<Holders>)> {
        let source = match (&tensors.input, &mut tensors.output) {
            (Some(input), _) => input.slice::<T>()?,
            (None, Buffer::Existing(loan)) => loan.slice::<T>()?,
            (None, Buffer::Shared(loan)) => {
                let (all, input, _) = loan.slice::<T>()?;
                &all[input]
            }
            _ => &[],
        };
        let needed = needed(round, me, members);
        let bytes = size_of_val(source);
        if let Some(input) = &tensors.input
            && bytes >= LARGE
        {
            let whole = Bytes::of_tensor::<T>(input.clone())?;
            let holders = whole.holders();
            let mut parts = cut::<T>(&whole, 0, round, me, members)?;
            // This member keeps its own part until the end, so it is not a holder.
            let own = Bytes::of_tensor::<T>(input.clone())?;
            for (part, _) in parts.iter_mut().zip(members).filter(|(_, to)| **to == me) {
                *part = cut::<T>(&own, 0, round, me, &[me])?.remove(0);
            }
            return Ok((parts, Some(holders)));
        }
        let Some(copied) = source.get(needed.clone()) else {
            return Err(too_few(round, me, source.len(), needed.end));
        };
        let whole = Bytes::of_elements(copied.to_vec());
        Ok((cut::<T>(&whole, needed.start, round, me, members)?, None))
    }
    match round.dtype {
        None => Ok((members.iter().map(|_| Part::default()).collect(), None)),
        Some(dtype) => by_dtype!(dtype, T => of_dtype::<T>(tensors, round, me, members)),
    }
}

/// The parts of a round's result for `members`.
pub(super) fn parts_of(
    result: &Bytes,
    round: &Fingerprint,
    me: usize,
    members: &[usize],
) -> Result<Vec<Part>> {
    match round.dtype {
        None => Ok(members.iter().map(|_| Part::default()).collect()),
        Some(dtype) => by_dtype!(dtype, T => cut::<T>(result, 0, round, me, members)),
    }
}

/// The range that covers all elements that member `me` sends to `members`.
fn needed(round: &Fingerprint, me: usize, members: &[usize]) -> Range<usize> {
    let ranges = members.iter().map(|to| sent(round, me, *to));
    let sent = ranges.filter(|range| !range.is_empty());
    let hull =
        |one: Range<usize>, other: Range<usize>| one.start.min(other.start)..one.end.max(other.end);
    sent.reduce(hull).unwrap_or(0..0)
}

/// The parts of `whole` for `members`; it begins at element `start`.
fn cut<T>(
    whole: &Bytes,
    start: usize,
    round: &Fingerprint,
    me: usize,
    members: &[usize],
) -> Result<Vec<Part>> {
    let width = size_of::<T>();
    let part = |to: &usize| {
        let range = sent(round, me, *to);
        if range.is_empty() {
            return Ok(Part::default());
        }
        let part = whole.part((range.start - start) * width..(range.end - start) * width);
        part.ok_or_else(|| too_few(round, me, start + whole.len() / width, range.end))
    };
    members.iter().map(part).collect()
}

fn too_few(round: &Fingerprint, me: usize, has: usize, needs: usize) -> Error {
    let collective = round.collective;
    error!(Invalid, "{collective}: member {me} passes {has} elements, but the call needs {needs}")
}

/// Writes this member's output from the parts of all members that take part.
pub(super) fn finish(tensors: &mut Tensors, round: &Fingerprint, parts: &[Part]) -> Result<()> {
    fn of_dtype<T: Reduce>(
        tensors: &mut Tensors,
        round: &Fingerprint,
        parts: &[Part],
    ) -> Result<()> {
        let output = match &mut tensors.output {
            Buffer::None => return Ok(()),
            Buffer::New(tensor) => tensor.slice::<T>()?,
            Buffer::Existing(loan) => loan.slice::<T>()?,
            Buffer::Shared(loan) => {
                let (all, _, output) = loan.slice::<T>()?;
                &mut all[output]
            }
        };
        combine(round, &elements::<T>(parts), output);
        Ok(())
    }
    match round.dtype {
        None => Ok(()),
        Some(dtype) => by_dtype!(dtype, T => of_dtype::<T>(tensors, round, parts)),
    }
}

/// The reduction of parts of equal length.
pub(super) fn reduced(round: &Fingerprint, parts: &[Part]) -> Result<Bytes> {
    fn of_dtype<T: Reduce>(round: &Fingerprint, parts: &[Part]) -> Result<Bytes> {
        let parts = elements::<T>(parts);
        let mut output = vec![T::from_i64(0); parts.first().map_or(0, |part| part.len())];
        combine(round, &parts, &mut output);
        Ok(Bytes::of_elements(output))
    }
    match round.dtype {
        None => Ok(Bytes::default()),
        Some(dtype) => by_dtype!(dtype, T => of_dtype::<T>(round, parts)),
    }
}

/// The elements of parts; copied if the bytes are not aligned.
fn elements<T: Element>(parts: &[Part]) -> Vec<Cow<'_, [T]>> {
    parts
        .iter()
        .map(|part| match bytemuck::try_cast_slice(part) {
            Ok(elements) => Cow::Borrowed(elements),
            Err(_) => Cow::Owned(bytemuck::pod_collect_to_vec(part)),
        })
        .collect()
}

fn combine<T: Reduce>(round: &Fingerprint, parts: &[Cow<'_, [T]>], output: &mut [T]) {
    match round.collective {
        Collective::AllReduce | Collective::Reduce | Collective::ReduceScatter => {
            let Some(reduction) = round.reduction else {
                return;
            };
            let mut reducer = Reducer::new(reduction);
            for start in (0..output.len()).step_by(CHUNK) {
                let chunk = start..output.len().min(start + CHUNK);
                let sources: Vec<&[T]> = parts.iter().map(|part| &part[chunk.clone()]).collect();
                output[chunk].copy_from_slice(reducer.reduce(&sources));
            }
        }
        Collective::AllGather | Collective::Gather | Collective::AllToAll => {
            let mut rest = output;
            for part in parts {
                let (here, after) = rest.split_at_mut(part.len());
                here.copy_from_slice(part);
                rest = after;
            }
        }
        Collective::Broadcast | Collective::Scatter => {
            output.copy_from_slice(&parts[round.root.unwrap_or(0)]);
        }
        Collective::Send | Collective::Recv => output.copy_from_slice(&parts[0]),
        Collective::Barrier | Collective::Graph => {}
    }
}
