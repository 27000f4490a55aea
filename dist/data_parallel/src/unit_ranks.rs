//! How a unit is divided over ranks.

use std::sync::Arc;

use meshgrad_collectives::Communicator;

use crate::groups::Groups;
use crate::layout::Layout;
use crate::strategy::Strategy;

/// The division of a unit over ranks: its flat buffers, on one mesh or several.
pub(crate) struct UnitRanks {
    /// When to gather and to reduce. The axes are those of the buffers.
    pub(crate) strategy: Strategy,
    pub(crate) flats: Vec<Flat>,
    /// All ranks that share in the model's parameters.
    pub(crate) all: Groups,
}

/// A flat buffer of parameters of one mesh.
pub(crate) struct Flat {
    pub(crate) layout: Layout,
    pub(crate) ranks: Arc<MeshRanks>,
}

/// How the ranks of a mesh share parameters of a unit, and the communicators that they use.
pub(crate) struct MeshRanks {
    pub(crate) strategy: Strategy,
    /// The ranks that the rows are divided over.
    pub(crate) shard: Arc<dyn Communicator>,
    /// The ranks with the same rows on the stages of a pipeline that the unit is tied between.
    pub(crate) stages: Option<Arc<dyn Communicator>>,
    pub(crate) groups: Groups,
}
