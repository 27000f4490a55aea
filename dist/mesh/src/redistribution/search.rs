//! The search for the fastest plan within a bound on its traffic.
//!
//! Dijkstra's algorithm on the modeled time, with the bytes sent as a second criterion: a state is
//! visited again if it is reached later but with fewer bytes, because the fastest path may exhaust
//! the bound. The result is the fastest plan that sends no more than the axis-by-axis plan; it is
//! never slower than that plan.
//!
//! With many axes there are too many states. Then the moves are only those that lead to the target
//! directly, and every part of the path found in which few axes move is searched again with all
//! moves.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::Action;
use crate::placements::{Geometry, Placements};
use crate::redistribution::axis_by_axis;
use crate::redistribution::cost::CostModel;
use crate::redistribution::moves::{Move, Moves, Scope};

/// The most axes that a search with all moves takes.
const MAX_AXES: usize = 4;

/// The number of regions examined after which a search returns the best plan found so far.
const MAX_EFFORT: u64 = 1 << 20;

/// The regions examined by the search with direct moves, and with those of the refinement, if more
/// than [`MAX_AXES`] axes move.
const MANY_AXES_EFFORT: [u64; 2] = [1 << 16, 1 << 17];

pub(crate) fn plan(
    geometry: Geometry,
    from: &Placements,
    to: &Placements,
    model: &mut CostModel,
) -> Vec<Move> {
    let bound = axis_by_axis::plan(geometry, from, to);
    let limit = cost_of(from, &bound, model);
    let moves = Moves::new(geometry, from, to, Scope::All);
    if moves.axes() <= MAX_AXES {
        let found = search(from, to, &moves, limit, MAX_EFFORT, model);
        return merge_slices(found.unwrap_or(bound));
    }
    let moves = Moves::new(geometry, from, to, Scope::Direct);
    let [direct, refined] = MANY_AXES_EFFORT;
    let mut plan = search(from, to, &moves, limit, direct, model).unwrap_or(bound);
    while let Some(better) = refine(geometry, from, &plan, refined, model) {
        plan = better;
    }
    merge_slices(plan)
}

/// A plan that is cheaper in the first part, the longest ones first, for which there is one. `None`
/// if there is none, or when `effort` regions have been examined.
fn refine(
    geometry: Geometry,
    from: &Placements,
    plan: &[Move],
    effort: u64,
    model: &mut CostModel,
) -> Option<Vec<Move>> {
    let lengths = (1..=plan.len()).rev();
    let parts = lengths.flat_map(|length| (0..=plan.len() - length).map(move |at| (at, length)));
    for (at, length) in parts {
        let (before, rest) = plan.split_at(at);
        let (part, after) = rest.split_at(length);
        let (Some(to), true) = (part.last(), model.effort() < effort) else {
            return None;
        };
        let from = before.last().map_or(from, |step| &step.to);
        let moves = Moves::new(geometry, from, &to.to, Scope::All);
        if moves.axes() > MAX_AXES {
            continue;
        }
        let limit = cost_of(from, part, model);
        if limit.ns == 0 {
            continue;
        }
        if let Some(better) = search(from, &to.to, &moves, limit, effort, model)
            && cost_of(from, &better, model) < limit
        {
            return Some([before, &better, after].concat());
        }
    }
    None
}

/// The cost of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
struct Cost {
    ns: u64,
    bytes: u64,
    steps: usize,
}

impl Cost {
    fn with(self, from: &Placements, step: &Move, model: &mut CostModel) -> Cost {
        let (traffic, ns) = model.cost(from, step);
        Cost {
            ns: self.ns.saturating_add(ns),
            bytes: self.bytes.saturating_add(traffic.bytes()),
            steps: self.steps + 1,
        }
    }
}

fn cost_of(from: &Placements, moves: &[Move], model: &mut CostModel) -> Cost {
    let mut cost = Cost::default();
    let mut state = from;
    for step in moves {
        cost = cost.with(state, step, model);
        state = &step.to;
    }
    cost
}

fn search(
    from: &Placements,
    to: &Placements,
    moves: &Moves,
    mut limit: Cost,
    effort: u64,
    model: &mut CostModel,
) -> Option<Vec<Move>> {
    let mut tree = Tree::default();
    let mut open = BinaryHeap::from([Reverse((Cost::default(), None))]);
    let mut fewest: HashMap<Placements, u64> = HashMap::new();
    let mut best = None;

    while let Some(Reverse((cost, at))) = open.pop() {
        let state = at.map_or(from, |at| tree.reached(at)).clone();
        if fewest.get(&state).is_some_and(|bytes| *bytes <= cost.bytes) {
            continue;
        }
        if state == *to || model.effort() > effort {
            break;
        }
        for step in moves.from(&state) {
            if model.effort() > effort {
                break;
            }
            if cost.ns.saturating_add(model.latency(&step)) > limit.ns {
                continue;
            }
            let next = cost.with(&state, &step, model);
            if next.ns > limit.ns || next.bytes > limit.bytes {
                continue;
            }
            let arrives = step.to == *to;
            let node = tree.add(at, step);
            if arrives && best.is_none_or(|(cost, _)| next < cost) {
                limit.ns = next.ns;
                best = Some((next, node));
            }
            open.push(Reverse((next, Some(node))));
        }
        fewest.insert(state, cost.bytes);
    }
    best.map(|(_, at)| tree.path_to(at))
}

