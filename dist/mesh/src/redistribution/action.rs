//! The actions of steps: collectives and local changes.

use std::fmt;

use crate::Reduction;

/// What a step does. [`Step::from`](crate::Step::from) and [`Step::to`](crate::Step::to) give the
/// regions of ranks before and after.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Action {
    /// Local: each rank keeps a part of its region.
    Slice,
    /// Local: the value becomes partial. For a sum of a replicated value, the first rank of the
    /// group keeps it and the others use zeros. For a sum of a sharded value, each rank pads its
    /// region with zeros. For a maximum or mean, all ranks keep the value.
    MakePartial(Reduction),
    /// Each rank receives the regions of all ranks of the group.
    AllGather,
    /// Each rank receives the parts of its new region from the other ranks of the group. No element
    /// is on two ranks of the group, before or after.
    AllToAll,
    /// Reduces the partial values of the group; each rank receives its new region.
    ReduceScatter(ReduceOp),
    /// Reduces the partial values of the group; each rank receives the whole result.
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

/// The reduction of a collective. Over several axes, some of which hold means, it is a sum divided
/// by the number of ranks on the axes with means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReduceOp {
    /// [`Reduction::Sum`] or [`Reduction::Max`].
    pub reduction: Reduction,
    /// The divisor of the result; 1 except for means.
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
