//! What one step can do to an placements.
//!
//! | move | before | after |
//! |---|---|---|
//! | slice | an axis replicates | it shards a dim, inside of all that do |
//! | make_partial | an axis replicates, or is the innermost of its dim | it holds parts |
//! | all_gather | axes are the innermost of their dims | they replicate |
//! | all_to_all | axes are the innermost of their dims | again, in other dims or another order |
//! | reduce_scatter | axes hold parts | they shard dims, inside of all that do |
//! | all_reduce | axes hold parts | they replicate |
//!
//! Only the innermost axes of a dim can leave it, since what the others shard are whole boxes without
//! them. Any number of axes moves at once: as a group they are one axis.

use smallvec::SmallVec;

use crate::placements::{AxisShard, Geometry, Placements};
use crate::{Action, Division, ReduceOp, Reduction};

/// A step of a plan, before it has names.
#[derive(Debug, Clone)]
pub(crate) struct Move {
    pub(crate) action: Action,
    /// In the order in which they shard, the outermost first; else as in the mesh.
    pub(crate) axes: SmallVec<[usize; 4]>,
    pub(crate) to: Placements,
}

/// The moves of a search: which axes may take part, and what they may shard.
pub(crate) struct Moves<'a> {
    geometry: Geometry<'a>,
    target: &'a Placements,
    /// Axes that lie otherwise in the target, or under other shards.
    movable: Vec<usize>,
    /// Every shard that one of them may make.
    options: Vec<AxisShard>,
}

