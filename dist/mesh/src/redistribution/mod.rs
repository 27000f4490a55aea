//! From one place to another: which collectives, in which order, and what they send.
//!
//! A plan is a value, equal on all ranks: every step says what is done along which axes and where
//! the tensor is before and after, so that whoever carries it out needs nothing but the boxes of
//! the two places. Nothing is hidden in an op: a transition happens where somebody asked for it,
//! and its plan can be printed and counted before the first byte is sent.

mod axis_by_axis;
mod cost;
mod moves;
mod search;

use std::fmt;
use std::sync::Arc;

pub use cost::{Link, LinkCosts, Traffic};

use crate::placements::Placements;
use crate::{Group, Hosts, Reduction, Sharding, ShardingError};
use cost::CostModel;
use moves::Move;

/// The steps that lead from one place to another.
///
/// ```
/// use meshgrad_mesh::{Hosts, LinkCosts, Mesh, Sharding, Placement, Reduction, Redistribution};
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
    /// The quickest plan by the model of [`LinkCosts`] among those that send no more than going
    /// axis by axis would, which is what torch's DTensor does unless it is told otherwise. Groups
    /// along several axes cost nothing to have, so any axes move together.
    ///
    /// A partial target is a wish like others: what replicates becomes partial, locally. On the way
    /// a value is never made partial for another reason.
    ///
    /// With more than 4 axes to move the plan goes axis by axis; a search that grows too large
    /// gives the best that it has found.
    ///
    /// # Errors
    /// [`ShardingError::MeshMismatch`], [`ShardingError::ShapeMismatch`], [`ShardingError::ReductionMismatch`].
    pub fn plan(
        from: &Sharding,
        to: &Sharding,
        element_bits: usize,
        hosts: &Hosts,
        links: &LinkCosts,
    ) -> Result<Redistribution, ShardingError> {
        check(from, to)?;
        let mut model = CostModel::new(from.geometry(), from.mesh(), hosts, links, element_bits);
        let (old, new) = (from.canonical(), to.canonical());
        let moves = search::plan(from.geometry(), old, new, &mut model);

        let mut steps: Vec<Step> = Vec::with_capacity(moves.len());
        for step in moves {
            let before = steps.last().map_or(from, |step| &step.to).clone();
            steps.push(Step::new(before, step, &mut model));
        }
        Ok(Redistribution {
            from: from.clone(),
            to: to.clone(),
            steps,
        })
    }

    /// Where it begins.
    pub fn from(&self) -> &Sharding {
        &self.from
    }

    /// Where it leads.
    pub fn to(&self) -> &Sharding {
        &self.to
    }

    /// What is to be done, in order. None when both places are equal.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Bytes over all steps, of the rank that sends or receives the most in each.
    pub fn bytes(&self) -> u64 {
        self.steps.iter().map(|step| step.traffic.bytes()).sum()
    }

    /// Nanoseconds over all steps, by the model.
    pub fn ns(&self) -> u64 {
        self.steps.iter().map(|step| step.ns).sum()
    }
}

/// A line for each step; `nothing to do` without one.
impl fmt::Display for Redistribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.steps.is_empty() {
            return f.write_str("nothing to do");
        }
        let lines: Vec<String> = self.steps.iter().map(Step::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

/// One collective, or one local change.
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

    /// What is done.
    pub fn action(&self) -> Action {
        self.action
    }

    /// Along which axes, flattened to one: the last fastest. Pieces of a dim stand in this order.
    pub fn axes(&self) -> impl ExactSizeIterator<Item = &str> {
        self.axes.iter().map(|axis| &**axis)
    }

    /// The ranks that do it together with a rank; none when the rank is not in the mesh.
    pub fn group(&self, rank: usize) -> Option<Group> {
        let group = self.from.mesh().group(&self.axes, rank);
        group.expect("axes of the mesh, each once")
    }

    /// The dims that are shard otherwise after it.
    pub fn dims(&self) -> Vec<usize> {
        let (from, to) = (self.from.canonical(), self.to.canonical());
        let dims = 0..self.from.shape().len();
        dims.filter(|dim| from.shards_of(*dim) != to.shards_of(*dim))
            .collect()
    }

    /// Where the tensor is before.
    pub fn from(&self) -> &Sharding {
        &self.from
    }

    /// Where it is after.
    pub fn to(&self) -> &Sharding {
        &self.to
    }

    /// What the rank with the most to do sends and receives. Rings need equal shards, so shorter
    /// ones count as long as the largest, which they are padded to; an all_to_all is counted as it
    /// is.
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// Nanoseconds by the model.
    pub fn ns(&self) -> u64 {
        self.ns
    }
}

