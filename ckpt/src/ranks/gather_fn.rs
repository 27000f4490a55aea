//! Ranks over any exchange of bytes.

use std::fmt;

use super::{Cause, Ranks};

/// [`Ranks`] whose messages a function gathers: the adapter for a control plane, such as an exchange
/// between processes. Its deadline must allow for the time in which a rank writes its shards.
///
/// ```
/// use meshgrad_ckpt::ranks::{GatherFn, Ranks};
///
/// // A world of one rank.
/// let mut ranks = GatherFn::new(0, 1, |mine| Ok(vec![mine.to_vec()]));
/// assert_eq!(ranks.all_gather(b"hello").unwrap(), [b"hello"]);
/// ```
pub struct GatherFn<F> {
    rank: usize,
    world_size: usize,
    gather: F,
}

impl<F: FnMut(&[u8]) -> Result<Vec<Vec<u8>>, Cause>> GatherFn<F> {
    /// Rank `rank` of `world_size`. `gather` is [`Ranks::all_gather`].
    pub fn new(rank: usize, world_size: usize, gather: F) -> GatherFn<F> {
        GatherFn {
            rank,
            world_size,
            gather,
        }
    }
}

impl<F> fmt::Debug for GatherFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GatherFn(rank {} of {})", self.rank, self.world_size)
    }
}

impl<F: FnMut(&[u8]) -> Result<Vec<Vec<u8>>, Cause>> Ranks for GatherFn<F> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world_size
    }

    fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Cause> {
        (self.gather)(mine)
    }
}
