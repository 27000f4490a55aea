//! Propagation along one axis: selects the strategy that the operands' placements allow, or reports
//! why there is none.

use meshgrad_error::{Error, Kind, Result, ensure};

use super::bound::Bound;
use super::strategy::{Strategies, Strategy};
use super::{Incompatible, Problem, remedy};
use crate::Placement;

/// An axis, and the operands' placements along it.
pub(super) struct Axis<'a> {
    pub(super) bound: &'a Bound<'a>,
    pub(super) name: &'a str,
    pub(super) ranks: usize,
    pub(super) given: &'a [Placement],
}

/// The strategy that the operands' placements allow.
pub(super) fn propagate(
    bound: &Bound<'_>,
    name: &str,
    ranks: usize,
    given: &[Placement],
) -> Result<Strategy> {
    let ranks = ranks.max(1);
    let axis = Axis { bound, name, ranks, given };
    axis.check_dims()?;
    let mut strategies = Strategies { bound, ranks, given }.all();
    match strategies.iter().position(|strategy| axis.allows(strategy)) {
        Some(strategy) => Ok(strategies.swap_remove(strategy)),
        // On one rank every placement is equivalent to replicate.
        None if ranks == 1 => Ok(Strategy::replicate(bound)),
        None => Err(axis.incompatible(&strategies)),
    }
}

impl Axis<'_> {
    fn check_dims(&self) -> Result<()> {
        let rule = self.bound.rule;
        for (at, (placement, dims)) in self.given.iter().zip(&self.bound.operands).enumerate() {
            let dims = dims.len();
            ensure!(
                placement.dim().is_none_or(|dim| dim < dims),
                Invalid,
                "{}: `{}` is {placement} on axis `{}`, but has {dims} dims",
                rule.op,
                rule.operands[at].name,
                self.name
            );
        }
        Ok(())
    }

    fn allows(&self, strategy: &Strategy) -> bool {
        (0..self.given.len()).all(|at| self.fits(strategy, at))
    }

    /// Whether an operand has the placement that a strategy needs, or takes it from its result.
    pub(super) fn fits(&self, strategy: &Strategy, at: usize) -> bool {
        let becomes_partial = matches!(
            (&self.given[at], &strategy.operands[at]),
            (Placement::Replicate, Placement::Partial(_))
        );
        if self.bound.open == Some(at) && (self.bound.open_has_no_shards || becomes_partial) {
            return true;
        }
        match (&self.given[at], &strategy.operands[at]) {
            (Placement::Shard(dim, division), Placement::Shard(needed, needed_division)) => {
                let extent = self.bound.operands[at][*dim].extent;
                dim == needed && division.equals(needed_division, extent, self.ranks)
            }
            (given, needed) => given == needed,
        }
    }

    fn incompatible(&self, strategies: &[Strategy]) -> Error {
        let incompatible = Incompatible {
            op: self.bound.rule.op.clone(),
            axis: self.name.to_owned(),
            problem: self.problem(strategies),
            remedies: remedy::cheapest(self, strategies),
        };
        Error::with_details(Kind::Invalid, incompatible)
    }

    fn problem(&self, strategies: &[Strategy]) -> Problem {
        let mut problems = (0..self.given.len()).filter_map(|at| self.unsupported(at, strategies));
        problems.next().unwrap_or_else(|| self.conflict(strategies))
    }

    /// Why no strategy supports an operand's placement, whatever the other placements are.
    fn unsupported(&self, at: usize, strategies: &[Strategy]) -> Option<Problem> {
        let (operand, has) = (self.operand(at), self.given[at].clone());
        let Placement::Shard(dim, division) = &has else {
            let supported = strategies.iter().any(|strategy| self.fits(strategy, at));
            return (!supported).then_some(Problem::NotLinear { operand, has });
        };

        let dim = *dim;
        if strategies.iter().any(|strategy| strategy.operands[at].dim() == Some(dim)) {
            return None;
        }
        let name = self.bound.dim_name(at, dim).map(str::to_owned);
        let bound_dim = self.bound.operands[at][dim];
        let shardable = self.bound.results.iter().all(Option::is_some);
        let is_reshape = !self.bound.rule.runs.is_empty();
        Some(match bound_dim.id.filter(|_| shardable) {
            Some(_) if is_reshape => Problem::NoPlacement { operand, has },
            Some(id) => Problem::UnequalShards {
                operand,
                dim,
                name,
                sizes: division.sizes(bound_dim.extent, self.ranks),
                in_proportion_to: self.bound.in_proportion_to(id).map(str::to_owned),
            },
            None => Problem::NotWhole { operand, has, dim, name },
        })
    }

    /// What one operand requires of another, in the strategy that changes the fewest operands.
    fn conflict(&self, strategies: &[Strategy]) -> Problem {
        let changed = |strategy: &&Strategy| {
            (0..self.given.len()).filter(|at| !self.fits(strategy, *at)).count()
        };
        let reason = |strategy: &Strategy| {
            let not_replicated = |at: &usize| self.given[*at] != Placement::Replicate;
            (0..self.given.len()).filter(not_replicated).find(|at| self.fits(strategy, *at))
        };
        let nearest =
            strategies.iter().filter(|strategy| reason(strategy).is_some()).min_by_key(changed);
        // Never falls back: each operand alone fits some strategy, and not all are replicated.
        let strategy = nearest.unwrap_or(&strategies[0]);
        let because = reason(strategy).unwrap_or(0);
        let at = (0..self.given.len()).find(|at| !self.fits(strategy, *at)).unwrap_or(0);

        let has_dim = self.given[because].dim();
        Problem::Conflict {
            operand: self.operand(at),
            has: self.given[at].clone(),
            needs: strategy.operands[at].clone(),
            because: self.operand(because),
            because_has: self.given[because].clone(),
            dim: has_dim.and_then(|dim| self.bound.dim_name(because, dim)).map(str::to_owned),
            in_place: self.bound.rule.in_place(at).is_some(),
        }
    }

    pub(super) fn operand(&self, at: usize) -> String {
        self.bound.rule.operands[at].name.clone()
    }
}
