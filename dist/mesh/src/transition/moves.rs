//! What one step can do to an arrangement.
//!
//! | move | before | after |
//! |---|---|---|
//! | slice | an axis replicates | it cuts a dim, inside of all that do |
//! | make_partial | an axis replicates, or is the innermost of its dim | it holds parts |
//! | all_gather | axes are the innermost of their dims | they replicate |
//! | all_to_all | axes are the innermost of their dims | again, in other dims or another order |
//! | reduce_scatter | axes hold parts | they cut dims, inside of all that do |
//! | all_reduce | axes hold parts | they replicate |
//!
//! Only the innermost axes of a dim can leave it, since what the others cut are whole boxes without
//! them. Any number of axes moves at once: as a group they are one axis.

use smallvec::SmallVec;

use crate::arrangement::{Arrangement, Cut, Frame};
use crate::{Action, Combine, Division, Reduction};

/// A step of a plan, before it has names.
#[derive(Debug, Clone)]
pub(crate) struct Move {
    pub(crate) action: Action,
    /// In the order in which they cut, the outermost first; else as in the mesh.
    pub(crate) axes: SmallVec<[usize; 4]>,
    pub(crate) to: Arrangement,
}

/// The moves of a search: which axes may take part, and what they may cut.
pub(crate) struct Moves<'a> {
    frame: Frame<'a>,
    target: &'a Arrangement,
    /// Axes that lie otherwise in the target, or under other cuts.
    movable: Vec<usize>,
    /// Every cut that one of them may make.
    options: Vec<Cut>,
}

