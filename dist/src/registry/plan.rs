//! Plans: the communicators that a rank needs, compared between ranks before creation.

use meshgrad_error::Result;
use meshgrad_mesh::{Fingerprint, Group, Mesh};

use super::agreement::{self, Exchange, PlanDigest};

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
pub struct Plan {
    pub(super) rank: usize,
    pub(super) needs: Vec<PlannedGroup>,
    pub(super) mesh: Option<Fingerprint>,
}

impl Plan {
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
    pub fn with_mesh(mut self, mesh: &Mesh) -> Plan {
        self.mesh = Some(mesh.fingerprint());
        self
    }

    /// The digest that ranks compare. Its size does not depend on the plan.
    pub fn digest(&self) -> PlanDigest {
        PlanDigest::of(self)
    }

    /// Compares the plans of all ranks; each rank must call this. Ranks exchange their
    /// [digests](Plan::digest), and the whole plans only if the digests disagree. All ranks return
    /// the same error.
    ///
    /// Blocks until all ranks have called this. Finish earlier creations first, or
    /// [poll](super::Registry::poll) them from another thread: a rank that blocks here while
    /// another waits for it in an earlier creation deadlocks.
    ///
    /// # Errors
    /// When some members of a group need its communicator and others do not, a group has a rank
    /// outside the world, meshes differ, or the exchange fails.
    pub fn agree(self, exchange: &mut impl Exchange) -> Result<AgreedPlan> {
        agreement::through(&self, exchange)?;
        Ok(AgreedPlan(self))
    }

    /// Compares the plans of ranks 0, 1, ... within one process.
    ///
    /// # Errors
    /// As [`Plan::agree`].
    pub fn agree_all(plans: Vec<Plan>) -> Result<Vec<AgreedPlan>> {
        agreement::among(&plans)?;
        Ok(plans.into_iter().map(AgreedPlan).collect())
    }
}

/// A plan that all ranks agree on. Only agreed plans can be materialized.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgreedPlan(pub(super) Plan);

impl AgreedPlan {
    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.0
    }
}
