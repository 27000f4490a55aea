//! The cost model of collectives: rings with a few constants.
//!
//! A ring of n ranks has n - 1 hops, or 2 (n - 1) for an all_reduce. A step takes
//! `launch + hops x latency + bytes / bandwidth` on its slowest link. The model ranks plans; it
//! does not predict run times.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::placements::{Geometry, Placements};
use crate::redistribution::moves::Move;
use crate::{Action, Hosts, Mesh};

/// The cost of a link between two ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Link {
    /// Latency in nanoseconds.
    pub latency_ns: u64,
    /// Nanoseconds per MiB: 11,956 is 87.7 GB/s.
    pub ns_per_mib: u64,
}

/// The constants of the cost model of [`Redistribution::plan`](crate::Redistribution::plan). To
/// measure them, time an all_gather of two sizes within a host and across hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinkCosts {
    /// Nanoseconds to launch a collective.
    pub launch_ns: u64,
    /// Links within a host.
    pub within: Link,
    /// Links across hosts.
    pub across: Link,
}

/// The constants of torch 2.15 (`torch/distributed/tensor/_collective_utils.py`), for Ampere and
/// Hopper hosts: 6.6 us per launch; 0.6 us and 87.7 GB/s over NVLink; 2.7 us and 22 % of that
/// bandwidth across hosts.
impl Default for LinkCosts {
    fn default() -> LinkCosts {
        LinkCosts {
            launch_ns: 6_600,
            within: Link { latency_ns: 600, ns_per_mib: 11_956 },
            across: Link { latency_ns: 2_700, ns_per_mib: 54_347 },
        }
    }
}

/// The bytes of the busiest rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Traffic {
    /// The most bytes that a rank sends.
    pub sent: u64,
    /// The most bytes that a rank receives.
    pub received: u64,
}

impl Traffic {
    /// The larger of both: links are full duplex.
    pub fn bytes(self) -> u64 {
        self.sent.max(self.received)
    }
}

/// Estimates the cost of moves of one tensor.
pub(crate) struct CostModel<'a> {
    geometry: Geometry<'a>,
    mesh: &'a Mesh,
    hosts: &'a Hosts,
    links: &'a LinkCosts,
    element_bits: u64,
    /// Whether groups along these axes cross hosts.
    crossing: BTreeMap<SmallVec<[usize; 4]>, bool>,
    /// The number of regions examined.
    effort: u64,
}

