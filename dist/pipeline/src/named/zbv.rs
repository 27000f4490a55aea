//! ZBV: two stages per rank in a V, and a split backward pass. With F = I = W it has no idle time
//! between the first and the last microbatch, and the peak memory of 1F1B.

use super::counted::Counted;
use crate::{Action, Op, Shape};

const F: Op = Op::Forward;
const I: Op = Op::BackwardInput;
const W: Op = Op::BackwardWeight;

/// The list for at least 2 p - 1 microbatches, without those that the shape does not have.
pub(crate) fn zbv(rank: usize, shape: Shape) -> Vec<Action> {
    let (ranks, microbatches) = (shape.ranks(), shape.microbatches());
    let to_turn = ranks - rank;
    let simulated = microbatches.max(2 * ranks - 1);
    let mut list = Counted::new(rank, ranks);

    // Until the first microbatch is back from the turn of the V.
    (0..2 * to_turn - 1).for_each(|_| list.push(F, 0));
    (0..rank).for_each(|_| [1, 0].into_iter().for_each(|leg| list.push(F, leg)));
    (0..to_turn).for_each(|_| [F, I, W].into_iter().for_each(|op| list.push(op, 1)));

    while list.count(F, 1) < simulated {
        if list.count(F, 0) < simulated {
            list.push(F, 0);
        }
        list.push(I, 0);
        list.push(W, 0);
        [F, I, W].into_iter().for_each(|op| list.push(op, 1));
    }

    // Input gradients first, because other ranks wait for them.
    (0..rank).for_each(|_| [0, 1].into_iter().for_each(|leg| list.push(I, leg)));
    (0..to_turn).for_each(|_| [I, W].into_iter().for_each(|op| list.push(op, 0)));
    for leg in [1, 0] {
        while list.count(W, leg) < simulated {
            list.push(W, leg);
        }
    }

    let exists = |action: &Action| action.computes().all(|it| it.microbatch < microbatches);
    list.actions.retain(exists);
    list.actions
}
