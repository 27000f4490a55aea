//! What would bring operands to where an op can compute, the cheapest first.

use std::fmt;

use super::axis::Axis;
use super::bound::Slots;
use super::ways::Way;
use crate::Placement;

/// How many remedies an error names.
const NAMED: usize = 3;

/// Transitions after which an op can compute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remedy {
    /// What has to be done, each to another operand.
    pub changes: Vec<Change>,
    /// The results' names and how they then lie along the axis.
    pub results: Vec<(String, Placement)>,
}

/// One operand, from how it lies along an axis to how it should.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Its name.
    pub operand: String,
    /// The axis.
    pub axis: String,
    /// How it lies.
    pub from: Placement,
    /// How it should.
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
            (from, to) => format!("bring `{operand}` from {from} to {to}"),
        }
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

/// The ways that operands can be brought to, the fewest elements moved first.
pub(super) fn cheapest(axis: &Axis<'_>, ways: &[Way]) -> Vec<Remedy> {
    let remedies = ways.iter().filter_map(|way| remedy(axis, way));
    let mut remedies: Vec<(u128, Remedy)> = remedies.collect();
    remedies.sort_by_key(|(cost, remedy)| (*cost, remedy.changes.len()));
    let remedies = remedies.into_iter().map(|(_, remedy)| remedy);
    remedies.take(NAMED).collect()
}

fn remedy(axis: &Axis<'_>, way: &Way) -> Option<(u128, Remedy)> {
    let (mut cost, mut changes) = (0u128, Vec::new());
    for at in (0..axis.given.len()).filter(|at| !axis.fits(way, *at)) {
        let (from, to) = (&axis.given[at], &way.operands[at]);
        let moved = u128::from(moved(from, to, axis.ranks)?);
        cost = sum(cost, moved, elements(&axis.bound.operands[at]));
        changes.push(Change {
            operand: axis.operand(at),
            axis: axis.name.to_owned(),
            from: from.clone(),
            to: to.clone(),
        });
    }
    for (placement, slots) in way.results.iter().zip(&axis.bound.results) {
        // Somebody has to add the parts up later.
        if let (Placement::Partial(_), Some(slots)) = (placement, slots) {
            cost = sum(cost, axis.ranks as u128, elements(slots));
        }
    }
    let names = axis
        .bound
        .rule
        .results
        .iter()
        .map(|result| result.name.clone());
    let results = names.zip(way.results.iter().cloned()).collect();
    Some((cost, Remedy { changes, results }))
}

/// What a rank receives of each element, in units of (n - 1) / n^2 with n ranks. Nothing makes
/// parts of what is whole.
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

fn elements(slots: &Slots) -> u128 {
    let extents = slots.iter().map(|slot| slot.extent as u128);
    extents.fold(1, u128::saturating_mul)
}
