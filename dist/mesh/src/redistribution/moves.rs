//! The moves of a plan: how one step can change placements.
//!
//! | move | before | after |
//! |---|---|---|
//! | slice | an axis replicates | it shards a dim as the innermost axis |
//! | make_partial | an axis replicates, or is the innermost of its dim | it is partial |
//! | all_gather | axes are the innermost of their dims | they replicate |
//! | all_to_all | axes are the innermost of their dims | the same, in other dims or another order |
//! | reduce_scatter | axes are partial | they shard dims as the innermost axes |
//! | all_reduce | axes are partial | they replicate |
//!
//! Only the innermost axes of a dim can move, because only then do the remaining axes hold
//! contiguous regions. A step can move any number of axes: their group acts as one axis.

use smallvec::SmallVec;

use crate::placements::{AxisShard, Geometry, Placements};
use crate::{Action, Division, ReduceOp, Reduction};

/// A step of a plan, with axes by index.
#[derive(Debug, Clone)]
pub(crate) struct Move {
    pub(crate) action: Action,
    /// Axes that shard a dim are in sharding order, outermost first; others as in the mesh.
    pub(crate) axes: SmallVec<[usize; 4]>,
    pub(crate) to: Placements,
}

/// Which moves a search tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    All,
    /// Those after which each axis that moved replicates or has its target placement. A reduction
    /// may also scatter axes that replicate in the target, to gather them later.
    Direct,
}

/// Generates the moves of a search.
pub(crate) struct Moves<'a> {
    geometry: Geometry<'a>,
    target: &'a Placements,
    /// Axes whose placement or outer shards differ in the target.
    movable: Vec<usize>,
    /// The shards that these axes may create.
    options: Vec<AxisShard>,
    /// An unsharded dim for intermediate steps of direct moves.
    spare: Option<usize>,
    scope: Scope,
}

impl<'a> Moves<'a> {
    pub(crate) fn new(
        geometry: Geometry<'a>,
        from: &Placements,
        to: &'a Placements,
        scope: Scope,
    ) -> Moves<'a> {
        let axes = 0..geometry.axis_sizes.len();
        let movable: Vec<usize> = axes.filter(|axis| !is_settled(*axis, from, to)).collect();
        let dims = dims(from, to, &movable);
        let spare = spare_dim(geometry, &movable, &dims);
        let options = match scope {
            Scope::All => options(from, to, &movable, dims.into_iter().chain(spare).collect()),
            Scope::Direct => to.shards().to_vec(),
        };
        Moves { geometry, target: to, movable, options, spare, scope }
    }

    /// The number of axes that may move.
    pub(crate) fn axes(&self) -> usize {
        self.movable.len()
    }

    /// All moves from a state.
    pub(crate) fn from(&self, state: &Placements) -> Vec<Move> {
        let mut moves = Vec::new();
        self.local(state, &mut moves);
        self.reductions(state, &mut moves);
        for inner in self.innermost(state) {
            self.exchanges(state, &inner, &mut moves);
            let to = without(state, &inner);
            moves.push(Move { action: Action::AllGather, axes: inner, to });
        }
        moves
    }

    fn local(&self, state: &Placements, moves: &mut Vec<Move>) {
        for shard in &self.options {
            let mut to = state.clone();
            if state.is_replicated(shard.axis)
                && to.push(shard.clone(), self.geometry).is_ok()
                && (self.scope == Scope::All || self.is_at_target(&to, shard.axis))
            {
                moves.push(Move {
                    action: Action::Slice,
                    axes: SmallVec::from_slice(&[shard.axis]),
                    to,
                });
            }
        }
        let partial = |axis: &usize| make_partial(state, *axis, self.target, self.geometry);
        moves.extend(self.movable.iter().filter_map(partial));
    }

    fn reductions(&self, state: &Placements, moves: &mut Vec<Move>) {
        let partial: Vec<usize> =
            self.movable.iter().copied().filter(|axis| state.reduction(*axis).is_some()).collect();
        for chosen in subsets(&partial) {
            moves.push(all_reduce(state, &chosen, self.geometry));
            let reduced = without(state, &chosen);
            for to in self.inside(&reduced, &chosen, self.spare) {
                moves.push(Move {
                    action: Action::ReduceScatter(reduce_op(state, &chosen, self.geometry)),
                    axes: shard_order(&to, &chosen),
                    to,
                });
            }
        }
    }

    /// The all_to_alls of some innermost axes. Moves that leave one of them unchanged are skipped:
    /// the same move exists without that axis, in smaller groups.
    fn exchanges(&self, state: &Placements, inner: &[usize], moves: &mut Vec<Move>) {
        let stays = |to: &Placements, axis: usize| {
            state.shard_on(axis) == to.shard_on(axis)
                && state.outer_shards(axis) == to.outer_shards(axis)
        };
        for to in self.inside(&without(state, inner), inner, None) {
            if !inner.iter().any(|axis| stays(&to, *axis)) {
                moves.push(Move { action: Action::AllToAll, axes: shard_order(state, inner), to });
            }
        }
    }

    /// All nonempty sets of movable axes that are the innermost of their dims.
    fn innermost(&self, state: &Placements) -> Vec<SmallVec<[usize; 4]>> {
        let mut choices: Vec<SmallVec<[usize; 4]>> = vec![SmallVec::new()];
        for dim in 0..self.geometry.shape.len() {
            let axes: Vec<usize> = state.shards_of(dim).iter().map(|shard| shard.axis).collect();
            let movable = axes.iter().rev().take_while(|axis| self.movable.contains(axis));
            let first = axes.len() - movable.count();
            let tails = (first..=axes.len()).map(|at| &axes[at..]);
            choices = tails
                .flat_map(|tail| {
                    choices.iter().map(move |choice| {
                        let mut longer = choice.clone();
                        longer.extend_from_slice(tail);
                        longer
                    })
                })
                .collect();
        }
        choices.retain(|choice| !choice.is_empty());
        choices
    }

    /// The placements in which these axes shard dims inside the existing shards. Direct moves give
    /// `spare` to axes that shard nothing in the target.
    fn inside(&self, base: &Placements, axes: &[usize], spare: Option<usize>) -> Vec<Placements> {
        if self.scope == Scope::Direct {
            return self.target_shards(base, axes, spare).into_iter().collect();
        }
        let mut shards: Vec<Vec<AxisShard>> = vec![Vec::new()];
        for axis in axes {
            let options = self.options.iter().filter(|shard| shard.axis == *axis);
            shards = options
                .flat_map(|option| shards.iter().flat_map(move |shards| inserted(shards, option)))
                .collect();
        }
        let pushed = |shards: Vec<AxisShard>| {
            let mut to = base.clone();
            let mut shards = shards.into_iter();
            shards.all(|shard| to.push(shard, self.geometry).is_ok()).then_some(to)
        };
        shards.into_iter().filter_map(pushed).collect()
    }
}

