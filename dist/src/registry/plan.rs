//! What a rank needs, as a value that ranks compare before they make anything.

use meshgrad_mesh::{Fingerprint, Group, Mesh};

use super::agreement::{self, Exchange, PlanDigest};
use super::error::Result;

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

    /// Counts the communicators of this group on this rank, from 1: 2 when it had one that was
    /// dropped.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The names under which it was asked for.
    pub fn requesters(&self) -> &[String] {
        &self.requesters
    }
}

/// The communicators that a rank needs, made or not, in the order of creation: the largest first,
/// then by ranks, channel and options. Plans of other ranks are other lists, and still have an order
/// in common, because it follows from each group alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub(super) rank: usize,
    pub(super) needs: Vec<PlannedGroup>,
    pub(super) mesh: Option<Fingerprint>,
}

impl Plan {
    /// The rank that needs them.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// What it needs, in the order of creation.
    pub fn needs(&self) -> &[PlannedGroup] {
        &self.needs
    }

    /// The same plan, that holds only if all ranks have this mesh: meshes that differ in the names
    /// of their axes alone can have the same groups.
    pub fn with_mesh(mut self, mesh: &Mesh) -> Plan {
        self.mesh = Some(mesh.fingerprint());
        self
    }

    /// What this rank tells all others: some bytes, however much it needs.
    pub fn digest(&self) -> PlanDigest {
        PlanDigest::of(self)
    }

    /// Compares with the plans of all other ranks, which call this too. They tell each other their
    /// [statements](Plan::digest), and only if these do not fit their plans, so as to find out
    /// who differs: all ranks get the same error.
    ///
    /// Waits for all ranks, as the exchange does. A rank that waits here for one that waits for it
    /// in an earlier creation would wait for good: either the earlier plan is made first, or
    /// another thread goes on to [poll](super::Registry::poll).
    ///
    /// # Errors
    /// [`RegistryError::PlansDiffer`](super::RegistryError::PlansDiffer),
    /// [`RegistryError::OutsideWorld`](super::RegistryError::OutsideWorld),
    /// [`RegistryError::MeshesDiffer`](super::RegistryError::MeshesDiffer), and
    /// [`RegistryError::Exchange`](super::RegistryError::Exchange) when the exchange fails.
    pub fn agree(self, exchange: &mut impl Exchange) -> Result<AgreedPlan> {
        agreement::through(&self, exchange)?;
        Ok(AgreedPlan(self))
    }

    /// Compares the plans of ranks 0, 1, ... where all of them are at hand.
    ///
    /// # Errors
    /// As [`Plan::agree`].
    pub fn agree_all(plans: Vec<Plan>) -> Result<Vec<AgreedPlan>> {
        agreement::among(&plans)?;
        Ok(plans.into_iter().map(AgreedPlan).collect())
    }
}

/// A plan on which all ranks agree: only such a one is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgreedPlan(pub(super) Plan);

impl AgreedPlan {
    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.0
    }
}
