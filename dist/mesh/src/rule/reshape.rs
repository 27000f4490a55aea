//! The rule of reshapes: merges and splits of dims keep every shard that a placement describes.
//!
//! The dims of both shapes fall into runs with equal numbers of elements: in [4, 6, 5] -> [24, 5],
//! one run merges 4 and 6. A shard of a dim selects elements of its run: the same ones in each block
//! of `length` elements. A dim of the result can hold the shard if its stride divides the block and
//! the dim is a whole number of blocks.

use std::ops::Range;

use meshgrad_error::{Result, ensure};

use super::bound::{Bound, BoundDim, DimId};
use super::sharding_rule::{Run, ShardingRule};
use crate::Division;

impl ShardingRule {
    /// Reshapes a tensor. When dims are merged or a dim is split, each shard must be a shard of one
    /// dim of the result. Of merged dims [b t], a shard of t is in blocks of the extent of t.
    ///
    /// # Errors
    /// When the numbers of elements differ or overflow.
    pub fn reshape(op: &str, from: &[usize], to: &[usize]) -> Result<ShardingRule> {
        let fits = elements(from).is_some_and(|count| elements(to) == Some(count));
        ensure!(
            fits,
            Invalid,
            "{op}: shapes {from:?} and {to:?} differ in their number of elements, or have too many"
        );
        let (x, y) = (whole_dims("x", from.len()), whole_dims("y", to.len()));
        let mut rule = ShardingRule::new(op, &format!("x[{x}] -> y[{y}]"))?.linear_in(&["x"])?;

        let (of_from, of_to) = rule.names.split_at_mut(from.len());
        for (name, extent) in of_to.iter_mut().zip(to) {
            name.extent = Some(*extent);
        }
        rule.runs = runs(from, to);
        for run in &rule.runs {
            for name in of_from[run.from.clone()].iter_mut() {
                name.whole = false;
            }
            for name in of_to[run.to.clone()].iter_mut() {
                name.whole = false;
            }
        }
        Ok(rule)
    }

    /// The dims of the operand that dim `dim` is merged with from the left.
    pub(super) fn dims_merged_before(&self, dim: usize) -> Range<usize> {
        let run = self.runs.iter().find(|run| run.from.contains(&dim));
        run.map_or(0..0, |run| run.from.start..dim)
    }
}

/// A dim of a reshape's result and its division.
pub(super) struct Reshaped {
    pub(super) dim: usize,
    pub(super) id: DimId,
    pub(super) division: Division,
}

/// The shard of the result if `division` divides dim `dim` of the operand among `ranks` ranks.
/// `None` if no placement describes it.
pub(super) fn reshaped(
    bound: &Bound<'_>,
    dim: usize,
    division: &Division,
    ranks: usize,
) -> Option<Reshaped> {
    let run = bound.rule.runs.iter().find(|run| run.from.contains(&dim))?;
    let (x, y) = (bound.operands.first()?, bound.results.first()?.as_ref()?);
    let at = |dim: usize, division: Division| {
        let id = y[dim].id?;
        Some(Reshaped { dim, id, division })
    };
    if run.from.len() == 1 && run.to.len() == 1 {
        return at(run.to.start, division.clone());
    }

    let is_uneven = |dim: &BoundDim| dim.id.is_some_and(|id| bound.uneven.contains(&id));
    let stride = product_of_even(&x[dim + 1..run.from.end], is_uneven)?;
    let (length, of_block) = match division {
        Division::InBlocks { length, division } => (*length, &**division),
        _ if is_uneven(&x[dim]) => return None,
        _ => (x[dim].extent, division),
    };
    let block = length.checked_mul(stride)?;
    for to in run.to.clone().rev() {
        let inner = product_of_even(&y[to + 1..run.to.end], is_uneven)?;
        let whole = y[to].extent.checked_mul(inner)?;
        let is_first = y[run.to.start..to].iter().all(|dim| dim.extent == 1);
        // An uneven dim consists of whole blocks on every rank if it is the whole run.
        let uneven = is_uneven(&y[to]);
        let holds_blocks = match uneven {
            true => is_first,
            false => whole >= block,
        };
        if block <= inner || !holds_blocks {
            continue;
        }
        if block % inner != 0 || (!uneven && whole % block != 0) {
            return None;
        }
        let of_block = of_block.scaled(length, ranks, (stride, inner))?;
        return match whole == block && !uneven {
            true => at(to, of_block),
            false => at(to, Division::in_blocks(block / inner, of_block)),
        };
    }
    None
}

/// The product of the extents, if no outer axis shards one of the dims unevenly.
fn product_of_even(dims: &[BoundDim], is_uneven: impl Fn(&BoundDim) -> bool) -> Option<usize> {
    if dims.iter().any(is_uneven) {
        return None;
    }
    let mut extents = dims.iter().map(|dim| dim.extent);
    extents.try_fold(1, usize::checked_mul)
}

/// `None` on overflow.
fn elements(shape: &[usize]) -> Option<usize> {
    let product = |product: usize, extent: &usize| product.checked_mul(*extent);
    match shape.contains(&0) {
        true => Some(0),
        false => shape.iter().try_fold(1, product),
    }
}

/// `x0! x1!`.
fn whole_dims(tensor: &str, ndim: usize) -> String {
    let dims = (0..ndim).map(|dim| format!("{tensor}{dim}!"));
    dims.collect::<Vec<_>>().join(" ")
}

/// Divides both shapes into the shortest runs of dims with equal products. Dims of extent 1 at the
/// ends of runs are omitted.
fn runs(from: &[usize], to: &[usize]) -> Vec<Run> {
    let mut runs = Vec::new();
    if from.contains(&0) {
        return runs;
    }
    let larger = |shape: &[usize], at: usize| (at..shape.len()).find(|dim| shape[*dim] != 1);
    let (mut left, mut right) = (larger(from, 0), larger(to, 0));
    while let (Some(first), Some(becomes)) = (left, right) {
        let (mut a, mut b) = (from[first], to[becomes]);
        let (mut i, mut j) = (first + 1, becomes + 1);
        while a != b {
            if a < b {
                a *= from[i];
                i += 1;
            } else {
                b *= to[j];
                j += 1;
            }
        }
        runs.push(Run { from: first..i, to: becomes..j });
        (left, right) = (larger(from, i), larger(to, j));
    }
    runs
}
