//! What a rule says about a result: its placements, and the global extents that the operands
//! determine.

use meshgrad_error::Result;

use super::sharding_rule::wrong_dims;
use crate::{Mesh, Placement, Sharding};

/// The sharding of a result, up to the extents that no operand determines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DerivedSharding {
    pub(super) op: String,
    pub(super) result: String,
    pub(super) mesh: Mesh,
    /// With the axes' names, in explicit order.
    pub(super) placements: Vec<(String, Placement)>,
    /// The global extents of the dims; `None` for a dim whose extent the operands do not determine,
    /// which is whole. The list is `None` if the signature leaves the dims open (`*`): all are
    /// whole.
    pub(super) extents: Option<Vec<Option<usize>>>,
}

impl DerivedSharding {
    /// The global shape, if the operands determine it.
    pub fn shape(&self) -> Option<Vec<usize>> {
        self.extents.as_ref()?.iter().copied().collect()
    }

    /// The sharding of a result that has the shape `local` on any rank.
    ///
    /// # Errors
    /// For another number of dims; when the placements do not combine, for example because the
    /// result would be a partial sum along one axis and a partial maximum along another.
    pub fn sharding(&self, local: &[usize]) -> Result<Sharding> {
        let shape = match &self.extents {
            None => local.to_vec(),
            Some(extents) if extents.len() == local.len() => {
                let extents = extents.iter().zip(local);
                extents.map(|(global, local)| global.unwrap_or(*local)).collect()
            }
            Some(extents) => {
                return Err(wrong_dims(&self.op, &self.result, extents.len(), local));
            }
        };
        Sharding::new(&self.mesh, &self.placements, &shape)
    }
}