impl<'a> CostModel<'a> {
    pub(crate) fn new(
        geometry: Geometry<'a>,
        mesh: &'a Mesh,
        hosts: &'a Hosts,
        links: &'a LinkCosts,
        element_bits: usize,
    ) -> CostModel<'a> {
        CostModel {
            geometry,
            mesh,
            hosts,
            links,
            element_bits: element_bits as u64,
            crossing: BTreeMap::new(),
            effort: 0,
        }
    }

    /// The number of regions examined: a measure of work that needs no clock.
    pub(crate) fn effort(&self) -> u64 {
        self.effort
    }

    /// The traffic of a move, and its time in nanoseconds.
    pub(crate) fn cost(&mut self, from: &Placements, step: &Move) -> (Traffic, u64) {
        let traffic = self.traffic(from, step);
        let link = self.link(step);
        let carried = (u128::from(traffic.bytes()) * u128::from(link.ns_per_mib)) >> 20;
        (traffic, self.latency(step).saturating_add(saturated(carried)))
    }

    /// The part of a move's time that does not depend on its bytes, in nanoseconds.
    pub(crate) fn latency(&mut self, step: &Move) -> u64 {
        let hops = match step.action {
            Action::Slice | Action::MakePartial(_) => return 0,
            Action::AllGather | Action::ReduceScatter(_) | Action::AllToAll => self.others(step),
            Action::AllReduce(_) => 2 * self.others(step),
        };
        let latency = self.link(step).latency_ns;
        self.links.launch_ns.saturating_add(hops.saturating_mul(latency))
    }

    fn traffic(&mut self, from: &Placements, step: &Move) -> Traffic {
        self.effort += 1;
        let others = self.others(step);
        match step.action {
            Action::Slice | Action::MakePartial(_) => Traffic::default(),
            Action::AllGather => self.ring(others, from.largest_len(self.geometry)),
            Action::ReduceScatter(_) => self.ring(others, step.to.largest_len(self.geometry)),
            Action::AllReduce(_) => {
                let bytes = u128::from(self.bytes(from.largest_len(self.geometry)));
                let each = (2 * u128::from(others) * bytes).div_ceil(u128::from(others) + 1);
                both_ways(saturated(each))
            }
            Action::AllToAll => self.exchange(from, &step.to),
        }
    }

    /// The group size minus one.
    fn others(&self, step: &Move) -> u64 {
        let sizes = step.axes.iter().map(|axis| self.geometry.axis_sizes[*axis]);
        sizes.product::<usize>() as u64 - 1
    }

    fn link(&mut self, step: &Move) -> Link {
        match self.crosses_hosts(&step.axes) {
            true => self.links.across,
            false => self.links.within,
        }
    }

    fn ring(&self, others: u64, elements: u64) -> Traffic {
        both_ways(self.bytes(elements).saturating_mul(others))
    }

    /// The size of some elements, rounded up to whole bytes.
    fn bytes(&self, elements: u64) -> u64 {
        saturated((u128::from(elements) * u128::from(self.element_bits)).div_ceil(8))
    }

    fn crosses_hosts(&mut self, axes: &[usize]) -> bool {
        let mut key: SmallVec<[usize; 4]> = axes.into();
        key.sort_unstable();
        let (mesh, hosts) = (self.mesh, self.hosts);
        let crosses = |axes: &SmallVec<[usize; 4]>| {
            let names: SmallVec<[&str; 4]> =
                axes.iter().map(|at| mesh.axes()[*at].name()).collect();
            let groups = mesh.groups(names.as_slice()).expect("axes of the mesh, each once");
            groups.iter().any(|group| hosts.spanned_by(group.ranks()) > 1)
        };
        *self.crossing.entry(key).or_insert_with_key(crosses)
    }

    /// The exact traffic of an all_to_all: all elements that a rank does not keep.
    fn exchange(&mut self, from: &Placements, to: &Placements) -> Traffic {
        let dims = 0..self.geometry.shape.len();
        let (changed, same): (Vec<usize>, Vec<usize>) =
            dims.partition(|dim| from.shards_of(*dim) != to.shards_of(*dim));
        let rest: u64 = same.iter().map(|dim| from.largest(*dim, self.geometry) as u64).product();

        let mut axes: SmallVec<[usize; 8]> = changed
            .iter()
            .flat_map(|dim| from.shards_of(*dim).iter().chain(to.shards_of(*dim)))
            .map(|shard| shard.axis)
            .collect();
        axes.sort_unstable();
        axes.dedup();

        let mut most = Traffic::default();
        let mut coordinate: SmallVec<[usize; 8]> =
            SmallVec::from_elem(0, self.geometry.axis_sizes.len());
        loop {
            self.effort += 1;
            let (mut before, mut after, mut kept) = (rest, rest, rest);
            for dim in &changed {
                let old = from.indices(*dim, &coordinate, self.geometry);
                let new = to.indices(*dim, &coordinate, self.geometry);
                before *= old.len() as u64;
                after *= new.len() as u64;
                kept *= old.intersection(&new).len() as u64;
            }
            most.sent = most.sent.max(before - kept);
            most.received = most.received.max(after - kept);
            if !advance(&mut coordinate, &axes, self.geometry.axis_sizes) {
                break;
            }
        }
        Traffic { sent: self.bytes(most.sent), received: self.bytes(most.received) }
    }
}

/// Advances to the next coordinate along some axes; false after the last.
fn advance(coordinate: &mut [usize], axes: &[usize], sizes: &[usize]) -> bool {
    for axis in axes {
        coordinate[*axis] += 1;
        if coordinate[*axis] < sizes[*axis] {
            return true;
        }
        coordinate[*axis] = 0;
    }
    false
}

fn both_ways(bytes: u64) -> Traffic {
    Traffic { sent: bytes, received: bytes }
}

fn saturated(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}
