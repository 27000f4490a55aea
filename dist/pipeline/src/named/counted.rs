//! A list in which every stage runs its microbatches in order.

use crate::{Action, Compute, Op, Shape};

/// The list of a rank with two stages in a V.
pub(crate) struct Counted {
    stages: [usize; 2],
    microbatches: usize,
    next: [[usize; Op::ALL.len()]; 2],
    pub(crate) actions: Vec<Action>,
}

impl Counted {
    pub(crate) fn new(rank: usize, shape: Shape) -> Counted {
        Counted {
            stages: [rank, 2 * shape.ranks() - 1 - rank],
            microbatches: shape.microbatches(),
            next: Default::default(),
            actions: Vec::new(),
        }
    }

    /// How often `op` of the first (0) or second (1) stage ran.
    pub(crate) fn count(&self, op: Op, leg: usize) -> usize {
        self.next[leg][op as usize]
    }

    /// The next microbatch of `op`, which becomes part of an action.
    pub(crate) fn take(&mut self, op: Op, leg: usize) -> Compute {
        let microbatch = self.count(op, leg);
        self.next[leg][op as usize] += 1;
        Compute::new(op, self.stages[leg], microbatch)
    }

    /// Appends the next microbatch of `op`. One that the shape does not have is only counted.
    pub(crate) fn push(&mut self, op: Op, leg: usize) {
        let compute = self.take(op, leg);
        if compute.microbatch < self.microbatches {
            self.actions.push(compute.into());
        }
    }

    /// Appends a pattern several times.
    pub(crate) fn repeat(&mut self, times: usize, pattern: &[(Op, usize)]) {
        for _ in 0..times {
            for &(op, leg) in pattern {
                self.push(op, leg);
            }
        }
    }
}