impl<'a> Moves<'a> {
    pub(crate) fn new(geometry: Geometry<'a>, from: &Placements, to: &'a Placements) -> Moves<'a> {
        let axes = 0..geometry.axis_sizes.len();
        let movable: Vec<usize> = axes.filter(|axis| !is_settled(*axis, from, to)).collect();
        let options = options(geometry, from, to, &movable);
        Moves {
            geometry,
            target: to,
            movable,
            options,
        }
    }

    /// How many axes may take part.
    pub(crate) fn axes(&self) -> usize {
        self.movable.len()
    }

    /// Everything that one step can do.
    pub(crate) fn from(&self, state: &Placements) -> Vec<Move> {
        let mut moves = Vec::new();
        self.local(state, &mut moves);
        self.reductions(state, &mut moves);
        for inner in self.innermost(state) {
            self.exchanges(state, &inner, &mut moves);
            let to = without(state, &inner);
            moves.push(Move {
                action: Action::AllGather,
                axes: inner,
                to,
            });
        }
        moves
    }

    fn local(&self, state: &Placements, moves: &mut Vec<Move>) {
        for shard in &self.options {
            let mut to = state.clone();
            if state.is_replicated(shard.axis) && to.push(shard.clone(), self.geometry).is_ok() {
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
        let partial: Vec<usize> = self
            .movable
            .iter()
            .copied()
            .filter(|axis| state.reduction(*axis).is_some())
            .collect();
        for chosen in subsets(&partial) {
            moves.push(all_reduce(state, &chosen, self.geometry));
            let reduced = without(state, &chosen);
            for to in self.inside(&reduced, &chosen) {
                moves.push(Move {
                    action: Action::ReduceScatter(reduce_op(state, &chosen, self.geometry)),
                    axes: shard_order(&to, &chosen),
                    to,
                });
            }
        }
    }

    /// Ways to exchange what the innermost axes shard. Those that leave an axis in its place are left
    /// out: the same happens in smaller groups without it.
    fn exchanges(&self, state: &Placements, inner: &[usize], moves: &mut Vec<Move>) {
        let stays = |to: &Placements, axis: usize| {
            state.shard_on(axis) == to.shard_on(axis)
                && state.outer_shards(axis) == to.outer_shards(axis)
        };
        for to in self.inside(&without(state, inner), inner) {
            if !inner.iter().any(|axis| stays(&to, *axis)) {
                moves.push(Move {
                    action: Action::AllToAll,
                    axes: shard_order(state, inner),
                    to,
                });
            }
        }
    }

    /// All choices of movable axes that are the innermost of their dims, at least one.
    fn innermost(&self, state: &Placements) -> Vec<SmallVec<[usize; 4]>> {
        let mut choices: Vec<SmallVec<[usize; 4]>> = vec![SmallVec::new()];
        for dim in 0..self.geometry.shape.len() {
            let axes: Vec<usize> = state
                .shards_of(dim)
                .iter()
                .map(|shard| shard.axis)
                .collect();
            let movable = axes
                .iter()
                .rev()
                .take_while(|axis| self.movable.contains(axis));
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

    /// All ways for these axes to shard dims inside of what shards them already.
    fn inside(&self, base: &Placements, axes: &[usize]) -> Vec<Placements> {
        let mut shards: Vec<Vec<AxisShard>> = vec![Vec::new()];
        for axis in axes {
            let options = self.options.iter().filter(|shard| shard.axis == *axis);
            shards = options
                .flat_map(|option| {
                    shards
                        .iter()
                        .flat_map(move |shards| inserted(shards, option))
                })
                .collect();
        }
        let pushed = |shards: Vec<AxisShard>| {
            let mut to = base.clone();
            let mut shards = shards.into_iter();
            shards
                .all(|shard| to.push(shard, self.geometry).is_ok())
                .then_some(to)
        };
        shards.into_iter().filter_map(pushed).collect()
    }
}

/// With one shard more at every place among those of its dim. The list is sorted by dim, so every way
/// is made once.
fn inserted(shards: &[AxisShard], shard: &AxisShard) -> Vec<Vec<AxisShard>> {
    let begin = shards.partition_point(|other| other.dim < shard.dim);
    let end = shards.partition_point(|other| other.dim <= shard.dim);
    let at = |place: usize| {
        let mut longer = shards.to_vec();
        longer.insert(place, shard.clone());
        longer
    };
    (begin..=end).map(at).collect()
}

/// Whether an axis lies in the target as it does now, under the same shards.
fn is_settled(axis: usize, from: &Placements, to: &Placements) -> bool {
    from.placement(axis) == to.placement(axis) && from.outer_shards(axis) == to.outer_shards(axis)
}

fn options(
    geometry: Geometry,
    from: &Placements,
    to: &Placements,
    movable: &[usize],
) -> Vec<AxisShard> {
    let made = || from.shards().iter().chain(to.shards());
    let made = || made().filter(|shard| movable.contains(&shard.axis));
    let mut dims: Vec<usize> = made().map(|shard| shard.dim).collect();
    dims.extend(spare_dim(geometry, movable, &dims));
    dims.sort_unstable();
    dims.dedup();

    let even = |axis: usize, dim: usize| AxisShard {
        dim,
        axis,
        division: Division::Even,
    };
    let evens = movable
        .iter()
        .flat_map(|axis| dims.iter().map(move |dim| even(*axis, *dim)));
    let mut options: Vec<AxisShard> = evens.collect();
    for shard in made() {
        if !options.contains(shard) {
            options.push(shard.clone());
        }
    }
    options
}

/// A dim that is not shard yet, to lie along on the way: to reduce in shards what is gathered again,
/// or to halve what is sent. One that divides, the longest of those.
fn spare_dim(geometry: Geometry, movable: &[usize], shard: &[usize]) -> Option<usize> {
    let ranks: usize = movable
        .iter()
        .map(|axis| geometry.axis_sizes[*axis])
        .product();
    let spare = |dim: &usize| geometry.shape[*dim] >= ranks && !shard.contains(dim);
    let worth = |dim: &usize| {
        (
            geometry.shape[*dim].is_multiple_of(ranks),
            geometry.shape[*dim],
        )
    };
    let dims = 0..geometry.shape.len();
    dims.filter(spare).max_by_key(worth)
}

/// All choices of at least one.
fn subsets(axes: &[usize]) -> Vec<SmallVec<[usize; 4]>> {
    let chosen = |mask: u32| {
        let members = axes
            .iter()
            .enumerate()
            .filter(|(at, _)| mask >> at & 1 == 1);
        members.map(|(_, axis)| *axis).collect()
    };
    (1..1u32 << axes.len()).map(chosen).collect()
}

/// These axes neither shard nor hold parts.
fn without(state: &Placements, axes: &[usize]) -> Placements {
    let mut bare = state.clone();
    for axis in axes {
        bare.remove(*axis);
        bare.reduce(*axis);
    }
    bare
}

/// As they shard, by dim, the outermost first.
fn shard_order(state: &Placements, axes: &[usize]) -> SmallVec<[usize; 4]> {
    let shards = state.shards().iter().map(|shard| shard.axis);
    shards.filter(|axis| axes.contains(axis)).collect()
}

/// Gathers what one axis shards, which must be the innermost of its dim.
pub(crate) fn all_gather(state: &Placements, axis: usize) -> Move {
    Move {
        action: Action::AllGather,
        axes: SmallVec::from_slice(&[axis]),
        to: without(state, &[axis]),
    }
}

/// Reduces what axes hold parts of; they replicate then.
pub(crate) fn all_reduce(state: &Placements, axes: &[usize], geometry: Geometry) -> Move {
    Move {
        action: Action::AllReduce(reduce_op(state, axes, geometry)),
        axes: axes.into(),
        to: without(state, axes),
    }
}

/// Lets an axis make a shard, inside of those that its dim has, whatever the axis did before. None
/// where the sizes of the shard do not fit.
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
    Some(Move {
        action,
        axes: SmallVec::from_slice(&[shard.axis]),
        to,
    })
}

/// Lets an axis hold parts, where the target asks for that and nobody has to be told.
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
    Some(Move {
        action: Action::MakePartial(reduction),
        axes: SmallVec::from_slice(&[axis]),
        to,
    })
}

/// One reduction of all that these axes hold: a mean is a sum, divided.
fn reduce_op(state: &Placements, axes: &[usize], geometry: Geometry) -> ReduceOp {
    let mut reduce_op = ReduceOp {
        reduction: Reduction::Sum,
        divisor: 1,
    };
    for axis in axes {
        match state.reduction(*axis) {
            Some(Reduction::Avg) => reduce_op.divisor *= geometry.axis_sizes[*axis],
            Some(reduction) => reduce_op.reduction = reduction,
            None => {}
        }
    }
    reduce_op
}
