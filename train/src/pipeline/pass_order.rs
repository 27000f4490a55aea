//! The order of the passes of a step.

use meshgrad_error::ensure;
use meshgrad_pipeline::{Named, Schedule, Shape};

use crate::Result;

/// The order of the passes of a step, on all ranks of a pipeline.
#[derive(Clone, Debug)]
pub enum PassOrder {
    /// A schedule of the literature, for any number of microbatches that it supports.
    Named(Named),
    /// A schedule for its number of microbatches, such as that of a file, or of
    /// [`Auto`](meshgrad_pipeline::Auto).
    Of(Schedule),
}

impl PassOrder {
    /// The schedule for a shape.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) fn schedule(&self, shape: Shape) -> Result<Schedule> {
        let schedule = match self {
            PassOrder::Named(named) => return named.schedule(shape),
            PassOrder::Of(schedule) => schedule,
        };
        let placement = schedule.placement();
        let own = [placement.ranks(), placement.stages(), schedule.microbatches()];
        let [ranks, stages, microbatches] = own;
        ensure!(
            own == [shape.ranks(), shape.stages(), shape.microbatches()],
            Invalid,
            "the schedule has {ranks} ranks, {stages} stages and {microbatches} microbatches, but the \
             step has {}, {} and {}",
            shape.ranks(),
            shape.stages(),
            shape.microbatches()
        );
        Ok(schedule.clone())
    }

    /// A number of microbatches that it supports.
    pub(super) fn some_count(&self, ranks: usize) -> usize {
        match self {
            PassOrder::Named(_) => 2 * ranks, // all do
            PassOrder::Of(schedule) => schedule.microbatches(),
        }
    }
}

impl From<Named> for PassOrder {
    fn from(named: Named) -> PassOrder {
        PassOrder::Named(named)
    }
}

impl From<Schedule> for PassOrder {
    fn from(schedule: Schedule) -> PassOrder {
        PassOrder::Of(schedule)
    }
}
