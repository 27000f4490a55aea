//! A list in which every stage runs its microbatches in order.

use crate::{Action, Compute, Op};

/// The list of a rank with two stages in a V.
pub(crate) struct Counted {
    stages: [usize; 2],
    next: [[usize; Op::ALL.len()]; 2],
    pub(crate) actions: Vec<Action>,
}

impl Counted {
    pub(crate) fn new(rank: usize, ranks: usize) -> Counted {
        Counted {
            stages: [rank, 2 * ranks - 1 - rank],
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

    /// Appends the next microbatch of `op`.
    pub(crate) fn push(&mut self, op: Op, leg: usize) {
        let compute = self.take(op, leg);
        self.actions.push(compute.into());
    }
}
