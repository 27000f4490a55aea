//! The search for the fastest plan within a bound on its traffic.
//!
//! Dijkstra's algorithm on the modeled time, with the bytes sent as a second criterion: a state is
//! visited again if it is reached later but with fewer bytes, because the fastest path may exhaust
//! the bound. The result is the fastest plan that sends no more than the axis-by-axis plan; it is
//! never slower than that plan.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::Action;
use crate::placements::{Geometry, Placements};
use crate::redistribution::axis_by_axis;
use crate::redistribution::cost::CostModel;
use crate::redistribution::moves::{Move, Moves};

/// The most axes that a search moves. With more axes there are too many states, and the plan is the
/// axis-by-axis plan.
const MAX_AXES: usize = 4;

/// The number of regions examined after which a search returns the best plan found so far.
const MAX_EFFORT: u64 = 1 << 20;

pub(crate) fn plan(
    geometry: Geometry,
    from: &Placements,
    to: &Placements,
    model: &mut CostModel,
) -> Vec<Move> {
    let bound = axis_by_axis::plan(geometry, from, to);
    let moves = Moves::new(geometry, from, to);
    if moves.axes() > MAX_AXES {
        return merge_slices(bound);
    }
    let limit = cost_of(from, &bound, model);
    let found = search(from, to, &moves, limit, model);
    merge_slices(found.unwrap_or(bound))
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
        if state == *to || model.effort() > MAX_EFFORT {
            break;
        }
        for step in moves.from(&state) {
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
