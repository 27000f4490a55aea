//! Redistribution plans: the collectives that convert one sharding into another.
//!
//! A plan is a value, and equal on all ranks. Each step states its action, its axes and the
//! shardings before and after; the regions of these determine what each rank sends. Ops never
//! redistribute implicitly, so a plan can be printed and its traffic counted before anything is
//! sent.

mod action;
mod axis_by_axis;
mod cost;
mod moves;
mod search;

use std::fmt;
use std::sync::Arc;

pub use action::{Action, ReduceOp};
pub use cost::{Link, LinkCosts, Traffic};

use meshgrad_error::{Result, bail, ensure};

use crate::placements::Placements;
use crate::{Group, Hosts, Sharding};
use cost::CostModel;
use moves::Move;

/// A plan that converts one sharding into another.
///
/// ```
/// use meshgrad_mesh::{Hosts, LinkCosts, Mesh, Placement, Redistribution, Reduction, Sharding};
///
/// let mesh = Mesh::new(&[2, 4], &["dp", "tp"])?;
/// let partial = Placement::Partial(Reduction::Sum);
/// let from = Sharding::new(&mesh, [("dp", Placement::shard(0)), ("tp", partial)], &[64, 32])?;
/// let columns = Placement::shard(1);
/// let to = Sharding::new(&mesh, [("dp", Placement::shard(0)), ("tp", columns)], &[64, 32])?;
///
/// let plan = Redistribution::plan(&from, &to, 32, &Hosts::uniform(8)?, &LinkCosts::default())?;
/// assert_eq!(
///     plan.to_string(),
///     "reduce_scatter(sum) over tp: dp: shard(0), tp: partial(sum) \
///      -> dp: shard(0), tp: shard(1) (3072 bytes)"
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redistribution {
    from: Sharding,
    to: Sharding,
    steps: Vec<Step>,
}

impl Redistribution {
    /// The fastest plan by the model of [`LinkCosts`] that sends no more than the axis-by-axis
    /// plan, which torch's DTensor uses by default. A step may combine any axes, because any set of
    /// axes defines groups.
    ///
    /// A plan makes a replicated axis partial only if the target is partial on that axis.
    ///
    /// If more than 4 axes change, the search does not try all plans: it tries the moves that lead
    /// to the target directly, and then improves parts of the best plan in which up to 4 axes move.
    /// A search that exceeds its budget returns the best plan found.
    ///
    /// # Errors
    /// When meshes, shapes, or the reductions of partial values differ.
    pub fn plan(
        from: &Sharding,
        to: &Sharding,
        element_bits: usize,
        hosts: &Hosts,
        links: &LinkCosts,
    ) -> Result<Redistribution> {
        check(from, to)?;
        let mut model = CostModel::new(from.geometry(), from.mesh(), hosts, links, element_bits);
        let (old, new) = (from.canonical(), to.canonical());
        let moves = search::plan(from.geometry(), old, new, &mut model);

        let mut steps: Vec<Step> = Vec::with_capacity(moves.len());
        for step in moves {
            let before = steps.last().map_or(from, |step| &step.to).clone();
            steps.push(Step::new(before, step, &mut model));
        }
        Ok(Redistribution { from: from.clone(), to: to.clone(), steps })
    }

    /// The source.
    pub fn from(&self) -> &Sharding {
        &self.from
    }

    /// The target.
    pub fn to(&self) -> &Sharding {
        &self.to
    }

    /// The steps, in order. Empty if source and target are equal.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The bytes of each step's busiest rank, summed over the steps.
    pub fn bytes(&self) -> u64 {
        self.steps.iter().map(|step| step.traffic.bytes()).sum()
    }

    /// The modeled time of all steps, in nanoseconds.
    pub fn ns(&self) -> u64 {
        self.steps.iter().map(|step| step.ns).sum()
    }
}

