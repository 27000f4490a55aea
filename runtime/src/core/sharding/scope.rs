//! Which rank a thread computes as.

use std::any::Any;
use std::cell::RefCell;
use std::sync::Arc;

use meshgrad_mesh::{Mesh, Sharding};

use super::tag::{Tag, not_in_mesh};
use crate::{Result, Shape};

thread_local! {
    static CURRENT: RefCell<RankScope> = const { RefCell::new(RankScope::NONE) };
}

/// The rank that a thread computes as: its mesh, and how it communicates. A value, to run work
/// inside of the scope later, such as the recomputation of a checkpoint.
#[derive(Clone)]
pub struct RankScope {
    mesh: Option<(Mesh, usize)>,
    /// What ops communicate through. The layer above knows its type.
    collectives: Option<Arc<dyn Any + Send + Sync>>,
}

impl RankScope {
    const NONE: RankScope = RankScope { mesh: None, collectives: None };

    /// The scope of this thread.
    pub fn current() -> RankScope {
        CURRENT.with_borrow(Clone::clone)
    }

    /// This scope as rank `rank` of `mesh`.
    ///
    /// # Errors
    /// When the rank is not in the mesh.
    pub fn on(self, mesh: &Mesh, rank: usize) -> Result<RankScope> {
        match mesh.contains(rank) {
            true => Ok(RankScope { mesh: Some((mesh.clone(), rank)), ..self }),
            false => Err(not_in_mesh(rank, mesh)),
        }
    }

    /// This scope on no mesh: tensors that ops fill have no sharding.
    #[must_use]
    pub fn on_no_mesh(self) -> RankScope {
        RankScope { mesh: None, ..self }
    }

    /// This scope, in which ops communicate through `collectives`.
    #[must_use]
    pub fn through(self, collectives: Arc<dyn Any + Send + Sync>) -> RankScope {
        RankScope { collectives: Some(collectives), ..self }
    }

    /// What ops communicate through, if its type is `T`.
    pub fn collectives<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        self.collectives.clone()?.downcast().ok()
    }

    /// Calls `body` inside of this scope, and outside of any other.
    pub fn run<T>(self, body: impl FnOnce() -> T) -> T {
        /// Restores the previous scope at the end, even after a panic.
        struct Restore(RankScope);

        impl Drop for Restore {
            fn drop(&mut self) {
                CURRENT.set(std::mem::replace(&mut self.0, RankScope::NONE));
            }
        }

        let _restore = Restore(CURRENT.replace(self));
        body()
    }
}

/// Calls `body` as rank `rank` of `mesh`. Values that this thread's ops generate inside of it (a
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
    RankScope::current().on(mesh, rank)?.run(body)
}

/// The tag of a tensor of `shape` that is equal on all ranks; `None` outside of [`with_mesh`].
pub(crate) fn replicated(shape: &Shape) -> Result<Option<Tag>> {
    CURRENT.with_borrow(|current| {
        let Some((mesh, rank)) = &current.mesh else {
            return Ok(None);
        };
        let sharding = Sharding::replicated(mesh, shape)?;
        Tag::new(sharding, *rank).map(Some)
    })
}
