//! The strategies of an op along one axis: shard a dim, keep partial values, or replicate.

use super::bound::{Bound, BoundDims, DimId, ShardedDim};
use super::reshape::reshaped;
use super::sharding_rule::PartialInputs;
use crate::{Division, Placement, Reduction};

/// One way to compute without communication: the placements of all operands and results.
pub(super) struct Strategy {
    pub(super) operands: Vec<Placement>,
    pub(super) results: Vec<Placement>,
    /// The dims that become smaller.
    pub(super) sharded: Vec<ShardedDim>,
}

impl Strategy {
    /// All ranks compute everything.
    pub(super) fn replicate(bound: &Bound<'_>) -> Strategy {
        Strategy {
            operands: vec![Placement::Replicate; bound.operands.len()],
            results: vec![Placement::Replicate; bound.results.len()],
            sharded: Vec::new(),
        }
    }
}

/// An axis, and the operands' placements along it.
pub(super) struct Axis<'a> {
    pub(super) bound: &'a Bound<'a>,
    pub(super) name: &'a str,
    pub(super) ranks: usize,
    pub(super) given: &'a [Placement],
}

impl Axis<'_> {
    /// All strategies. Shard sizes are taken from the operands' placements.
    pub(super) fn strategies(&self) -> Vec<Strategy> {
        let ids = self.bound.ids().into_iter();
        let sharded = ids.filter_map(|id| self.shard_dim(&self.dim_shard(id)?));
        let partial = self.bound.rule.partial_inputs.iter().flat_map(|inputs| {
            let reductions = inputs.reductions.iter();
            reductions.map(|reduction| self.keep_partial(inputs, *reduction))
        });
        let replicate = Strategy::replicate(self.bound);
        sharded.chain(partial).chain([replicate]).collect()
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

    /// The name of an operand.
    pub(super) fn operand(&self, at: usize) -> String {
        self.bound.rule.operands[at].name.clone()
    }

    fn shard_dim(&self, shard: &DimShard) -> Option<Strategy> {
        let operands = self.bound.operands.iter();
        let operands = operands.map(|dims| shard.placement(dims, Placement::Replicate));
        let operands = operands.collect::<Option<_>>()?;

        let equal = shard.is_equal();
        let sharded = |id| ShardedDim { id, equal };
        if !self.bound.rule.runs.is_empty() {
            let (dim, _) = Bound::position(self.bound.operands.first()?, shard.id)?;
            let result = reshaped(self.bound, dim, &shard.division, self.ranks)?;
            let placement = Placement::Shard(result.dim, result.division);
            let ids = [shard.id, result.id];
            return Some(Strategy {
                operands,
                results: vec![placement],
                sharded: ids.map(sharded).to_vec(),
            });
        }

        let reduction = self.bound.reduction(shard.id);
        if reduction == Reduction::Avg && !equal {
            return None;
        }
        let results = self.bound.results.iter();
        let results = results
            .map(|dims| shard.placement(dims.as_ref()?, Placement::Partial(reduction)))
            .collect::<Option<_>>()?;
        Some(self.with_in_place(operands, results, vec![sharded(shard.id)]))
    }

    /// The division of a dim by the first operand that shards it, else `Division::Even`.
    fn dim_shard(&self, id: DimId) -> Option<DimShard> {
        let operands = self.bound.operands.iter().zip(self.given);
        let with_dim = operands.filter_map(|(dims, given)| {
            let (dim, extent) = Bound::position(dims, id)?;
            Some((dim, extent, given))
        });
        let sharded = with_dim.clone().find_map(|(dim, extent, given)| match given {
            Placement::Shard(at, division) if *at == dim => Some((division.clone(), extent)),
            _ => None,
        });
        let whole = with_dim.map(|(_, extent, _)| (Division::Even, extent)).next();
        let (division, extent) = sharded.or(whole)?;
        Some(DimShard {
            id,
            division,
            extent,
            ranks: self.ranks,
            uneven: self.bound.uneven.contains(&id),
        })
    }

    fn keep_partial(&self, inputs: &PartialInputs, reduction: Reduction) -> Strategy {
        let partial = Placement::Partial(reduction);
        let Strategy { mut operands, mut results, .. } = Strategy::replicate(self.bound);
        for operand in &inputs.operands {
            operands[*operand] = partial.clone();
        }
        results.fill(partial);
        self.with_in_place(operands, results, Vec::new())
    }

    /// Gives operands that are modified in place the placement of their result.
    fn with_in_place(
        &self,
        mut operands: Vec<Placement>,
        results: Vec<Placement>,
        sharded: Vec<ShardedDim>,
    ) -> Strategy {
        for (at, operand) in operands.iter_mut().enumerate() {
            if let Some(result) = self.bound.rule.in_place(at) {
                *operand = results[result].clone();
            }
        }
        Strategy { operands, results, sharded }
    }
}

/// A dim and its division into shards.
struct DimShard {
    id: DimId,
    division: Division,
    /// The extent that `division` divides.
    extent: usize,
    ranks: usize,
    /// An outer axis shards the dim unevenly.
    uneven: bool,
}

impl DimShard {
    /// The placement of a tensor: sharded if it has the dim.
    fn placement(&self, dims: &BoundDims, otherwise: Placement) -> Option<Placement> {
        let Some((dim, extent)) = Bound::position(dims, self.id) else {
            return Some(otherwise);
        };
        let division = match extent == self.extent {
            true => self.division.clone(),
            false => self.scaled(extent)?,
        };
        Some(Placement::Shard(dim, division))
    }

    /// The same division, in proportion, of another extent.
    fn scaled(&self, extent: usize) -> Option<Division> {
        if self.uneven {
            return None;
        }
        self.division.scaled(self.extent, self.ranks, (extent, self.extent))
    }

    fn is_equal(&self) -> bool {
        let sizes = self.division.sizes(self.extent, self.ranks);
        !self.uneven && sizes.iter().all(|size| *size == sizes[0])
    }
}
