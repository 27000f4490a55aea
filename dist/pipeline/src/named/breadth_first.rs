//! Schedules that run all microbatches of a stage before the next stage.

use crate::{Action, Compute, Op, Shape};

fn stages(rank: usize, shape: Shape) -> impl DoubleEndedIterator<Item = usize> {
    (rank..shape.stages()).step_by(shape.ranks())
}

/// F0 F1 .. for each stage.
pub(crate) fn inference(rank: usize, shape: Shape) -> Vec<Action> {
    let forward = |stage| (0..shape.microbatches()).map(move |it| (stage, it));
    let pairs = stages(rank, shape).flat_map(forward);
    pairs.map(|(stage, it)| Compute::new(Op::Forward, stage, it).into()).collect()
}

/// All forward passes, then all backward passes in the same order of microbatches.
pub(crate) fn gpipe(rank: usize, shape: Shape) -> Vec<Action> {
    let mut actions = inference(rank, shape);
    let backward = |it| Action::from(Compute::new(Op::Backward, rank, it));
    actions.extend((0..shape.microbatches()).map(backward));
    actions
}

/// All forward passes, then all backward passes in the reverse order.
pub(crate) fn looped_bfs(rank: usize, shape: Shape) -> Vec<Action> {
    let mut actions = inference(rank, shape);
    for stage in stages(rank, shape).rev() {
        let backward = |it| Action::from(Compute::new(Op::Backward, stage, it));
        actions.extend((0..shape.microbatches()).rev().map(backward));
    }
    actions
}
