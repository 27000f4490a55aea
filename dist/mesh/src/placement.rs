//! Placements: how a tensor is distributed along one mesh axis.

use std::fmt;
use std::sync::Arc;

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

/// The sizes of the shards of a dim.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Division {
    /// ceil(extent / ranks) each; the last ones are shorter or empty, as in `torch.chunk`.
    Even,
    /// These sizes, one per rank.
    Ragged(Arc<[usize]>),
}

/// `even`, `3 + 5`.
impl fmt::Display for Division {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Division::Even => f.write_str("even"),
            Division::Ragged(sizes) => {
                let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
                f.write_str(&sizes.join(" + "))
            }
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
