//! 1F1B: after a warm-up, each rank runs one forward and one backward pass in turn.
//!
//! With several stages per rank, microbatches are divided into rounds. A round runs through the
//! first stage of a rank, then through its second one, and so on. Rounds as in torch: as many as
//! whole multiples of the ranks, all of the same length.

use crate::{Action, Compute, Op, Shape};

/// Whether microbatches divide into rounds of one length.
pub(crate) fn is_whole_rounds(microbatches: usize, ranks: usize) -> bool {
    microbatches.is_multiple_of(rounds(microbatches, ranks))
}

fn rounds(microbatches: usize, ranks: usize) -> usize {
    (microbatches / ranks).max(1)
}

/// The last rank starts its first backward pass directly after its first forward pass.
pub(crate) fn one_f_one_b(rank: usize, shape: Shape) -> Vec<Action> {
    Order::new(rank, shape, 1).whole_backward()
}

/// Twice the warm-up of 1F1B, which a rank with several stages needs to stay busy.
pub(crate) fn interleaved(rank: usize, shape: Shape) -> Vec<Action> {
    Order::new(rank, shape, 2).whole_backward()
}

/// A split backward pass. Rank r delays its weight gradients by r steps: they fill the time in which
/// it would wait.
pub(crate) fn zero_bubble(rank: usize, shape: Shape) -> Vec<Action> {
    let order = Order::new(rank, shape, 1);
    let mut actions = Vec::new();
    order.warm_up(&mut actions);
    for step in 0..order.total {
        actions.extend(order.forward(order.warm_up + step));
        actions.extend(order.backward(Op::BackwardInput, step));
        let delayed = step.checked_sub(rank);
        actions.extend(delayed.and_then(|it| order.backward(Op::BackwardWeight, it)));
    }
    let rest = order.total.saturating_sub(rank)..order.total;
    actions.extend(rest.filter_map(|it| order.backward(Op::BackwardWeight, it)));
    actions
}

/// The order in which a rank runs its stages and microbatches, forward and backward.
struct Order {
    rank: usize,
    ranks: usize,
    chunks: usize,
    round: usize,
    total: usize,
    warm_up: usize,
}

impl Order {
    /// `per_hop`: the forward passes of the warm-up for each rank between this and the last.
    fn new(rank: usize, shape: Shape, per_hop: usize) -> Order {
        let (ranks, microbatches) = (shape.ranks(), shape.microbatches());
        let chunks = shape.stages() / ranks;
        let round = match chunks {
            1 => microbatches,
            _ => microbatches / rounds(microbatches, ranks),
        };
        let total = chunks * microbatches;
        let warm_up = (chunks - 1) * round + per_hop * (ranks - 1 - rank);
        Order { rank, ranks, chunks, round, total, warm_up: warm_up.min(total) }
    }

    fn whole_backward(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        self.warm_up(&mut actions);
        for step in 0..self.total {
            actions.extend(self.forward(self.warm_up + step));
            actions.extend(self.backward(Op::Backward, step));
        }
        actions
    }

    fn warm_up(&self, actions: &mut Vec<Action>) {
        actions.extend((0..self.warm_up).filter_map(|step| self.forward(step)));
    }

    /// The forward pass number `step` of this rank.
    fn forward(&self, step: usize) -> Option<Action> {
        let (chunk, microbatch) = self.position(step)?;
        Some(self.action(Op::Forward, chunk, microbatch))
    }

    /// The backward pass number `step` of this rank: the stages in reverse.
    fn backward(&self, op: Op, step: usize) -> Option<Action> {
        let (chunk, microbatch) = self.position(step)?;
        Some(self.action(op, self.chunks - 1 - chunk, microbatch))
    }

    fn action(&self, op: Op, chunk: usize, microbatch: usize) -> Action {
        Compute::new(op, chunk * self.ranks + self.rank, microbatch).into()
    }

    fn position(&self, step: usize) -> Option<(usize, usize)> {
        let (turn, within) = (step / self.round, step % self.round);
        let (round, chunk) = (turn / self.chunks, turn % self.chunks);
        (step < self.total).then_some((chunk, round * self.round + within))
    }
}
