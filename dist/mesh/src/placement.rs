//! Placements: how a tensor is distributed along one mesh axis.

use std::fmt;
use std::sync::Arc;

use crate::Division;

/// How a tensor is distributed along one mesh axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Every rank holds the whole tensor.
    Replicate,
    /// Each rank holds a shard along a dim.
    Shard(usize, Division),
    /// Each rank holds partial values of the whole shape; reducing them over the axis gives the
    /// tensor.
    Partial(Reduction),
}

impl Placement {
    /// Shards `dim` evenly, as `torch.chunk` does.
    pub fn shard(dim: usize) -> Placement {
        Placement::Shard(dim, Division::Even)
    }

    /// Shards `dim` into these sizes, one per rank.
    pub fn ragged(dim: usize, sizes: impl Into<Arc<[usize]>>) -> Placement {
        Placement::Shard(dim, Division::Ragged(sizes.into()))
    }

    /// Shards `dim` so that each rank has a range from the front and one from the back:
    /// [`Division::HeadAndTail`], for sequences under a causal mask.
    pub fn head_and_tail(dim: usize) -> Placement {
        Placement::Shard(dim, Division::HeadAndTail)
    }

    /// Shards each block of `length` indices of `dim` evenly: of a fused weight [2 F, H], each half
    /// if `length` is F; of merged dims [b t], each sequence if `length` is the extent of t.
    pub fn in_blocks(dim: usize, length: usize) -> Placement {
        Placement::Shard(dim, Division::in_blocks(length, Division::Even))
    }

    /// The sharded dim; `None` if the placement is not a shard.
    pub fn dim(&self) -> Option<usize> {
        match self {
            Placement::Shard(dim, _) => Some(*dim),
            Placement::Replicate | Placement::Partial(_) => None,
        }
    }
}

/// `replicate`, `shard(0)`, `shard(0: 3 + 5)`, `partial(sum)`.
impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Placement::Replicate => f.write_str("replicate"),
            Placement::Shard(dim, Division::Even) => write!(f, "shard({dim})"),
            Placement::Shard(dim, division) => write!(f, "shard({dim}: {division})"),
            Placement::Partial(reduction) => write!(f, "partial({reduction})"),
        }
    }
}

/// The operation that combines partial values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Reduction {
    /// The sum.
    Sum,
    /// The maximum.
    Max,
    /// The mean.
    Avg,
}

/// `sum`, `max`, `avg`.
impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reduction::Sum => "sum",
            Reduction::Max => "max",
            Reduction::Avg => "avg",
        })
    }
}
