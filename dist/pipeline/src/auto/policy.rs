//! The policies of the list scheduler.

use crate::{Costs, Placement};

/// What a rank prefers when several computations are ready.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Policy {
    pub(crate) prefer: Prefer,
    pub(crate) backward: Backward,
    /// Forward passes: the deepest stage first, or the earliest microbatch.
    pub(crate) deepest_first: bool,
    /// The memory that a rank may use.
    pub(crate) budget: f64,
}

/// Which of F and B (or I) goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Prefer {
    Forward,
    Backward,
    /// The kind that did not run last.
    Other,
}

/// How the backward pass runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backward {
    /// B.
    Whole,
    /// I, and W when nothing else can run.
    Split,
    /// I, and W before the next I of the rank, except while the rank still fills the pipeline.
    SplitSoon,
}

impl Policy {
    /// All policies. Budgets below the given one keep a rank from running ahead of the others.
    pub(crate) fn all(placement: &Placement, costs: &Costs, budget: f64) -> Vec<Policy> {
        let full = placement.ranks() as f64 * one_microbatch(placement, &costs.activation);
        let mut budgets: Vec<f64> =
            [full, 1.5 * full, 2.0 * full].into_iter().filter(|&it| it < budget).collect();
        budgets.push(budget);

        let mut all = Vec::new();
        for prefer in [Prefer::Forward, Prefer::Backward, Prefer::Other] {
            for backward in [Backward::Whole, Backward::Split, Backward::SplitSoon] {
                for deepest_first in [true, false] {
                    all.extend(budgets.iter().map(|&budget| Policy {
                        prefer,
                        backward,
                        deepest_first,
                        budget,
                    }));
                }
            }
        }
        all
    }
}

/// Sums in another order differ by less than this.
pub(crate) const TOLERANCE: f64 = 1e-9;

/// Whether memory keeps within a budget.
pub(crate) fn fits(memory: f64, budget: f64) -> bool {
    memory <= budget * (1.0 + TOLERANCE)
}

/// The memory of one microbatch on the rank where it needs most.
pub(crate) fn one_microbatch(placement: &Placement, of_stage: &[f64]) -> f64 {
    let sum = |rank| placement.stages_of(rank).iter().map(|&it| of_stage[it]).sum::<f64>();
    (0..placement.ranks()).map(sum).fold(0.0, f64::max)
}
