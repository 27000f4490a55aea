//! Which elements of one member another one needs.

use std::ops::Range;

use meshgrad_collectives::{Collective, Counts, Fingerprint};

/// The elements of member `from` that member `to` needs.
pub(crate) fn sent(call: &Fingerprint, from: usize, to: usize) -> Range<usize> {
    let counts = &call.counts;
    let whole = 0..counts.of(from);
    let shard = || counts.before(to)..counts.before(to) + counts.of(to);
    let is_root = |index| call.root == Some(index);
    match call.collective {
        Collective::AllReduce | Collective::AllGather | Collective::Send => whole,
        Collective::ReduceScatter | Collective::AllToAll => shard(),
        Collective::Reduce | Collective::Gather if is_root(to) => whole,
        Collective::Broadcast if is_root(from) => whole,
        Collective::Scatter if is_root(from) => shard(),
        _ => 0..0,
    }
}

/// The number of elements that member `me` gets from member `from`.
pub(crate) fn received(call: &Fingerprint, from: usize, me: usize) -> usize {
    match (&call.counts, call.collective) {
        (Counts::Pairwise { recv, .. }, _) => recv[from],
        (_, Collective::Recv) => call.counts.of(from),
        _ => sent(call, from, me).len(),
    }
}
