//! The mesh that tensors are created on.

use std::cell::RefCell;

use meshgrad_mesh::{Mesh, Sharding};

use super::tag::{Tag, not_in_mesh};
use crate::{Result, Shape};

thread_local! {
    static CURRENT: RefCell<Option<(Mesh, usize)>> = const { RefCell::new(None) };
}

/// Calls `body` as rank `rank` of `mesh`. Tensors that this thread fills inside it (with a
/// constant, a range or random values) are replicated over the mesh. Data from the host gets no
/// sharding: state it with [`Tensor::with_sharding`](crate::Tensor::with_sharding).
///
/// # Errors
/// When the rank is not in the mesh; the error of `body`.
pub fn with_mesh<T, E: From<crate::Error>>(
    mesh: &Mesh,
    rank: usize,
    body: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    if !mesh.contains(rank) {
        return Err(not_in_mesh(rank, mesh).into());
    }
    MeshScope(Some((mesh.clone(), rank))).run(body)
}

/// Calls `body` outside of any [`with_mesh`]: tensors that it fills have no sharding.
pub fn without_mesh<T>(body: impl FnOnce() -> T) -> T {
    MeshScope(None).run(body)
}

/// The innermost [`with_mesh`] of a thread, to run work inside of it later.
#[derive(Clone)]
pub struct MeshScope(Option<(Mesh, usize)>);

impl MeshScope {
    /// The scope of this thread.
    pub fn current() -> MeshScope {
        MeshScope(CURRENT.with_borrow(Clone::clone))
    }

    /// Calls `body` inside of this scope, and outside of any other.
    pub fn run<T>(self, body: impl FnOnce() -> T) -> T {
        /// Restores the previous mesh at the end of the scope, even after a panic.
        struct Restore(Option<(Mesh, usize)>);

        impl Drop for Restore {
            fn drop(&mut self) {
                CURRENT.set(self.0.take());
            }
        }

        let _restore = Restore(CURRENT.replace(self.0));
        body()
    }
}

/// The tag of a tensor of `shape` that is equal on all ranks; `None` outside of [`with_mesh`].
pub(crate) fn replicated(shape: &Shape) -> Result<Option<Tag>> {
    CURRENT.with_borrow(|current| {
        let Some((mesh, rank)) = current else {
            return Ok(None);
        };
        let sharding = Sharding::replicated(mesh, shape)?;
        Tag::new(sharding, *rank).map(Some)
    })
}
