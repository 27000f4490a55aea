//! The plans of torch's planners, and their traffic.

use meshgrad_mesh::{LinkCosts, Mesh, Placement, Reduction, Sharding};

use crate::redistributions::NAMES;

/// One step: an axis, and its placements before and after.
type Change<'a> = (usize, &'a str, &'a str);

/// A golden line: `S0 R -> R S0: 0 S0 R, 1 R S0`.
pub(crate) struct TorchPlan<'a> {
    pub(crate) from: Vec<&'a str>,
    pub(crate) to: Vec<&'a str>,
    changes: Vec<Change<'a>>,
}

pub(crate) fn plans() -> Vec<TorchPlan<'static>> {
    include_str!("../../golden/torch-steps.txt").lines().map(TorchPlan::parse).collect()
}

/// The plans of torch's graph planner, which it uses when axes shard a dim in an order other than
/// the mesh's: `16x16 on 2x2: s0 s0 -> S0 R: 1 S0 R, 0 S0 R, 0 R S0` (shape and mesh sizes first).
pub(crate) fn ordered_plans() -> Vec<(Vec<usize>, Vec<usize>, TorchPlan<'static>)> {
    let parse = |line: &'static str| {
        let (head, plan) = line.split_once(": ").unwrap();
        let (shape, sizes) = head.split_once(" on ").unwrap();
        (numbers(sizes), numbers(shape), TorchPlan::parse(plan))
    };
    include_str!("../../golden/torch-ordered-steps.txt").lines().map(parse).collect()
}

fn numbers(text: &str) -> Vec<usize> {
    text.split('x').map(|number| number.parse().unwrap()).collect()
}

impl<'a> TorchPlan<'a> {
    fn parse(line: &'a str) -> TorchPlan<'a> {
        let (ends, changes) = line.split_once(':').unwrap();
        let (from, to) = ends.split_once(" -> ").unwrap();
        let change = |text: &'a str| {
            let mut words = text.split(' ');
            let mut word = || words.next().unwrap();
            (word().parse().unwrap(), word(), word())
        };
        let changes = changes.trim();
        TorchPlan {
            from: from.split(' ').collect(),
            to: to.split(' ').collect(),
            changes: match changes.is_empty() {
                true => Vec::new(),
                false => changes.split(", ").map(change).collect(),
            },
        }
    }

    /// The cost of ring collectives on f32 within one host. Shards are padded to the largest, as in
    /// torch. With `merged`, torch merges steps, which requires that the user has created all
    /// flattened meshes.
    pub(crate) fn cost(&self, mesh: &Mesh, shape: &[usize], merged: bool) -> Cost {
        let mut placements = self.from.clone();
        let mut cost = Cost::default();
        let mut rest = &self.changes[..];
        while let Some(first) = rest.first() {
            let before = largest(mesh, &placements, shape);
            let len = match merged {
                true => adjacent(mesh, rest, &before),
                false => 1,
            };
            let (together, later) = rest.split_at(len);
            for change in together {
                placements[change.0] = change.2;
            }
            let after = largest(mesh, &placements, shape);
            cost.add(first, ranks(mesh, together), &before, &after);
            rest = later;
        }
        cost
    }
}

/// The cost of a plan: the bytes of the busiest rank, and the modeled time.
#[derive(Default)]
pub(crate) struct Cost {
    pub(crate) bytes: u64,
    pub(crate) ns: u64,
}

impl Cost {
    fn add(&mut self, change: &Change, ranks: u64, before: &[usize], after: &[usize]) {
        let size = |shape: &[usize]| 4 * shape.iter().product::<usize>() as u64;
        let others = ranks - 1;
        let (bytes, hops) = match (change.1.chars().next(), change.2.chars().next()) {
            (Some('S'), Some('R')) => (others * size(before), others),
            (Some('S'), Some('S')) => {
                let mut shard = before.to_vec();
                let dim = dim(change.2);
                shard[dim] = shard[dim].div_ceil(ranks as usize);
                (others * size(&shard), others)
            }
            (Some('P' | 'A'), Some('R')) => {
                ((2 * others * size(before)).div_ceil(ranks), 2 * others)
            }
            (Some('P' | 'A'), Some('S')) => (others * size(after), others),
            _ => return,
        };
        let links = LinkCosts::default();
        self.bytes += bytes;
        self.ns += links.launch_ns + hops * links.within.latency_ns;
        self.ns += (bytes * links.within.ns_per_mib) >> 20;
    }
}

fn ranks(mesh: &Mesh, changes: &[Change]) -> u64 {
    changes.iter().map(|change| mesh.shape()[change.0] as u64).product()
}

/// The number of steps, from the first, that torch merges: adjacent ones with the same action,
/// where sum and mean count as the same. A reduce_scatter is merged only if its dim divides evenly.
fn adjacent(mesh: &Mesh, changes: &[Change], before: &[usize]) -> usize {
    let first = &changes[0];
    let same = changes.iter().take_while(|next| merges(first, next)).count();
    let scatters = is_partial(first.1) && first.2.starts_with('S');
    let divides = |len: usize| {
        let ranks = ranks(mesh, &changes[..len]);
        (before[dim(first.2)] as u64).is_multiple_of(ranks)
    };
    match same {
        0 => 1,
        _ if scatters && !divides(same) => 1,
        _ => same,
    }
}

/// torch merges neither all_to_alls nor local steps.
fn merges(first: &Change, next: &Change) -> bool {
    let collective = first.1 != "R" && (is_partial(first.1) || first.2 == "R");
    let same = first.1 == next.1 || is_partial(first.1) && is_partial(next.1);
    collective && same && first.2 == next.2
}

fn is_partial(name: &str) -> bool {
    name == "P" || name == "A"
}

fn dim(name: &str) -> usize {
    name[1..].parse().unwrap()
}

/// The largest local shape, whatever the order of the axes that shard a dim.
fn largest(mesh: &Mesh, placements: &[&str], shape: &[usize]) -> Vec<usize> {
    let mut largest = shape.to_vec();
    for (name, ranks) in placements.iter().zip(mesh.shape()) {
        if name.starts_with(['S', 's']) {
            let dim = dim(name);
            largest[dim] = largest[dim].div_ceil(ranks);
        }
    }
    largest
}

/// Lower-case names mean that the last axis is the outermost.
pub(crate) fn sharding(mesh: &Mesh, names: &[&str], shape: &[usize]) -> Sharding {
    let placement = |name: &&str| match *name {
        "R" => Placement::Replicate,
        "P" => Placement::Partial(Reduction::Sum),
        "A" => Placement::Partial(Reduction::Avg),
        name => Placement::shard(dim(name)),
    };
    let mut placements: Vec<_> = NAMES.iter().zip(names.iter().map(placement)).collect();
    if names[0].starts_with('s') {
        placements.reverse();
    }
    Sharding::new(mesh, placements, shape).unwrap()
}
