//! Propagation along one axis: selects the strategy that the operands' placements allow, or reports
//! why there is none.

use std::collections::BTreeSet;

use meshgrad_error::{Error, Kind, Result, ensure, error};

use super::bound::Bound;
use super::incompatible::{Incompatible, Problem};
use super::remedy::cheapest;
use super::sharding_rule::ShardingRule;
use super::strategy::{Axis, Strategy};
use crate::Placement;

impl ShardingRule {
    /// The placements of the results along an axis of `ranks` ranks, given the shape and placement
    /// of each operand.
    ///
    /// # Errors
    /// With an [`Incompatible`] for placements without a strategy; for operands that do not fit the
    /// signature, and a division that does not fit its dim.
    pub fn propagate_axis(
        &self,
        axis: &str,
        ranks: usize,
        operands: &[(&[usize], Placement)],
    ) -> Result<Vec<Placement>> {
        let shapes: Vec<_> = operands.iter().map(|(shape, _)| Some(*shape)).collect();
        let placements = operands.iter().zip(self.operands());
        let placements = placements.map(|((shape, at), name)| {
            fitted(at, shape, ranks).ok_or_else(|| {
                error!(
                    Invalid,
                    "{}: `{name}` of shape {shape:?} is {at}, which does not fit over {ranks} ranks",
                    self.op
                )
            })
        });
        let placements: Vec<Placement> = placements.collect::<Result<_, _>>()?;
        let bound = Bound::new(self, &shapes)?;
        Ok(propagate(&bound, axis, ranks, &placements)?.results)
    }
}

/// The canonical form of a placement of a tensor of `shape`. `None` if it does not fit.
fn fitted(placement: &Placement, shape: &[usize], ranks: usize) -> Option<Placement> {
    match placement {
        Placement::Shard(dim, division) if *dim < shape.len() => {
            let extents = BTreeSet::from([shape[*dim]]);
            let division = division.fitted(&extents, ranks.max(1)).ok()?;
            Some(Placement::Shard(*dim, division))
        }
        other => Some(other.clone()),
    }
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
    let mut strategies = axis.strategies();
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

    fn incompatible(&self, strategies: &[Strategy]) -> Error {
        let incompatible = Incompatible {
            op: self.bound.rule.op.clone(),
            axis: self.name.to_owned(),
            problem: self.problem(strategies),
            remedies: cheapest(self, strategies),
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
}
