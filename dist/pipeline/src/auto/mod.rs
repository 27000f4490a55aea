//! `auto`: the fastest schedule that the simulator knows for given durations and memory.

mod greedy;
mod policy;

use std::fmt;

use meshgrad_error::{Error, Kind, Result};

use crate::costs::Costs;
use crate::{Lowering, Named, Placement, Schedule, Shape, Simulation};
use greedy::Greedy;
use policy::{Policy, TOLERANCE, fits};

/// The best schedule found for a shape, costs and a memory cap.
#[derive(Debug, Clone, PartialEq)]
pub struct Auto {
    /// The schedule.
    pub schedule: Schedule,
    /// Its run.
    pub simulation: Simulation,
    /// The schedule of the literature that it is; none if it was synthesized.
    pub named: Option<Named>,
}

/// No schedule fits in a memory cap.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MemoryCap {
    /// The cap.
    pub cap: f64,
    /// The smallest that works.
    pub least: f64,
}

impl fmt::Display for MemoryCap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemoryCap { cap, least } = self;
        write!(f, "no schedule fits in a memory cap of {cap}: the least cap that works is {least}")
    }
}

impl Auto {
    /// Searches for the fastest schedule of which no rank needs more memory than `cap`: among all
    /// schedules of the literature, and those that a list scheduler makes under several policies, with
    /// stages in a loop and in a V. So it is never slower than the best schedule of the literature that
    /// fits, but for rounding. Of equally fast ones, that with the smallest peak memory is returned.
    ///
    /// # Errors
    /// When the costs do not fit the stages; with a [`MemoryCap`] when no schedule fits in `cap`.
    pub fn search(shape: Shape, costs: &Costs, cap: Option<f64>) -> Result<Auto> {
        costs.check(shape.stages())?;
        let budget = cap.unwrap_or(f64::INFINITY);
        let mut best: Option<Auto> = None;
        let mut consider = |schedule: Schedule, named: Option<Named>| -> Result<()> {
            let program = schedule.lower(&Lowering::default())?;
            let simulation = program.simulate(costs)?;
            let is_better = best.as_ref().is_none_or(|it| is_better(&simulation, &it.simulation));
            if is_better && fits(simulation.peak_memory(), budget) {
                best = Some(Auto { schedule, simulation, named });
            }
            Ok(())
        };

        for named in Named::ALL.into_iter().filter(|&it| it != Named::Inference) {
            if let Ok(schedule) = named.schedule(shape) {
                consider(schedule, Some(named))?;
            }
        }
        for placement in [Placement::looped(shape), Placement::v(shape)] {
            for policy in Policy::all(&placement, costs, budget) {
                let greedy = Greedy::new(&placement, shape.microbatches(), costs, policy);
                if let Some(lists) = greedy.run() {
                    let placement = placement.clone();
                    consider(Schedule::new(placement, shape.microbatches(), lists)?, None)?;
                }
            }
        }
        best.ok_or_else(|| {
            let needed = MemoryCap { cap: budget, least: least_cap(shape, costs) };
            Error::with_details(Kind::OutOfMemory, needed)
        })
    }
}

/// Whether a run is faster than another, or as fast with less memory.
fn is_better(one: &Simulation, other: &Simulation) -> bool {
    let (time, other_time) = (one.makespan(), other.makespan());
    let rounding = TOLERANCE * other_time;
    match time < other_time - rounding {
        true => true,
        false => time <= other_time + rounding && one.peak_memory() < other.peak_memory(),
    }
}

/// The memory of one microbatch at a time. No schedule needs less: when the last stage starts the
/// first backward pass, all stages hold activations of that microbatch.
fn least_cap(shape: Shape, costs: &Costs) -> f64 {
    let placements = [Placement::looped(shape), Placement::v(shape)];
    let least = placements.map(|placement| policy::one_microbatch(&placement, &costs.activation));
    least.into_iter().fold(f64::INFINITY, f64::min)
}