/// Moves, each with its predecessor.
#[derive(Default)]
struct Tree {
    nodes: Vec<(Option<usize>, Move)>,
}

impl Tree {
    fn add(&mut self, before: Option<usize>, step: Move) -> usize {
        self.nodes.push((before, step));
        self.nodes.len() - 1
    }

    fn reached(&self, at: usize) -> &Placements {
        &self.nodes[at].1.to
    }

    fn path_to(&self, at: usize) -> Vec<Move> {
        let before = |at: &usize| self.nodes[*at].0;
        let backwards = std::iter::successors(Some(at), before);
        let mut path: Vec<Move> = backwards.map(|at| self.nodes[at].1.clone()).collect();
        path.reverse();
        path
    }
}

/// Merges adjacent slices.
fn merge_slices(moves: Vec<Move>) -> Vec<Move> {
    let mut merged: Vec<Move> = Vec::with_capacity(moves.len());
    for step in moves {
        match merged.last_mut() {
            Some(last) if last.action == step.action && step.action == Action::Slice => {
                last.axes.extend(step.axes);
                last.to = step.to;
            }
            _ => merged.push(step),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Hosts, LinkCosts, Mesh, Placement, Reduction, Sharding};

    /// Numbers from 0 to below `bound`, from a linear congruential generator.
    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: usize) -> usize {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((self.0 >> 33) % bound as u64) as usize
        }

        fn sharding(&mut self, mesh: &Mesh, shape: &[usize]) -> Sharding {
            let mut placements = Vec::new();
            for axis in mesh.axes() {
                let placement = match self.below(6) {
                    0 => Placement::Replicate,
                    1 => Placement::Partial(Reduction::Sum),
                    kind => Placement::shard(kind % shape.len()),
                };
                let at = self.below(placements.len() + 1);
                placements.insert(at, (axis.name().to_owned(), placement));
            }
            Sharding::new(mesh, placements, shape).unwrap()
        }
    }

    /// Plans in which five and six axes move send no more and take no longer than axis by axis, and
    /// the work of planning is bounded.
    #[test]
    fn many_axes_are_planned_together() {
        let names = ["a", "b", "c", "d", "e", "f"];
        let mut random = Random(1);
        let (mut planned, mut faster, mut fewer) = (0, 0, 0);
        for sizes in [&[2; 5][..], &[2, 2, 3, 2, 2], &[2; 6], &[4, 2, 2, 1, 2, 8]] {
            let mesh = Mesh::new(sizes, &names[..sizes.len()]).unwrap();
            for shape in [&[96, 64, 5][..], &[4096, 1024]] {
                for _ in 0..8 {
                    let (from, to) = (random.sharding(&mesh, shape), random.sharding(&mesh, shape));
                    let hosts = Hosts::Uniform(8);
                    let links = LinkCosts::default();
                    let geometry = from.geometry();
                    let mut model = CostModel::new(geometry, &mesh, &hosts, &links, 32);
                    let (old, new) = (from.canonical(), to.canonical());
                    if Moves::new(geometry, old, new, Scope::All).axes() <= MAX_AXES {
                        continue;
                    }
                    let plan = plan(geometry, old, new, &mut model);
                    let effort = model.effort();
                    let ranks = mesh.len() as u64;
                    assert!(effort <= MANY_AXES_EFFORT[1] + 64 * ranks, "{from} to {to}: {effort}");
                    let bound = axis_by_axis::plan(geometry, old, new);
                    let [ours, theirs] = [plan, bound].map(|plan| {
                        assert_eq!(plan.last().map(|step| &step.to), Some(new));
                        cost_of(old, &plan, &mut model)
                    });
                    let what = format!("{from} to {to} of {shape:?}");
                    assert!(ours.ns <= theirs.ns && ours.bytes <= theirs.bytes, "{what}");
                    planned += 1;
                    faster += usize::from(ours.ns < theirs.ns);
                    fewer += usize::from(ours.bytes < theirs.bytes);
                }
            }
        }
        assert!(planned > 30, "{planned}");
        assert!(2 * faster > planned && 2 * fewer > planned, "{faster}, {fewer} of {planned}");
    }
}
