//! The interface to communication, which other crates implement.

use std::cell::RefCell;
use std::sync::Arc;

use meshgrad_mesh::{Placement, Sharding, ShardingError};

use super::error::ShardedTensorError;
use crate::{Result, Tensor};

/// Changes the sharding of a rank's tensors. All ranks of the mesh make the same calls.
pub trait Redistribute: Send + Sync {
    /// This rank's part of `x` with the sharding `to`, of the same mesh and global shape.
    ///
    /// # Errors
    /// [`Error::Sharding`](crate::Error::Sharding) if `x` has no sharding, or none that can become
    /// `to`; errors of the communication.
    fn redistribute(&self, x: &Tensor, to: &Sharding) -> Result<Tensor>;
}

thread_local! {
    static CURRENT: RefCell<Option<Arc<dyn Redistribute>>> = const { RefCell::new(None) };
}

/// Calls `body`, in which [`redistribute`] communicates through `redistribution`.
pub fn with_redistribution<T>(
    redistribution: Arc<dyn Redistribute>,
    body: impl FnOnce() -> T,
) -> T {
    struct Restore(Option<Arc<dyn Redistribute>>);

    impl Drop for Restore {
        fn drop(&mut self) {
            CURRENT.set(self.0.take());
        }
    }

    let _restore = Restore(CURRENT.replace(Some(redistribution)));
    body()
}

/// What the innermost [`with_redistribution`] of this thread communicates through.
///
/// # Errors
/// [`Error::Sharding`](crate::Error::Sharding) outside of any.
pub fn current_redistribution() -> Result<Arc<dyn Redistribute>> {
    let current = CURRENT.with_borrow(Clone::clone);
    current.ok_or_else(|| ShardedTensorError::NoRedistribution.into())
}

/// `x` with these placements on the named axes of its mesh, and its own on all others. New shards
/// of a dim are inside existing ones, in the order of the list. The only op that communicates. Outside of
/// [`with_redistribution`], as on a single rank, a tensor without a sharding is returned as it is.
///
/// # Errors
/// [`Error::Sharding`](crate::Error::Sharding) for placements that are invalid or that the tensor
/// cannot be brought to, for a tensor without a sharding inside of [`with_redistribution`], and for
/// one with a sharding outside of it; errors of the communication.
pub fn redistribute<S: AsRef<str>>(
    x: &Tensor,
    placements: impl AsRef<[(S, Placement)]>,
) -> Result<Tensor> {
    let current = CURRENT.with_borrow(Clone::clone);
    let (from, current) = match (x.sharding(), current) {
        (Some(from), Some(current)) => (from, current),
        (None, None) => return Ok(x.clone()),
        (Some(_), None) => return Err(ShardedTensorError::NoRedistribution.into()),
        (None, Some(_)) => {
            let tensor = x.to_string();
            return Err(ShardedTensorError::NoSharding { tensor }.into());
        }
    };
    current.redistribute(x, &with_placements(from, placements.as_ref())?)
}

fn with_placements<S: AsRef<str>>(
    from: &Sharding,
    placements: &[(S, Placement)],
) -> Result<Sharding, ShardingError> {
    let own = from.placements();
    // An axis that already has the placement stays inside or outside of others, unless the list
    // gives an order by naming several axes of one dim.
    let stays = |(axis, at): &(&str, Placement)| {
        let shares_dim = |(other, placement): &(S, Placement)| {
            other.as_ref() != *axis && at.dim().is_some() && placement.dim() == at.dim()
        };
        own.contains(&(*axis, at.clone())) && !placements.iter().any(shares_dim)
    };
    let changes = placements
        .iter()
        .map(|(axis, at)| (axis.as_ref(), at.clone()));
    let changes: Vec<_> = changes.filter(|change| !stays(change)).collect();
    let is_kept = |axis: &str| changes.iter().all(|(changed, _)| *changed != axis);
    let mut all: Vec<_> = own
        .iter()
        .filter(|(axis, _)| is_kept(axis))
        .cloned()
        .collect();
    all.extend(changes);
    Sharding::new(from.mesh(), all, from.shape())
}
