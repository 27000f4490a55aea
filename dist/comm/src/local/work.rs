//! Which elements a collective copies and reduces.

use std::ops::Range;

use meshgrad_collectives::{Collective, Counts, Fingerprint};

use super::part::Move;
use crate::contribution::Arrival;

/// The elements that a collective reduces, from 0 on, and the members that get each range.
pub(super) fn reductions(call: &Fingerprint, members: usize) -> Vec<(Range<usize>, Range<usize>)> {
    if call.collective != Collective::ReduceScatter {
        return vec![(0..call.counts.of(0), 0..members)];
    }
    let mut start = 0;
    let of_member = |member| {
        let range = start..start + call.counts.of(member);
        start = range.end;
        (range, member..member + 1)
    };
    (0..members).map(of_member).collect()
}

/// What a collective copies, in the order of receivers and of their outputs.
pub(super) fn moves(arrivals: &[Arrival]) -> Vec<Move> {
    let counts = arrivals.iter().map(|one| &one.ticket.request.fingerprint.counts);
    let counts: Vec<&Counts> = counts.collect();
    let call = &arrivals[0].ticket.request.fingerprint;
    let (members, common) = (counts.len(), &call.counts);
    let root = call.root.unwrap_or(0);
    match call.collective {
        Collective::AllGather | Collective::Gather => {
            let counts: Vec<usize> = (0..members).map(|sender| common.of(sender)).collect();
            let to = |receiver| to_one(receiver, counts.iter().map(|count| 0..*count));
            (0..members).flat_map(to).collect()
        }
        Collective::AllToAll => {
            let block = |counts: &&Counts, receiver| {
                let start = counts.before(receiver);
                start..start + counts.of(receiver)
            };
            let to = |receiver| to_one(receiver, counts.iter().map(move |of| block(of, receiver)));
            (0..members).flat_map(to).collect()
        }
        Collective::Broadcast => {
            let to = |receiver| one(root, 0..common.of(0), receiver);
            (0..members).map(to).collect()
        }
        Collective::Scatter => {
            let mut start = 0;
            let to = |receiver| {
                let from = start..start + common.of(receiver);
                start = from.end;
                one(root, from, receiver)
            };
            (0..members).map(to).collect()
        }
        Collective::Send | Collective::Recv => vec![one(0, 0..common.of(0), 1)],
        // Reductions move nothing else.
        Collective::AllReduce | Collective::Reduce | Collective::ReduceScatter => Vec::new(),
        Collective::Barrier | Collective::Graph => Vec::new(),
    }
}

fn one(sender: usize, from: Range<usize>, receiver: usize) -> Move {
    Move { sender, from, receiver, at: 0 }
}

/// Copies from each member to one, one after another: these elements of each.
fn to_one(receiver: usize, from: impl Iterator<Item = Range<usize>>) -> Vec<Move> {
    let mut at = 0;
    let copy = |(sender, from): (usize, Range<usize>)| {
        let start = at;
        at += from.len();
        Move { sender, from, receiver, at: start }
    };
    from.enumerate().map(copy).collect()
}
