//! The mapping between positions of a mesh and ranks.

use meshgrad_error::{Result, bail};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// Ranks by position. Shared by all meshes derived from one.
#[derive(Debug, Clone)]
pub(crate) enum RankMap {
    /// Position `p` holds rank `p`.
    Identity { len: usize },
    /// Any other mapping.
    Listed(Arc<Listed>),
}

#[derive(Debug)]
pub(crate) struct Listed {
    ranks: Vec<usize>,
    /// Pairs of rank and position, sorted by rank.
    positions: Vec<(usize, usize)>,
}

impl RankMap {
    /// The mapping of a list of distinct ranks.
    pub(crate) fn listed(ranks: &[usize]) -> Result<RankMap> {
        let mut positions: Vec<(usize, usize)> =
            ranks.iter().enumerate().map(|(position, rank)| (*rank, position)).collect();
        positions.sort_unstable();

        let twice = positions.windows(2).find(|pair| pair[0].0 == pair[1].0);
        if let Some([(rank, first), (_, second)]) = twice {
            bail!(
                Invalid,
                "rank {rank} is at position {first} and again at position {second} of the mesh: \
                 list each rank once"
            );
        }
        if ranks.iter().enumerate().all(|(at, rank)| at == *rank) {
            return Ok(RankMap::Identity { len: ranks.len() });
        }
        Ok(RankMap::Listed(Arc::new(Listed { ranks: ranks.to_vec(), positions })))
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            RankMap::Identity { len } => *len,
            RankMap::Listed(listed) => listed.ranks.len(),
        }
    }

    pub(crate) fn rank(&self, position: usize) -> usize {
        match self {
            RankMap::Identity { .. } => position,
            RankMap::Listed(listed) => listed.ranks[position],
        }
    }

    pub(crate) fn position(&self, rank: usize) -> Option<usize> {
        match self {
            RankMap::Identity { len } => (rank < *len).then_some(rank),
            RankMap::Listed(listed) => {
                let by_rank = |entry: &(usize, usize)| entry.0.cmp(&rank);
                let found = listed.positions.binary_search_by(by_rank).ok()?;
                Some(listed.positions[found].1)
            }
        }
    }
}

impl PartialEq for RankMap {
    fn eq(&self, other: &RankMap) -> bool {
        match (self, other) {
            (RankMap::Identity { len }, RankMap::Identity { len: other }) => len == other,
            (RankMap::Listed(one), RankMap::Listed(other)) => {
                Arc::ptr_eq(one, other) || one.ranks == other.ranks
            }
            _ => false,
        }
    }
}

impl Eq for RankMap {}

impl Hash for RankMap {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            RankMap::Identity { len } => len.hash(state),
            RankMap::Listed(listed) => listed.ranks.hash(state),
        }
    }
}
