//! The order of every rank's computations.

use meshgrad_error::{Result, ensure};

use crate::done::Done;
use crate::{Action, Placement};

/// The computations of every rank, in order, without communication.
///
/// Every stage runs every microbatch once: forward, and in training also backward, whole or split.
/// Whether the ranks wait for each other in a circle is found by [`lower`](Schedule::lower).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    placement: Placement,
    microbatches: usize,
    ranks: Vec<Vec<Action>>,
}

impl Schedule {
    /// A schedule of your own: one list of computations per rank.
    ///
    /// # Errors
    /// Names the rank and the action when an action is not a computation, is out of range, belongs
    /// to another rank, is repeated, comes too early or is missing.
    pub fn new(
        placement: Placement,
        microbatches: usize,
        ranks: Vec<Vec<Action>>,
    ) -> Result<Schedule> {
        let mut done = Done::new(&placement, microbatches, &ranks)?;
        for (rank, actions) in ranks.iter().enumerate() {
            for &action in actions {
                ensure!(
                    action.computes().next().is_some(),
                    Invalid,
                    "rank {rank}: {action} is not a computation; leave it out, lowering adds it"
                );
                done.compute(rank, action)?;
            }
        }
        done.check_complete()?;
        Ok(Schedule { placement, microbatches, ranks })
    }

    /// Which rank has which stage.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// The number of microbatches.
    pub fn microbatches(&self) -> usize {
        self.microbatches
    }

    /// The lists of all ranks.
    pub fn ranks(&self) -> &[Vec<Action>] {
        &self.ranks
    }
}