/// The moves of [`Scope::Direct`].
impl Moves<'_> {
    /// The placements in which these axes have their target shards.
    fn target_shards(
        &self,
        base: &Placements,
        axes: &[usize],
        spare: Option<usize>,
    ) -> Option<Placements> {
        let mut to = base.clone();
        let shards = self.target.shards().iter();
        for shard in shards.filter(|shard| axes.contains(&shard.axis)) {
            to.push(shard.clone(), self.geometry).ok()?;
            if !self.is_at_target(&to, shard.axis) {
                return None;
            }
        }
        for axis in axes {
            if self.target.shard_on(*axis).is_none() {
                to.push(even(*axis, spare?), self.geometry).ok()?;
            }
        }
        Some(to)
    }

    /// Whether an axis has its target shard, inside the target's outer shards.
    fn is_at_target(&self, state: &Placements, axis: usize) -> bool {
        state.outer_shards(axis) == self.target.outer_shards(axis)
    }
}

/// The lists with one more shard, at each position within its dim. The list stays sorted by dim, so
/// each result occurs once.
fn inserted(shards: &[AxisShard], shard: &AxisShard) -> Vec<Vec<AxisShard>> {
    let begin = shards.partition_point(|other| other.dim < shard.dim);
    let end = shards.partition_point(|other| other.dim <= shard.dim);
    let at = |position: usize| {
        let mut longer = shards.to_vec();
        longer.insert(position, shard.clone());
        longer
    };
    (begin..=end).map(at).collect()
}

/// Whether an axis has its target placement and outer shards.
fn is_settled(axis: usize, from: &Placements, to: &Placements) -> bool {
    from.placement(axis) == to.placement(axis) && from.outer_shards(axis) == to.outer_shards(axis)
}

/// The dims that these axes shard before or after.
fn dims(from: &Placements, to: &Placements, movable: &[usize]) -> Vec<usize> {
    let shards = from.shards().iter().chain(to.shards());
    let moved = shards.filter(|shard| movable.contains(&shard.axis));
    let mut dims: Vec<usize> = moved.map(|shard| shard.dim).collect();
    dims.sort_unstable();
    dims.dedup();
    dims
}

