//! One axis: which of the ways in which an op can compute its operands allow, or why none.

use super::bound::Bound;
use super::ways::{Way, Ways, sizes};
use super::{Misplaced, Problem, RuleError, remedy};
use crate::Placement;

/// An axis, and how the operands lie along it.
pub(super) struct Axis<'a> {
    pub(super) bound: &'a Bound<'a>,
    pub(super) name: &'a str,
    pub(super) ranks: usize,
    pub(super) given: &'a [Placement],
}

/// The way that the operands allow.
pub(super) fn infer(
    bound: &Bound<'_>,
    name: &str,
    ranks: usize,
    given: &[Placement],
) -> Result<Way, RuleError> {
    let ranks = ranks.max(1);
    let axis = Axis {
        bound,
        name,
        ranks,
        given,
    };
    axis.check_dims()?;
    let mut ways = Ways {
        bound,
        ranks,
        given,
    }
    .all();
    match ways.iter().position(|way| axis.allows(way)) {
        Some(way) => Ok(ways.swap_remove(way)),
        // One rank has all of everything, whatever that is called.
        None if ranks == 1 => Ok(Way::repeat(bound)),
        None => Err(axis.misplaced(&ways)),
    }
}

impl Axis<'_> {
    fn check_dims(&self) -> Result<(), RuleError> {
        let rule = self.bound.rule;
        for (at, (placement, slots)) in self.given.iter().zip(&self.bound.operands).enumerate() {
            if placement.dim().is_some_and(|dim| dim >= slots.len()) {
                return Err(RuleError::NoDim {
                    op: rule.op.clone(),
                    operand: rule.operands[at].name.clone(),
                    placement: placement.clone(),
                    axis: self.name.to_owned(),
                    dims: slots.len(),
                });
            }
        }
        Ok(())
    }

    fn allows(&self, way: &Way) -> bool {
        (0..self.given.len()).all(|at| self.fits(way, at))
    }

    /// Whether an operand lies as a way needs it.
    pub(super) fn fits(&self, way: &Way, at: usize) -> bool {
        match (&self.given[at], &way.operands[at]) {
            (Placement::Shard(dim, division), Placement::Shard(needed, needed_division)) => {
                let extent = self.bound.operands[at][*dim].extent;
                let sizes = |division| sizes(division, extent, self.ranks);
                dim == needed && sizes(division) == sizes(needed_division)
            }
            (given, needed) => given == needed,
        }
    }

    fn misplaced(&self, ways: &[Way]) -> RuleError {
        RuleError::Misplaced(Box::new(Misplaced {
            op: self.bound.rule.op.clone(),
            axis: self.name.to_owned(),
            problem: self.problem(ways),
            remedies: remedy::cheapest(self, ways),
        }))
    }

    fn problem(&self, ways: &[Way]) -> Problem {
        let mut problems = (0..self.given.len()).filter_map(|at| self.never(at, ways));
        problems.next().unwrap_or_else(|| self.disagreement(ways))
    }

    /// Why an operand cannot lie as it does, wherever the others are.
    fn never(&self, at: usize, ways: &[Way]) -> Option<Problem> {
        let (operand, has) = (self.operand(at), self.given[at].clone());
        let Placement::Shard(dim, division) = &has else {
            let somehow = ways.iter().any(|way| way.operands[at] == has);
            return (!somehow).then_some(Problem::NotLinear { operand, has });
        };

        let dim = *dim;
        if ways.iter().any(|way| way.operands[at].dim() == Some(dim)) {
            return None;
        }
        let name = self.bound.written(at, dim).map(str::to_owned);
        let slot = self.bound.operands[at][dim];
        let cuttable = self.bound.results.iter().all(Option::is_some);
        Some(match slot.label.filter(|_| cuttable) {
            Some(label) => Problem::Parts {
                operand,
                dim,
                name,
                parts: sizes(division, slot.extent, self.ranks),
                beside: self.bound.beside(label).map(str::to_owned),
            },
            None => Problem::Whole {
                operand,
                has,
                dim,
                name,
            },
        })
    }

    /// What one operand needs of another, in the way that is nearest.
    fn disagreement(&self, ways: &[Way]) -> Problem {
        let moved = |way: &&Way| {
            (0..self.given.len())
                .filter(|at| !self.fits(way, *at))
                .count()
        };
        let why = |way: &Way| {
            let not_whole = |at: &usize| self.given[*at] != Placement::Replicate;
            (0..self.given.len())
                .filter(not_whole)
                .find(|at| self.fits(way, *at))
        };
        let near = ways
            .iter()
            .filter(|way| why(way).is_some())
            .min_by_key(moved);
        // Each operand alone fits some way, and not all lie whole.
        let way = near.unwrap_or(&ways[0]);
        let because = why(way).unwrap_or(0);
        let at = (0..self.given.len())
            .find(|at| !self.fits(way, *at))
            .unwrap_or(0);

        let has_dim = self.given[because].dim();
        Problem::Disagrees {
            operand: self.operand(at),
            has: self.given[at].clone(),
            needs: way.operands[at].clone(),
            because: self.operand(because),
            because_has: self.given[because].clone(),
            dim: has_dim
                .and_then(|dim| self.bound.written(because, dim))
                .map(str::to_owned),
            in_place: self.bound.rule.in_place(at).is_some(),
        }
    }

    pub(super) fn operand(&self, at: usize) -> String {
        self.bound.rule.operands[at].name.clone()
    }
}
