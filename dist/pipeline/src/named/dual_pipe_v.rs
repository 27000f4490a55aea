//! DualPipeV: two stages per rank in a V. A forward pass runs at the same time as a backward pass of
//! the other stage, so that the communication within one hides behind the computation of the other.

use std::collections::VecDeque;

use super::counted::Counted;
use crate::{Action, Compute, Op, Shape};

/// The list for at least 2 p microbatches.
pub(crate) fn dual_pipe_v(rank: usize, shape: Shape) -> Vec<Action> {
    let (ranks, microbatches) = (shape.ranks(), shape.microbatches());
    let hops = ranks - 1 - rank;
    let mut list = List::new(rank, shape);

    list.counted.repeat(2 * hops, &[(Op::Forward, 0)]);
    list.counted.repeat(rank + 1, &[(Op::Forward, 0), (Op::Forward, 1)]);
    for _ in 0..hops {
        list.input(1);
        list.weight();
        list.forward(1);
    }

    for step in 0..microbatches + rank + 1 - 2 * ranks {
        // The last rank has just run the forward pass that this backward pass needs.
        if step == 0 && hops == 0 {
            list.forward(0);
            list.backward(1);
        } else {
            list.pair(0, 1);
        }
        list.pair(1, 0);
    }

    for _ in 0..hops {
        list.backward(1);
        list.pair(1, 0);
    }
    // The second half of the rest is split; its weight gradients fill the last steps.
    for pass in 0..2 * (rank + 1) {
        let leg = 1 - pass % 2;
        match pass > rank {
            true => list.input(leg),
            false => list.backward(leg),
        }
    }
    for _ in 0..hops {
        list.weight();
        list.input(0);
    }
    for _ in 0..=rank {
        list.weight();
    }
    list.counted.actions
}

/// A list, and the weight gradients that are still to be computed, oldest first.
struct List {
    counted: Counted,
    weights: VecDeque<Compute>,
}

impl List {
    fn new(rank: usize, shape: Shape) -> List {
        List { counted: Counted::new(rank, shape), weights: VecDeque::new() }
    }

    fn forward(&mut self, leg: usize) {
        self.counted.push(Op::Forward, leg);
    }

    fn backward(&mut self, leg: usize) {
        let backward = self.next_backward(Op::Backward, leg);
        self.counted.actions.push(backward.into());
    }

    fn pair(&mut self, forward_leg: usize, backward_leg: usize) {
        let forward = self.counted.take(Op::Forward, forward_leg);
        let backward = self.next_backward(Op::Backward, backward_leg);
        self.counted.actions.push(Action::Overlapped(forward, backward));
    }

    fn input(&mut self, leg: usize) {
        let input = self.next_backward(Op::BackwardInput, leg);
        self.counted.actions.push(input.into());
        self.weights.push_back(Compute { op: Op::BackwardWeight, ..input });
    }

    fn weight(&mut self) {
        let weight = self.weights.pop_front().map(Action::from);
        self.counted.actions.extend(weight);
    }

    /// Whole and split backward passes share one count.
    fn next_backward(&mut self, op: Op, leg: usize) -> Compute {
        let compute = self.counted.take(Op::Backward, leg);
        Compute { op, ..compute }
    }
}
