//! What [`with_mesh`] and [`with_redistribution`] set for a thread, as a value.

use std::sync::Arc;

use meshgrad_runtime::MeshScope;
#[cfg(doc)]
use meshgrad_runtime::with_mesh;

#[cfg(doc)]
use crate::redistribute::ops::with_redistribution;
use crate::redistribute::ops::{Redistribute, current, through};

/// The innermost [`with_mesh`] and [`with_redistribution`] of a thread, to run work inside of them
/// later, such as the recomputation of a checkpoint.
#[derive(Clone)]
pub struct RankScope {
    mesh: MeshScope,
    redistribution: Option<Arc<dyn Redistribute>>,
}

impl RankScope {
    /// The scope of this thread.
    pub fn current() -> RankScope {
        RankScope { mesh: MeshScope::current(), redistribution: current() }
    }

    /// Calls `body` inside of this scope, and outside of any other.
    pub fn run<T>(&self, body: impl FnOnce() -> T) -> T {
        let mesh = self.mesh.clone();
        through(self.redistribution.clone(), || mesh.run(body))
    }
}