impl<'a> Moves<'a> {
    pub(crate) fn new(frame: Frame<'a>, from: &Arrangement, to: &'a Arrangement) -> Moves<'a> {
        let axes = 0..frame.sizes.len();
        let movable: Vec<usize> = axes.filter(|axis| !is_settled(*axis, from, to)).collect();
        let options = options(frame, from, to, &movable);
        Moves {
            frame,
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
    pub(crate) fn from(&self, state: &Arrangement) -> Vec<Move> {
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

    fn local(&self, state: &Arrangement, moves: &mut Vec<Move>) {
        for cut in &self.options {
            let mut to = state.clone();
            if state.is_replicated(cut.axis) && to.push(cut.clone(), self.frame).is_ok() {
                moves.push(Move {
                    action: Action::Slice,
                    axes: SmallVec::from_slice(&[cut.axis]),
                    to,
                });
            }
        }
        let partial = |axis: &usize| make_partial(state, *axis, self.target, self.frame);
        moves.extend(self.movable.iter().filter_map(partial));
    }

    fn reductions(&self, state: &Arrangement, moves: &mut Vec<Move>) {
        let partial: Vec<usize> = self
            .movable
            .iter()
            .copied()
            .filter(|axis| state.reduction(*axis).is_some())
            .collect();
        for chosen in subsets(&partial) {
            moves.push(all_reduce(state, &chosen, self.frame));
            let reduced = without(state, &chosen);
            for to in self.inside(&reduced, &chosen) {
                moves.push(Move {
                    action: Action::ReduceScatter(combine(state, &chosen, self.frame)),
                    axes: cutting_order(&to, &chosen),
                    to,
                });
            }
        }
    }

    /// Ways to exchange what the innermost axes cut. Those that leave an axis in its place are left
    /// out: the same happens in smaller groups without it.
    fn exchanges(&self, state: &Arrangement, inner: &[usize], moves: &mut Vec<Move>) {
        let stays = |to: &Arrangement, axis: usize| {
            state.cut_by(axis) == to.cut_by(axis) && state.outside_of(axis) == to.outside_of(axis)
        };
        for to in self.inside(&without(state, inner), inner) {
            if !inner.iter().any(|axis| stays(&to, *axis)) {
                moves.push(Move {
                    action: Action::AllToAll,
                    axes: cutting_order(state, inner),
                    to,
                });
            }
        }
    }

    /// All choices of movable axes that are the innermost of their dims, at least one.
    fn innermost(&self, state: &Arrangement) -> Vec<SmallVec<[usize; 4]>> {
        let mut choices: Vec<SmallVec<[usize; 4]>> = vec![SmallVec::new()];
        for dim in 0..self.frame.shape.len() {
            let axes: Vec<usize> = state.cuts_of(dim).iter().map(|cut| cut.axis).collect();
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

    /// All ways for these axes to cut dims inside of what cuts them already.
    fn inside(&self, base: &Arrangement, axes: &[usize]) -> Vec<Arrangement> {
        let mut cuts: Vec<Vec<Cut>> = vec![Vec::new()];
        for axis in axes {
            let options = self.options.iter().filter(|cut| cut.axis == *axis);
            cuts = options
                .flat_map(|option| cuts.iter().flat_map(move |cuts| inserted(cuts, option)))
                .collect();
        }
        let pushed = |cuts: Vec<Cut>| {
            let mut to = base.clone();
            let mut cuts = cuts.into_iter();
            cuts.all(|cut| to.push(cut, self.frame).is_ok())
                .then_some(to)
        };
        cuts.into_iter().filter_map(pushed).collect()
    }
}

/// With one cut more at every place among those of its dim. The list is sorted by dim, so every way
/// is made once.
fn inserted(cuts: &[Cut], cut: &Cut) -> Vec<Vec<Cut>> {
    let begin = cuts.partition_point(|other| other.dim < cut.dim);
    let end = cuts.partition_point(|other| other.dim <= cut.dim);
    let at = |place: usize| {
        let mut longer = cuts.to_vec();
        longer.insert(place, cut.clone());
        longer
    };
    (begin..=end).map(at).collect()
}

/// Whether an axis lies in the target as it does now, under the same cuts.
fn is_settled(axis: usize, from: &Arrangement, to: &Arrangement) -> bool {
    from.placement(axis) == to.placement(axis) && from.outside_of(axis) == to.outside_of(axis)
}

fn options(frame: Frame, from: &Arrangement, to: &Arrangement, movable: &[usize]) -> Vec<Cut> {
    let made = || from.cuts().iter().chain(to.cuts());
    let made = || made().filter(|cut| movable.contains(&cut.axis));
    let mut dims: Vec<usize> = made().map(|cut| cut.dim).collect();
    dims.extend(spare_dim(frame, movable, &dims));
    dims.sort_unstable();
    dims.dedup();

    let even = |axis: usize, dim: usize| Cut {
        dim,
        axis,
        division: Division::Even,
    };
    let evens = movable
        .iter()
        .flat_map(|axis| dims.iter().map(move |dim| even(*axis, *dim)));
    let mut options: Vec<Cut> = evens.collect();
    for cut in made() {
        if !options.contains(cut) {
            options.push(cut.clone());
        }
    }
    options
}

/// A dim that is not cut yet, to lie along on the way: to reduce in pieces what is gathered again,
/// or to halve what is sent. One that divides, the longest of those.
fn spare_dim(frame: Frame, movable: &[usize], cut: &[usize]) -> Option<usize> {
    let ranks: usize = movable.iter().map(|axis| frame.sizes[*axis]).product();
    let spare = |dim: &usize| frame.shape[*dim] >= ranks && !cut.contains(dim);
    let worth = |dim: &usize| (frame.shape[*dim].is_multiple_of(ranks), frame.shape[*dim]);
    let dims = 0..frame.shape.len();
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

/// These axes neither cut nor hold parts.
fn without(state: &Arrangement, axes: &[usize]) -> Arrangement {
    let mut bare = state.clone();
    for axis in axes {
        bare.remove(*axis);
        bare.reduce(*axis);
    }
    bare
}

/// As they cut, by dim, the outermost first.
fn cutting_order(state: &Arrangement, axes: &[usize]) -> SmallVec<[usize; 4]> {
    let cuts = state.cuts().iter().map(|cut| cut.axis);
    cuts.filter(|axis| axes.contains(axis)).collect()
}

/// Gathers what one axis cuts, which must be the innermost of its dim.
pub(crate) fn all_gather(state: &Arrangement, axis: usize) -> Move {
    Move {
        action: Action::AllGather,
        axes: SmallVec::from_slice(&[axis]),
        to: without(state, &[axis]),
    }
}

/// Reduces what axes hold parts of; they replicate then.
pub(crate) fn all_reduce(state: &Arrangement, axes: &[usize], frame: Frame) -> Move {
    Move {
        action: Action::AllReduce(combine(state, axes, frame)),
        axes: axes.into(),
        to: without(state, axes),
    }
}

/// Lets an axis make a cut, inside of those that its dim has, whatever the axis did before. None
/// where the sizes of the cut do not fit.
pub(crate) fn make_cut(state: &Arrangement, cut: &Cut, frame: Frame) -> Option<Move> {
    let mut to = without(state, &[cut.axis]);
    to.push(cut.clone(), frame).ok()?;
    let action = match (state.cut_by(cut.axis), state.reduction(cut.axis)) {
        (Some(_), _) => Action::AllToAll,
        (None, Some(_)) => Action::ReduceScatter(combine(state, &[cut.axis], frame)),
        (None, None) => Action::Slice,
    };
    Some(Move {
        action,
        axes: SmallVec::from_slice(&[cut.axis]),
        to,
    })
}

/// Lets an axis hold parts, where the target asks for that and nobody has to be told.
pub(crate) fn make_partial(
    state: &Arrangement,
    axis: usize,
    target: &Arrangement,
    frame: Frame,
) -> Option<Move> {
    let reduction = target.reduction(axis)?;
    if state.reduction(axis).is_some() || state.conflict(reduction).is_some() {
        return None;
    }
    if let Some(cut) = state.cut_by(axis) {
        let innermost = state.cuts_of(cut.dim).last() == Some(cut);
        if !innermost || reduction != Reduction::Sum {
            return None;
        }
    }
    let mut to = without(state, &[axis]);
    to.make_partial(axis, reduction, frame);
    Some(Move {
        action: Action::MakePartial(reduction),
        axes: SmallVec::from_slice(&[axis]),
        to,
    })
}

/// One reduction of all that these axes hold: a mean is a sum, divided.
fn combine(state: &Arrangement, axes: &[usize], frame: Frame) -> Combine {
    let mut combine = Combine {
        reduction: Reduction::Sum,
        divisor: 1,
    };
    for axis in axes {
        match state.reduction(*axis) {
            Some(Reduction::Avg) => combine.divisor *= frame.sizes[*axis],
            Some(reduction) => combine.reduction = reduction,
            None => {}
        }
    }
    combine
}