/// The even shards of `dims`, in ascending order, and those of source and target.
fn options(
    from: &Placements,
    to: &Placements,
    movable: &[usize],
    mut dims: Vec<usize>,
) -> Vec<AxisShard> {
    dims.sort_unstable();
    let evens = movable.iter().flat_map(|axis| dims.iter().map(move |dim| even(*axis, *dim)));
    let mut options: Vec<AxisShard> = evens.collect();
    for shard in from.shards().iter().chain(to.shards()) {
        if movable.contains(&shard.axis) && !options.contains(shard) {
            options.push(shard.clone());
        }
    }
    options
}

fn even(axis: usize, dim: usize) -> AxisShard {
    AxisShard { dim, axis, division: Division::Even }
}

/// An unsharded dim for intermediate steps, such as a reduce_scatter followed by an all_gather.
/// Prefers dims that divide evenly, then the longest.
fn spare_dim(geometry: Geometry, movable: &[usize], shard: &[usize]) -> Option<usize> {
    let ranks: usize = movable.iter().map(|axis| geometry.axis_sizes[*axis]).product();
    let spare = |dim: &usize| geometry.shape[*dim] >= ranks && !shard.contains(dim);
    let worth = |dim: &usize| (geometry.shape[*dim].is_multiple_of(ranks), geometry.shape[*dim]);
    let dims = 0..geometry.shape.len();
    dims.filter(spare).max_by_key(worth)
}

/// All nonempty subsets.
fn subsets(axes: &[usize]) -> Vec<SmallVec<[usize; 4]>> {
    let chosen = |mask: u32| {
        let members = axes.iter().enumerate().filter(|(at, _)| mask >> at & 1 == 1);
        members.map(|(_, axis)| *axis).collect()
    };
    (1..1u32 << axes.len()).map(chosen).collect()
}

/// The placements with these axes replicated.
fn without(state: &Placements, axes: &[usize]) -> Placements {
    let mut bare = state.clone();
    for axis in axes {
        bare.remove(*axis);
        bare.reduce(*axis);
    }
    bare
}

/// The axes in sharding order: by dim, outermost first.
fn shard_order(state: &Placements, axes: &[usize]) -> SmallVec<[usize; 4]> {
    let shards = state.shards().iter().map(|shard| shard.axis);
    shards.filter(|axis| axes.contains(axis)).collect()
}

/// Gathers the shards of one axis, which must be the innermost of its dim.
pub(crate) fn all_gather(state: &Placements, axis: usize) -> Move {
    Move {
        action: Action::AllGather,
        axes: SmallVec::from_slice(&[axis]),
        to: without(state, &[axis]),
    }
}

/// Reduces partial axes, which become replicated.
pub(crate) fn all_reduce(state: &Placements, axes: &[usize], geometry: Geometry) -> Move {
    Move {
        action: Action::AllReduce(reduce_op(state, axes, geometry)),
        axes: axes.into(),
        to: without(state, axes),
    }
}

/// Makes an axis shard a dim inside the existing shards, from any placement. `None` if the division
/// does not fit.
pub(crate) fn make_shard(
    state: &Placements,
    shard: &AxisShard,
    geometry: Geometry,
) -> Option<Move> {
    let mut to = without(state, &[shard.axis]);
    to.push(shard.clone(), geometry).ok()?;
    let action = match (state.shard_on(shard.axis), state.reduction(shard.axis)) {
        (Some(_), _) => Action::AllToAll,
        (None, Some(_)) => Action::ReduceScatter(reduce_op(state, &[shard.axis], geometry)),
        (None, None) => Action::Slice,
    };
    Some(Move { action, axes: SmallVec::from_slice(&[shard.axis]), to })
}

/// Makes an axis partial locally, if the target requires it.
pub(crate) fn make_partial(
    state: &Placements,
    axis: usize,
    target: &Placements,
    geometry: Geometry,
) -> Option<Move> {
    let reduction = target.reduction(axis)?;
    if state.reduction(axis).is_some() || state.conflict(reduction).is_some() {
        return None;
    }
    if let Some(shard) = state.shard_on(axis) {
        let innermost = state.shards_of(shard.dim).last() == Some(shard);
        if !innermost || reduction != Reduction::Sum {
            return None;
        }
    }
    let mut to = without(state, &[axis]);
    to.make_partial(axis, reduction, geometry);
    Some(Move { action: Action::MakePartial(reduction), axes: SmallVec::from_slice(&[axis]), to })
}

/// The reduction over these axes: a mean is a sum with a divisor.
fn reduce_op(state: &Placements, axes: &[usize], geometry: Geometry) -> ReduceOp {
    let mut reduce_op = ReduceOp { reduction: Reduction::Sum, divisor: 1 };
    for axis in axes {
        match state.reduction(*axis) {
            Some(Reduction::Avg) => reduce_op.divisor *= geometry.axis_sizes[*axis],
            Some(reduction) => reduce_op.reduction = reduction,
            None => {}
        }
    }
    reduce_op
}
