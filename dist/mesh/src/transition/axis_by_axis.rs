//! The plan that goes axis by axis: a bound that a search must not exceed.
//!
//! This is how torch's DTensor redistributes. From the innermost axis outwards, what is not aligned
//! (its dim is to be cut by other axes before) is replicated, the rest goes straight to its target;
//! then, from the outermost axis inwards, what is left to do. Neighbouring all_reduces are one.

use crate::Action;
use crate::arrangement::{Arrangement, Frame};
use crate::transition::moves::{self, Move};

pub(crate) fn plan(frame: Frame, from: &Arrangement, to: &Arrangement) -> Vec<Move> {
    let mut walk = Walk {
        frame,
        to,
        state: from.clone(),
        moves: Vec::new(),
    };
    let axes = frame.sizes.len();
    if !from.cuts().is_empty() {
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
        let partial = moves::make_partial(&walk.state, axis, to, frame);
        walk.moves_on(partial);
    }
    merged(from, walk.moves, frame)
}

struct Walk<'a> {
    frame: Frame<'a>,
    to: &'a Arrangement,
    state: Arrangement,
    moves: Vec<Move>,
}

impl Walk<'_> {
    /// Whether the cuts outside of what this axis shall cut are there, and no others.
    fn is_aligned(&self, axis: usize) -> bool {
        let Some(cut) = self.to.cut_by(axis) else {
            return true;
        };
        let outside = match self.state.cut_by(axis) {
            Some(now) if now.dim == cut.dim => self.state.outside_of(axis),
            _ => self.state.cuts_of(cut.dim),
        };
        outside == self.to.outside_of(axis)
    }

    fn settle(&mut self, axis: usize) {
        match self.to.cut_by(axis) {
            Some(cut) if self.state.cut_by(axis) == Some(cut) => {}
            Some(cut) => self.moves_on(moves::make_cut(&self.state, cut, self.frame)),
            None if self.to.reduction(axis) == self.state.reduction(axis) => self.gather(axis),
            None => self.replicate(axis),
        }
    }

    fn replicate(&mut self, axis: usize) {
        self.gather(axis);
        if self.state.reduction(axis).is_some() {
            let reduced = moves::all_reduce(&self.state, &[axis], self.frame);
            self.moves_on(Some(reduced));
        }
    }

    fn gather(&mut self, axis: usize) {
        if self.state.cut_by(axis).is_some() {
            let gathered = moves::all_gather(&self.state, axis);
            self.moves_on(Some(gathered));
        }
    }

    fn moves_on(&mut self, step: Option<Move>) {
        if let Some(step) = step {
            self.state = step.to.clone();
            self.moves.push(step);
        }
    }
}

fn merged(from: &Arrangement, moves: Vec<Move>, frame: Frame) -> Vec<Move> {
    let mut merged: Vec<Move> = Vec::with_capacity(moves.len());
    for step in moves {
        let reduces = |step: &Move| matches!(step.action, Action::AllReduce(_));
        if let Some(last) = merged.pop_if(|last| reduces(last) && reduces(&step)) {
            let mut axes = last.axes;
            axes.extend(step.axes);
            axes.sort_unstable();
            let before = merged.last().map_or(from, |step| &step.to);
            merged.push(moves::all_reduce(before, &axes, frame));
        } else {
            merged.push(step);
        }
    }
    merged
}