/// `all_gather over tp: dp: shard(0), tp: shard(0) -> dp: shard(0), tp: replicate (96 bytes)`.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axes = self.axes.join(", ");
        write!(
            f,
            "{} over {axes}: {} -> {}",
            self.action, self.from, self.to
        )?;
        match self.traffic.bytes() {
            0 => Ok(()),
            bytes => write!(f, " ({bytes} bytes)"),
        }
    }
}

/// What a step does. Boxes are those of [`Step::from`] and [`Step::to`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Action {
    /// Every rank keeps a part of what it has. Local.
    Slice,
    /// What all have becomes parts of it. Local. For a sum the first rank of the group keeps what
    /// it has and the others zeros, or, of what was shard, every rank its box and zeros around it;
    /// for a maximum or mean all keep it.
    MakePartial(Reduction),
    /// Every rank of the group gets the boxes of all.
    AllGather,
    /// Every rank of the group gets from each other what of its new box that one has. No element is
    /// on two ranks of the group, before or after.
    AllToAll,
    /// The parts of the group's ranks are reduced, and every rank gets its new box of that.
    ReduceScatter(ReduceOp),
    /// The parts of the group's ranks are reduced, and every rank gets all of that.
    AllReduce(ReduceOp),
}

/// `slice`, `make_partial(sum)`, `all_gather`, `all_reduce(sum / 4)`.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Slice => f.write_str("slice"),
            Action::MakePartial(reduction) => write!(f, "make_partial({reduction})"),
            Action::AllGather => f.write_str("all_gather"),
            Action::AllToAll => f.write_str("all_to_all"),
            Action::ReduceScatter(reduce_op) => write!(f, "reduce_scatter({reduce_op})"),
            Action::AllReduce(reduce_op) => write!(f, "all_reduce({reduce_op})"),
        }
    }
}

/// How parts become a value. Along several axes at once, some of which hold a mean, that is a sum
/// divided by the ranks of those.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReduceOp {
    /// [`Reduction::Sum`] or [`Reduction::Max`].
    pub reduction: Reduction,
    /// What the result is divided by; 1 but for means.
    pub divisor: usize,
}

/// `sum`, `max`, `sum / 4`.
impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.divisor {
            1 => write!(f, "{}", self.reduction),
            divisor => write!(f, "{} / {divisor}", self.reduction),
        }
    }
}

fn check(from: &Sharding, to: &Sharding) -> Result<(), ShardingError> {
    if from.mesh() != to.mesh() {
        let text = |place: &Sharding| {
            let ranks = crate::text::ranks(&place.mesh().ranks());
            format!("{} of ranks {ranks}", place.mesh())
        };
        return Err(ShardingError::MeshMismatch {
            from: text(from),
            to: text(to),
        });
    }
    if from.shape() != to.shape() {
        return Err(ShardingError::ShapeMismatch {
            from: from.shape().to_vec(),
            to: to.shape().to_vec(),
        });
    }
    check_reductions(from, to.canonical())
}

fn check_reductions(from: &Sharding, to: &Placements) -> Result<(), ShardingError> {
    for (axis, held) in from.canonical().partials() {
        match to.reduction(*axis) {
            Some(wanted) if wanted != *held => {
                return Err(ShardingError::ReductionMismatch {
                    axis: from.axis_name(*axis).to_owned(),
                    from: *held,
                    to: wanted,
                });
            }
            _ => {}
        }
    }
    Ok(())
}
