//! How a tensor lies along one axis of a mesh.

use std::fmt;
use std::sync::Arc;

/// How a tensor lies along one mesh axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Every rank has all of it.
    Replicate,
    /// Cut along a dim.
    Shard(usize, Division),
    /// Every rank has a part of a sum, maximum or mean, of the whole shape.
    Partial(Reduction),
}

impl Placement {
    /// Cut along `dim` as evenly as `torch.chunk` does.
    pub fn shard(dim: usize) -> Placement {
        Placement::Shard(dim, Division::Even)
    }

    /// Cut along `dim`, so many to each rank.
    pub fn ragged(dim: usize, sizes: impl Into<Arc<[usize]>>) -> Placement {
        Placement::Shard(dim, Division::Ragged(sizes.into()))
    }

    /// The dim that it cuts, if it cuts one.
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

/// How a dim is cut.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Division {
    /// ceil(extent / ranks) each, the last ones shorter or empty, as `torch.chunk`.
    Even,
    /// So many to each rank.
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

/// What makes one value of many parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Reduction {
    /// The parts add up.
    Sum,
    /// The largest counts.
    Max,
    /// The parts add up, divided by how many there are.
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