/// One line per step, or `nothing to do`.
impl fmt::Display for Redistribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.steps.is_empty() {
            return f.write_str("nothing to do");
        }
        let lines: Vec<String> = self.steps.iter().map(Step::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

/// One collective or local change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    action: Action,
    axes: Vec<Arc<str>>,
    from: Sharding,
    to: Sharding,
    traffic: Traffic,
    ns: u64,
}

impl Step {
    fn new(from: Sharding, step: Move, model: &mut CostModel) -> Step {
        let (traffic, ns) = model.cost(from.canonical(), &step);
        let name = |axis: &usize| from.axis_name(*axis).into();
        Step {
            action: step.action,
            axes: step.axes.iter().map(name).collect(),
            to: from.with_placements(step.to),
            from,
            traffic,
            ns,
        }
    }

    /// The action.
    pub fn action(&self) -> Action {
        self.action
    }

    /// The axes of the step's groups; the last one varies fastest. Axes that shard the same dim are
    /// in sharding order.
    pub fn axes(&self) -> impl ExactSizeIterator<Item = &str> {
        self.axes.iter().map(|axis| &**axis)
    }

    /// The group of a rank in this step; `None` if the rank is not in the mesh.
    pub fn group(&self, rank: usize) -> Option<Group> {
        let group = self.from.mesh().group(&self.axes, rank);
        group.expect("axes of the mesh, each once")
    }

    /// The dims whose sharding changes.
    pub fn dims(&self) -> Vec<usize> {
        let (from, to) = (self.from.canonical(), self.to.canonical());
        let dims = 0..self.from.shape().len();
        dims.filter(|dim| from.shards_of(*dim) != to.shards_of(*dim)).collect()
    }

    /// The sharding before the step.
    pub fn from(&self) -> &Sharding {
        &self.from
    }

    /// The sharding after the step.
    pub fn to(&self) -> &Sharding {
        &self.to
    }

    /// The traffic of the busiest rank. Ring algorithms pad shards to the largest; an all_to_all is
    /// counted exactly.
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// The modeled time in nanoseconds.
    pub fn ns(&self) -> u64 {
        self.ns
    }
}

/// `all_gather over tp: dp: shard(0), tp: shard(0) -> dp: shard(0), tp: replicate (96 bytes)`.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axes = self.axes.join(", ");
        write!(f, "{} over {axes}: {} -> {}", self.action, self.from, self.to)?;
        match self.traffic.bytes() {
            0 => Ok(()),
            bytes => write!(f, " ({bytes} bytes)"),
        }
    }
}

fn check(from: &Sharding, to: &Sharding) -> Result<()> {
    let mesh = |sharding: &Sharding| {
        let ranks = crate::text::ranks(&sharding.mesh().ranks());
        format!("{} of ranks {ranks}", sharding.mesh())
    };
    ensure!(
        from.mesh() == to.mesh(),
        Invalid,
        "cannot redistribute from mesh {} to mesh {}: transfer it between the meshes, or state both \
         shardings on one mesh, from which these can be derived by select, split and flatten",
        mesh(from),
        mesh(to)
    );
    check_shapes(from, to)?;
    check_reductions(from, to.canonical())
}

pub(crate) fn check_shapes(from: &Sharding, to: &Sharding) -> Result<()> {
    let (from, to) = (from.shape(), to.shape());
    ensure!(
        from == to,
        Invalid,
        "cannot redistribute from shape {from:?} to {to:?}: reshape first"
    );
    Ok(())
}

fn check_reductions(from: &Sharding, to: &Placements) -> Result<()> {
    for (axis, held) in from.canonical().partials() {
        match to.reduction(*axis) {
            Some(target) if target != *held => {
                bail!(
                    Invalid,
                    "cannot redistribute axis `{}` from partial({held}) to partial({target}): \
                     redistribute to replicate or shard first",
                    from.axis_name(*axis)
                );
            }
            _ => {}
        }
    }
    Ok(())
}
