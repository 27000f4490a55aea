//! ZBV: two stages per rank in a V, and a split backward pass. With F = I = W, a rank never waits
//! between its first and its last computation. The peak memory is that of 1F1B.

use super::counted::Counted;
use crate::{Action, Op, Shape};

const F: Op = Op::Forward;
const I: Op = Op::BackwardInput;
const W: Op = Op::BackwardWeight;

/// The list for at least 2 p - 1 microbatches, without those that the shape does not have.
pub(crate) fn zbv(rank: usize, shape: Shape) -> Vec<Action> {
    let to_turn = shape.ranks() - rank;
    let padded = shape.microbatches().max(2 * shape.ranks() - 1);
    let mut list = Counted::new(rank, shape);

    // Until the first microbatch is back from the turn of the V.
    list.repeat(2 * to_turn - 1, &[(F, 0)]);
    list.repeat(rank, &[(F, 1), (F, 0)]);
    list.repeat(to_turn, &[(F, 1), (I, 1), (W, 1)]);

    while list.count(F, 1) < padded {
        if list.count(F, 0) < padded {
            list.push(F, 0);
        }
        list.repeat(1, &[(I, 0), (W, 0), (F, 1), (I, 1), (W, 1)]);
    }

    // Input gradients first, because other ranks wait for them.
    list.repeat(rank, &[(I, 0), (I, 1)]);
    list.repeat(to_turn, &[(I, 0), (W, 0)]);
    for leg in [1, 0] {
        while list.count(W, leg) < padded {
            list.push(W, leg);
        }
    }
    list.actions
}
