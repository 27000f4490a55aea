//! What [`with_mesh`] and [`with_redistribution`] set for a thread, as a value.

use std::sync::Arc;

use meshgrad_mesh::Mesh;

use super::{redistribute, scope};
use crate::Redistribute;
#[cfg(doc)]
use crate::{with_mesh, with_redistribution};

/// The innermost [`with_mesh`] and [`with_redistribution`] of a thread, to run work inside of them
/// later, such as the recomputation of a checkpoint.
#[derive(Clone)]
pub struct RankScope {
    mesh: Option<(Mesh, usize)>,
    redistribution: Option<Arc<dyn Redistribute>>,
}

impl RankScope {
    /// The scope of this thread.
    pub fn current() -> RankScope {
        RankScope { mesh: scope::current(), redistribution: redistribute::current() }
    }

    /// Calls `body` inside of this scope, and outside of any other.
    pub fn run<T>(&self, body: impl FnOnce() -> T) -> T {
        let body = || scope::on(self.mesh.clone(), body);
        redistribute::through(self.redistribution.clone(), body)
    }
}
