//! The axis-by-axis plan, which bounds the traffic of a search.
//!
//! It is the default plan of torch's DTensor. From the innermost axis outwards, an axis moves to
//! its target placement if the dim's outer shards already match the target; otherwise it is
//! replicated. Then, from the outermost axis inwards, all remaining axes move to their targets.
//! Adjacent all_reduces are merged.

use crate::Action;
use crate::placements::{Geometry, Placements};
use crate::redistribution::moves::{self, Move};

pub(crate) fn plan(geometry: Geometry, from: &Placements, to: &Placements) -> Vec<Move> {
    let mut walk = Walk { geometry, to, state: from.clone(), moves: Vec::new() };
    let axes = geometry.axis_sizes.len();
    if !from.shards().is_empty() {
        for axis in from.order(axes).into_iter().rev() {
            match walk.is_aligned(axis) {
                true => walk.settle(axis),
                false => walk.replicate(axis),
            }
        }
    }
    for axis in to.order(axes) {
        walk.settle(axis);
    }
    for axis in 0..axes {
        let partial = moves::make_partial(&walk.state, axis, to, geometry);
        walk.apply(partial);
    }
    merged(from, walk.moves, geometry)
}

struct Walk<'a> {
    geometry: Geometry<'a>,
    to: &'a Placements,
    state: Placements,
    moves: Vec<Move>,
}

impl Walk<'_> {
    /// Whether the shards outside this axis' target shard already match the target.
    fn is_aligned(&self, axis: usize) -> bool {
        let Some(shard) = self.to.shard_on(axis) else {
            return true;
        };
        let outside = match self.state.shard_on(axis) {
            Some(now) if now.dim == shard.dim => self.state.outer_shards(axis),
            _ => self.state.shards_of(shard.dim),
        };
        outside == self.to.outer_shards(axis)
    }

    fn settle(&mut self, axis: usize) {
        match self.to.shard_on(axis) {
            Some(shard) if self.state.shard_on(axis) == Some(shard) => {}
            Some(shard) => self.apply(moves::make_shard(&self.state, shard, self.geometry)),
            None if self.to.reduction(axis) == self.state.reduction(axis) => self.gather(axis),
            None => self.replicate(axis),
        }
    }

    fn replicate(&mut self, axis: usize) {
        self.gather(axis);
        if self.state.reduction(axis).is_some() {
            let reduced = moves::all_reduce(&self.state, &[axis], self.geometry);
            self.apply(Some(reduced));
        }
    }

    fn gather(&mut self, axis: usize) {
        if self.state.shard_on(axis).is_some() {
            let gathered = moves::all_gather(&self.state, axis);
            self.apply(Some(gathered));
        }
    }

    fn apply(&mut self, step: Option<Move>) {
        if let Some(step) = step {
            self.state = step.to.clone();
            self.moves.push(step);
        }
    }
}

fn merged(from: &Placements, moves: Vec<Move>, geometry: Geometry) -> Vec<Move> {
    let mut merged: Vec<Move> = Vec::with_capacity(moves.len());
    for step in moves {
        let reduces = |step: &Move| matches!(step.action, Action::AllReduce(_));
        if let Some(last) = merged.pop_if(|last| reduces(last) && reduces(&step)) {
            let mut axes = last.axes;
            axes.extend(step.axes);
            axes.sort_unstable();
            let before = merged.last().map_or(from, |step| &step.to);
            merged.push(moves::all_reduce(before, &axes, geometry));
        } else {
            merged.push(step);
        }
    }
    merged
}
