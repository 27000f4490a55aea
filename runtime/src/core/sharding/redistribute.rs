//! The interface to communication, which other crates implement.

use std::cell::RefCell;
use std::sync::Arc;

use meshgrad_mesh::{Placement, Sharding, ShardingError};

use super::error::ShardedTensorError;
use crate::{Error, Result, Tensor};

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
/// of a dim are inside existing ones. The only op that communicates. A tensor without a sharding is
/// returned as it is.
///
/// # Errors
/// [`Error::Sharding`](crate::Error::Sharding) for placements that are invalid or that the tensor
/// cannot be brought to, and outside of [`with_redistribution`]; errors of the communication.
pub fn redistribute<S: AsRef<str>>(
    x: &Tensor,
    placements: impl AsRef<[(S, Placement)]>,
) -> Result<Tensor> {
    let Some(from) = x.sharding() else {
        return Ok(x.clone());
    };
    let to = with_placements(from, placements.as_ref()).map_err(sharding_error)?;
    current_redistribution()?.redistribute(x, &to)
}

fn with_placements<S: AsRef<str>>(
    from: &Sharding,
    placements: &[(S, Placement)],
) -> Result<Sharding, ShardingError> {
    let is_named = |axis: &str| placements.iter().any(|(name, _)| name.as_ref() == axis);
    let own = from.placements().into_iter();
    let kept = own.filter(|(axis, _)| !is_named(axis));
    let named = placements
        .iter()
        .map(|(axis, at)| (axis.as_ref(), at.clone()));
    let all: Vec<_> = kept.chain(named).collect();
    Sharding::new(from.mesh(), all, from.shape())
}

fn sharding_error(error: ShardingError) -> Error {
    ShardedTensorError::from(error).into()
}
