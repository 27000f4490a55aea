//! Remedies for incompatible placements: redistributions of the operands, the cheapest first.

use std::fmt;

use super::bound::BoundDims;
use super::strategy::{Axis, Strategy};
use crate::{Division, Placement};

/// How many remedies an error names.
const MAX_REMEDIES: usize = 3;

/// Redistributions after which the op has a strategy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remedy {
    /// One redistribution per operand that changes.
    pub changes: Vec<Change>,
    /// The results' names and their placements afterwards.
    pub results: Vec<(String, Placement)>,
}

/// The redistribution of one operand along one axis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The operand's name.
    pub operand: String,
    /// The axis.
    pub axis: String,
    /// The placement before.
    pub from: Placement,
    /// The placement after.
    pub to: Placement,
}

impl Change {
    /// ``all_gather `x` along dim 1``.
    fn action(&self) -> String {
        let operand = &self.operand;
        match (&self.from, &self.to) {
            (Placement::Shard(dim, _), Placement::Replicate) => {
                format!("all_gather `{operand}` along dim {dim}")
            }
            (Placement::Shard(dim, _), Placement::Shard(to, _)) if dim != to => {
                format!("all_to_all `{operand}` from dim {dim} to dim {to}")
            }
            (Placement::Partial(by), Placement::Replicate) => {
                format!("all_reduce({by}) `{operand}`")
            }
            (Placement::Partial(by), Placement::Shard(dim, _)) => {
                format!("reduce_scatter({by}) `{operand}` along dim {dim}")
            }
            (Placement::Replicate, Placement::Shard(dim, _)) => {
                format!("slice `{operand}` along dim {dim}")
            }
            (from, to) => format!("redistribute `{operand}` from {from} to {to}"),
        }
    }
}

impl Change {
    /// `redistribute(&x, [("tp", Placement::Replicate)]) (gradient: shard(1))`.
    fn code(&self) -> String {
        // The gradient gets the shards of the operand; along other axes it is reduced.
        let gradient = match &self.from {
            Placement::Shard(..) => &self.from,
            Placement::Replicate | Placement::Partial(_) => &Placement::Replicate,
        };
        format!(
            "redistribute(&{}, [(\"{}\", {})]) (gradient: {gradient})",
            self.operand,
            self.axis,
            code(&self.to)
        )
    }
}

/// The Rust expression of a placement.
fn code(placement: &Placement) -> String {
    match placement {
        Placement::Replicate => "Placement::Replicate".to_owned(),
        Placement::Partial(reduction) => format!("Placement::Partial(Reduction::{reduction:?})"),
        Placement::Shard(dim, Division::Even) => format!("Placement::shard({dim})"),
        Placement::Shard(dim, Division::Ragged(sizes)) => {
            format!("Placement::ragged({dim}, {sizes:?})")
        }
        Placement::Shard(dim, Division::HeadAndTail) => format!("Placement::head_and_tail({dim})"),
        Placement::Shard(dim, Division::InBlocks { length, division }) => match &**division {
            Division::Even => format!("Placement::in_blocks({dim}, {length})"),
            _ => format!("Placement::Shard({dim}, ..)"),
        },
    }
}

/// The first remedy as code.
pub(super) fn first_as_code(remedies: &[Remedy]) -> String {
    let Some(first) = remedies.first() else {
        return String::new();
    };
    let changes: Vec<String> = first.changes.iter().map(Change::code).collect();
    match remedies.len() {
        1 => format!("; in code: {}", changes.join(" and ")),
        _ => format!("; the first in code: {}", changes.join(" and ")),
    }
}

/// ``all_gather `x` along dim 1 on axis `tp` ``.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on axis `{}`", self.action(), self.axis)
    }
}

/// ``all_gather `x` along dim 1 (then `y` is replicate)``.
impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let changes: Vec<String> = self.changes.iter().map(Change::action).collect();
        let results = self.results.iter();
        let results = results.map(|(name, to)| format!("`{name}` is {to}"));
        let results: Vec<String> = results.collect();
        write!(f, "{} (then {})", changes.join(" and "), results.join(", "))
    }
}

/// The remedies that move the fewest elements.
pub(super) fn cheapest(axis: &Axis<'_>, strategies: &[Strategy]) -> Vec<Remedy> {
    let remedies = strategies.iter().filter_map(|strategy| remedy(axis, strategy));
    let mut remedies: Vec<(u128, Remedy)> = remedies.collect();
    remedies.sort_by_key(|(cost, remedy)| (*cost, remedy.changes.len()));
    let remedies = remedies.into_iter().map(|(_, remedy)| remedy);
    remedies.take(MAX_REMEDIES).collect()
}

fn remedy(axis: &Axis<'_>, strategy: &Strategy) -> Option<(u128, Remedy)> {
    let (mut cost, mut changes) = (0u128, Vec::new());
    for at in (0..axis.given.len()).filter(|at| !axis.fits(strategy, *at)) {
        let (from, to) = (&axis.given[at], &strategy.operands[at]);
        let moved = u128::from(moved(from, to, axis.ranks)?);
        cost = sum(cost, moved, elements(&axis.bound.operands[at]));
        changes.push(Change {
            operand: axis.operand(at),
            axis: axis.name.to_owned(),
            from: from.clone(),
            to: to.clone(),
        });
    }
    for (placement, dims) in strategy.results.iter().zip(&axis.bound.results) {
        // A partial result has to be reduced later.
        if let (Placement::Partial(_), Some(dims)) = (placement, dims) {
            cost = sum(cost, axis.ranks as u128, elements(dims));
        }
    }
    let names = axis.bound.rule.results.iter().map(|result| result.name.clone());
    let results = names.zip(strategy.results.iter().cloned()).collect();
    Some((cost, Remedy { changes, results }))
}

/// The fraction of a tensor that a rank receives, in units of (n - 1) / n^2 for n ranks. `None` if
/// no redistribution exists: a tensor is never made partial.
fn moved(from: &Placement, to: &Placement, ranks: usize) -> Option<u64> {
    match (from, to) {
        (Placement::Replicate, Placement::Shard(..)) => Some(0),
        (Placement::Shard(..), Placement::Shard(..)) => Some(1),
        (Placement::Shard(..), Placement::Replicate) => Some(ranks as u64),
        (Placement::Partial(_), Placement::Shard(..)) => Some(ranks as u64),
        (Placement::Partial(_), Placement::Replicate) => Some(2 * ranks as u64),
        _ => None,
    }
}

fn sum(cost: u128, times: u128, elements: u128) -> u128 {
    cost.saturating_add(times.saturating_mul(elements))
}

fn elements(dims: &BoundDims) -> u128 {
    let extents = dims.iter().map(|dim| dim.extent as u128);
    extents.fold(1, u128::saturating_mul)
}
