//! The mesh that tensors are created on.

use std::cell::RefCell;

use meshgrad_mesh::{Mesh, Sharding};

use super::error::ShardedTensorError;
use super::tag::Tag;
use crate::{Result, Shape};

thread_local! {
    static CURRENT: RefCell<Option<(Mesh, usize)>> = const { RefCell::new(None) };
}

/// Calls `body` as rank `rank` of `mesh`. Tensors that this thread fills inside it (with a
/// constant, a range or random values) are replicated over the mesh. Data from the host gets no
/// sharding: state it with [`Tensor::with_sharding`](crate::Tensor::with_sharding).
///
/// # Errors
/// [`ShardedTensorError::NotInMesh`]; the error of `body`.
pub fn with_mesh<T, E: From<crate::Error>>(
    mesh: &Mesh,
    rank: usize,
    body: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    if !mesh.contains(rank) {
        let mesh = mesh.to_string();
        return Err(crate::Error::from(ShardedTensorError::NotInMesh { rank, mesh }).into());
    }
    let outer = CURRENT.replace(Some((mesh.clone(), rank)));
    let _restore = Restore(outer);
    body()
}

/// Calls `body` outside of any [`with_mesh`]: tensors that it fills have no sharding.
pub fn without_mesh<T>(body: impl FnOnce() -> T) -> T {
    let _restore = Restore(CURRENT.take());
    body()
}

/// Restores the previous mesh at the end of the scope, even after a panic.
struct Restore(Option<(Mesh, usize)>);

impl Drop for Restore {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

/// The tag of a tensor of `shape` that is equal on all ranks; `None` outside of [`with_mesh`].
pub(crate) fn replicated(shape: &Shape) -> Result<Option<Tag>> {
    CURRENT.with_borrow(|current| {
        let Some((mesh, rank)) = current else {
            return Ok(None);
        };
        let sharding = Sharding::replicated(mesh, shape).map_err(ShardedTensorError::from)?;
        Tag::new(sharding, *rank).map(Some)
    })
}
