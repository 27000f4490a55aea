//! How long transfers take: the cost model of rings, on links within and across hosts.
//!
//! Legend: n ranks.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use meshgrad_collectives::{Collective, Counts, Fingerprint};
use meshgrad_mesh::{Hosts, LinkCosts};

/// The links of a world.
pub(super) struct Links {
    costs: LinkCosts,
    hosts: Hosts,
    /// When each rank's link is free.
    free: Mutex<BTreeMap<usize, Duration>>,
}

impl Links {
    pub(super) fn new(costs: LinkCosts, hosts: Hosts) -> Links {
        Links { costs, hosts, free: Mutex::default() }
    }

    /// The time at which collectives that `ranks` start together at `now` have been transferred, as
    /// one message per peer. A rank's transfers run one after another. `calls` has the calls of
    /// each collective's members.
    pub(super) fn end(
        &self,
        now: Duration,
        ranks: &[usize],
        calls: &[Vec<Fingerprint>],
    ) -> Duration {
        if let [_] = ranks {
            return now;
        }
        let link = match self.hosts.spanned_by(ranks) {
            1 => self.costs.within,
            _ => self.costs.across,
        };
        let loads = calls.iter().map(|members| load(ranks.len(), members));
        let (hops, bytes) = loads.fold((0, 0), |(hops, bytes), load| {
            (load.hops.max(hops), load.bytes.saturating_add(bytes))
        });
        let carried = (u128::from(bytes) * u128::from(link.ns_per_mib)) >> 20;
        let carried = u64::try_from(carried).unwrap_or(u64::MAX);
        let latency = link.latency_ns.saturating_mul(hops);
        let nanos = self.costs.launch_ns.saturating_add(latency).saturating_add(carried);

        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let busy = ranks.iter().filter_map(|rank| free.get(rank).copied());
        let start = busy.fold(now, Duration::max);
        let end = start.saturating_add(Duration::from_nanos(nanos));
        free.extend(ranks.iter().map(|rank| (*rank, end)));
        end
    }
}

/// The hops of a ring, and the bytes that its busiest rank sends or receives.
struct Load {
    hops: u64,
    bytes: u64,
}

fn load(n: usize, members: &[Fingerprint]) -> Load {
    let call = &members[0];
    let bytes = |elements: usize| match call.dtype {
        Some(dtype) => dtype.bytes(elements) as u64,
        None => 0,
    };
    let others = n as u64 - 1;
    let largest = (0..n).map(|member| call.counts.of(member)).max();
    let largest = bytes(largest.unwrap_or(0));
    let (hops, bytes) = match call.collective {
        Collective::AllReduce => (2 * others, 2 * others * largest / n as u64),
        Collective::AllGather | Collective::ReduceScatter => (others, others * largest),
        Collective::AllToAll => {
            let sent = members.iter().map(|call| exchanged(n, &call.counts));
            (others, bytes(sent.max().unwrap_or(0)))
        }
        Collective::Gather | Collective::Scatter => (others, others * largest),
        Collective::Broadcast | Collective::Reduce => (others, largest),
        Collective::Send | Collective::Recv => (1, largest),
        Collective::Barrier | Collective::Graph => (2 * others, 0),
    };
    Load { hops, bytes }
}

/// The larger number of elements that a member of an all_to_all sends or receives.
fn exchanged(n: usize, counts: &Counts) -> usize {
    match counts {
        Counts::Pairwise { send, recv } => {
            let sum = |counts: &[usize]| counts.iter().sum::<usize>();
            sum(send).max(sum(recv))
        }
        even => (0..n - 1).map(|member| even.of(member)).sum(),
    }
}
