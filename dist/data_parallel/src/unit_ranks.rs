//! How a unit is divided over ranks.

use std::sync::Arc;

use meshgrad_collectives::Communicator;

use crate::groups::Groups;
use crate::layout::Layout;
use crate::strategy::Strategy;

/// The division of a unit over ranks, and the communicators that it uses.
pub(crate) struct UnitRanks {
    pub(crate) strategy: Strategy,
    pub(crate) layouts: Vec<Layout>,
    /// The ranks that the rows are divided over.
    pub(crate) shard: Arc<dyn Communicator>,
    /// The ranks with the same rows on the stages of a pipeline that the unit is tied between.
    pub(crate) stages: Option<Arc<dyn Communicator>>,
    pub(crate) groups: Groups,
}
