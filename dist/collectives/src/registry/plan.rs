//! Plans: the communicators that a rank needs.

use meshgrad_mesh::{Fingerprint, Group, Mesh};

/// A communicator that a rank needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedGroup {
    pub(super) group: Group,
    pub(super) generation: u64,
    pub(super) requesters: Vec<String>,
}

impl PlannedGroup {
    /// Its members, channel and options.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// The number of creations that this rank has begun for the group, including this one: 2 if the
    /// first communicator was dropped, for example.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The names of the requesters.
    pub fn requesters(&self) -> &[String] {
        &self.requesters
    }
}

/// The communicators that a rank needs, ready or not, in creation order: the largest first, then by
/// ranks, channel and options. The order depends only on the groups, so plans of different ranks
/// are ordered consistently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupPlan {
    pub(super) rank: usize,
    pub(super) needs: Vec<PlannedGroup>,
    pub(super) mesh: Option<Fingerprint>,
}

impl GroupPlan {
    /// The rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The groups, in creation order.
    pub fn needs(&self) -> &[PlannedGroup] {
        &self.needs
    }

    /// Also requires that all ranks have this mesh. Meshes that differ only in axis names have the
    /// same groups.
    pub fn with_mesh(mut self, mesh: &Mesh) -> GroupPlan {
        self.mesh = Some(mesh.fingerprint());
        self
    }
}

/// A plan that all ranks agree on. Only agreed plans can be materialized.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgreedPlan(pub(super) GroupPlan);

impl AgreedPlan {
    /// The plan.
    pub fn plan(&self) -> &GroupPlan {
        &self.0
    }
}
