//! What an op can do along one axis: cut a dim, pass parts on, repeat.

use std::sync::Arc;

use super::Pass;
use super::bound::{Bound, Cut, Label, Slots};
use crate::{Division, Placement, Reduction};

/// One way to compute along an axis, each rank for itself.
pub(super) struct Way {
    pub(super) operands: Vec<Placement>,
    pub(super) results: Vec<Placement>,
    pub(super) cut: Option<Cut>,
}

impl Way {
    /// All ranks compute everything.
    pub(super) fn repeat(bound: &Bound<'_>) -> Way {
        Way {
            operands: vec![Placement::Replicate; bound.operands.len()],
            results: vec![Placement::Replicate; bound.results.len()],
            cut: None,
        }
    }
}

/// All ways along an axis of so many ranks, in view of how the operands lie.
pub(super) struct Ways<'a> {
    pub(super) bound: &'a Bound<'a>,
    pub(super) ranks: usize,
    pub(super) given: &'a [Placement],
}

impl Ways<'_> {
    pub(super) fn all(&self) -> Vec<Way> {
        let labels = self.bound.labels().into_iter();
        let cuts = labels.filter_map(|label| self.cut(&self.knife(label)?));
        let passes = self.bound.rule.passes.iter().flat_map(|pass| {
            let reductions = pass.reductions.iter();
            reductions.map(|reduction| self.pass(pass, *reduction))
        });
        let repeat = Way::repeat(self.bound);
        cuts.chain(passes).chain([repeat]).collect()
    }

    fn cut(&self, knife: &Knife) -> Option<Way> {
        let operands = self.bound.operands.iter();
        let operands = operands.map(|slots| knife.cut(slots, Placement::Replicate));
        let operands = operands.collect::<Option<_>>()?;

        let reduction = self.bound.reduction(knife.label);
        if reduction == Reduction::Avg && !knife.is_equal() {
            return None;
        }
        let results = self.bound.results.iter();
        let results = results
            .map(|slots| knife.cut(slots.as_ref()?, Placement::Partial(reduction)))
            .collect::<Option<_>>()?;
        let cut = Cut {
            label: knife.label,
            equal: knife.is_equal(),
        };
        Some(self.with_changed(operands, results, Some(cut)))
    }

    /// How a dim is cut: as in the first operand where it is.
    fn knife(&self, label: Label) -> Option<Knife> {
        let operands = self.bound.operands.iter().zip(self.given);
        let having = operands.filter_map(|(slots, given)| {
            let (dim, extent) = Bound::position(slots, label)?;
            Some((dim, extent, given))
        });
        let cut = having.clone().find_map(|(dim, extent, given)| match given {
            Placement::Shard(at, division) if *at == dim => Some((division.clone(), extent)),
            _ => None,
        });
        let whole = having.map(|(_, extent, _)| (Division::Even, extent)).next();
        let (division, extent) = cut.or(whole)?;
        Some(Knife {
            label,
            division,
            extent,
            ranks: self.ranks,
            uneven: self.bound.uneven.contains(&label),
        })
    }

    fn pass(&self, pass: &Pass, reduction: Reduction) -> Way {
        let part = Placement::Partial(reduction);
        let Way {
            mut operands,
            mut results,
            ..
        } = Way::repeat(self.bound);
        for operand in &pass.operands {
            operands[*operand] = part.clone();
        }
        results.fill(part);
        self.with_changed(operands, results, None)
    }

    /// An operand that is changed in place lies as it will.
    fn with_changed(
        &self,
        mut operands: Vec<Placement>,
        results: Vec<Placement>,
        cut: Option<Cut>,
    ) -> Way {
        for (at, operand) in operands.iter_mut().enumerate() {
            if let Some(result) = self.bound.rule.in_place(at) {
                *operand = results[result].clone();
            }
        }
        Way {
            operands,
            results,
            cut,
        }
    }
}

/// A dim and how it is cut.
struct Knife {
    label: Label,
    division: Division,
    /// Of what `division` is a division.
    extent: usize,
    ranks: usize,
    /// What it cuts are parts that are not equal.
    uneven: bool,
}

impl Knife {
    /// A tensor's placement: cut if it has the dim.
    fn cut(&self, slots: &Slots, otherwise: Placement) -> Option<Placement> {
        let Some((dim, extent)) = Bound::position(slots, self.label) else {
            return Some(otherwise);
        };
        let division = match extent == self.extent {
            true => self.division.clone(),
            false => self.scaled(extent)?,
        };
        Some(Placement::Shard(dim, division))
    }

    /// A division of another extent into parts of the same proportions.
    fn scaled(&self, extent: usize) -> Option<Division> {
        if self.uneven {
            return None;
        }
        let scaled = |size: usize| {
            let product = size as u128 * extent as u128;
            let exact = product.is_multiple_of(self.extent as u128);
            exact.then(|| (product / (self.extent as u128).max(1)) as usize)
        };
        let scaled = self.sizes().into_iter().map(scaled);
        let scaled: Vec<usize> = scaled.collect::<Option<_>>()?;
        match self.division {
            Division::Ragged(_) => Some(Division::Ragged(Arc::from(scaled))),
            Division::Even => {
                let even = sizes(&Division::Even, extent, self.ranks);
                (even == scaled).then_some(Division::Even)
            }
        }
    }

    fn sizes(&self) -> Vec<usize> {
        sizes(&self.division, self.extent, self.ranks)
    }

    fn is_equal(&self) -> bool {
        let sizes = self.sizes();
        !self.uneven && sizes.iter().all(|size| *size == sizes[0])
    }
}

/// What each rank has of an extent.
pub(super) fn sizes(division: &Division, extent: usize, ranks: usize) -> Vec<usize> {
    match division {
        Division::Ragged(sizes) => sizes.to_vec(),
        Division::Even => {
            let size = extent.div_ceil(ranks);
            let end = |rank: usize| rank.saturating_mul(size).min(extent);
            let sizes = (0..ranks).map(|rank| end(rank + 1) - end(rank));
            sizes.collect()
        }
    }
}
