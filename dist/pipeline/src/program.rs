//! A schedule with communication, and the proof that it runs to its end.

use meshgrad_error::Result;

use crate::check;
use crate::{Action, Compute, Op, Placement, Shape};

/// The actions of every rank, with communication: what an executor interprets.
///
/// Every value of this type is complete and free of deadlocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    placement: Placement,
    microbatches: usize,
    ranks: Vec<Vec<Action>>,
}

impl Program {
    /// A program of your own: checks each rank, then runs the communication of all ranks with sends
    /// that wait for their receives and receives that wait for their sends. A program that passes
    /// also runs with sends that do not wait.
    ///
    /// # Errors
    /// Names the rank and the action that is wrong, missing, repeated or too early, or the circle of
    /// ranks that wait for each other.
    pub fn new(
        placement: Placement,
        microbatches: usize,
        ranks: Vec<Vec<Action>>,
    ) -> Result<Program> {
        check::check(&placement, microbatches, &ranks)?;
        Ok(Program::proven(placement, microbatches, ranks))
    }

    /// The program of a single rank with a single stage: F and B of each microbatch in turn.
    ///
    /// # Errors
    /// As [`Shape::new`].
    pub fn single(microbatches: usize) -> Result<Program> {
        let placement = Placement::looped(Shape::new(1, 1, microbatches)?);
        let passes = |microbatch| {
            [Op::Forward, Op::Backward].map(|op| Compute::new(op, 0, microbatch).into())
        };
        let actions = (0..microbatches).flat_map(passes).collect();
        Ok(Program::proven(placement, microbatches, vec![actions]))
    }

    /// A program that is correct by construction.
    pub(crate) fn proven(
        placement: Placement,
        microbatches: usize,
        ranks: Vec<Vec<Action>>,
    ) -> Program {
        Program { placement, microbatches, ranks }
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
