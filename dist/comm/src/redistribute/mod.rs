//! Redistribution: the only operation that changes the sharding of a tensor. It runs the plan of
//! [`Redistribution`] with collectives.

mod boxes;
mod steps;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use meshgrad_mesh::{Group, Hosts, LinkCosts, Placement, Redistribution, Sharding, ShardingError};
use meshgrad_runtime::{Error, Result, ShardedTensorError, Tensor};

use crate::communicator::Communicator;
use crate::rank::Rank;

/// Redistributes tensors of one rank. It keeps the plans and the communicators that it has used.
///
/// All ranks of a mesh redistribute the same tensors in the same order.
pub struct Redistributor<'a> {
    rank: &'a dyn Rank,
    hosts: Hosts,
    links: LinkCosts,
    plans: Mutex<HashMap<Key, Arc<Redistribution>>>,
    communicators: Mutex<HashMap<Group, Arc<dyn Communicator>>>,
}

/// Source, target and bits per element.
type Key = (Sharding, Sharding, usize);

/// Plans that are kept. When there are more, all are dropped.
const MAX_PLANS: usize = 1024;

impl<'a> Redistributor<'a> {
    /// For ranks that are all on one host, with the link costs of [`LinkCosts::default`].
    pub fn new(rank: &'a dyn Rank) -> Redistributor<'a> {
        let hosts = Hosts::Uniform(rank.world_size());
        Redistributor::with_links(rank, hosts, LinkCosts::default())
    }

    /// With the hosts and link costs by which plans are chosen. They must be equal on all ranks.
    pub fn with_links(rank: &'a dyn Rank, hosts: Hosts, links: LinkCosts) -> Redistributor<'a> {
        Redistributor {
            rank,
            hosts,
            links,
            plans: Mutex::default(),
            communicators: Mutex::default(),
        }
    }

    /// `x` with these placements on the named axes, and its own on all others. New shards of a dim
    /// are inside existing ones. A tensor without a sharding is returned as it is.
    ///
    /// # Errors
    /// [`Error::Sharding`](meshgrad_runtime::Error::Sharding) for placements that are invalid or
    /// that no plan leads to, and for a tensor of another rank; a
    /// [`CommError`](crate::CommError) when a collective fails.
    pub fn redistribute<S: AsRef<str>>(
        &self,
        x: &Tensor,
        placements: impl AsRef<[(S, Placement)]>,
    ) -> Result<Tensor> {
        let Some(from) = x.sharding() else {
            return Ok(x.clone());
        };
        let to = with_placements(from, placements.as_ref()).map_err(sharding_error)?;
        self.redistribute_to(x, &to)
    }

    /// `x` with the sharding `to`, of the same mesh and global shape.
    ///
    /// # Errors
    /// As [`Redistributor::redistribute`]; also for a tensor without a sharding.
    pub fn redistribute_to(&self, x: &Tensor, to: &Sharding) -> Result<Tensor> {
        let Some(from) = x.sharding() else {
            let problem = format!("{x} has no sharding; state it with Tensor::with_sharding");
            return Err(Error::Argument {
                op: "redistribute",
                problem,
            });
        };
        // Fails for a part of another rank.
        x.with_sharding(from, self.rank.rank())?;
        let plan = self.plan(from, to, x.dtype().bits())?;
        let mut local = x.local();
        for step in plan.steps() {
            // Inside of `with_mesh`, new zeros have a sharding.
            local = self.run(step, &local)?.local();
        }
        local.with_sharding(to, self.rank.rank())
    }

    /// The plan from one sharding to another, for elements of `bits` bits.
    ///
    /// # Errors
    /// As [`Redistribution::plan`].
    pub fn plan(&self, from: &Sharding, to: &Sharding, bits: usize) -> Result<Arc<Redistribution>> {
        let key = (from.clone(), to.clone(), bits);
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(plan) = plans.get(&key) {
            return Ok(plan.clone());
        }
        let plan = Redistribution::plan(from, to, bits, &self.hosts, &self.links);
        let plan = Arc::new(plan.map_err(sharding_error)?);
        if plans.len() >= MAX_PLANS {
            plans.clear();
        }
        plans.insert(key, plan.clone());
        Ok(plan)
    }

    fn communicator(&self, group: &Group) -> Result<Arc<dyn Communicator>> {
        let kept = &self.communicators;
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(communicator) = kept.get(group) {
            return Ok(communicator.clone());
        }
        let communicator = self.rank.connect("redistribute", group)?;
        kept.insert(group.clone(), communicator.clone());
        Ok(communicator)
    }
}

fn with_placements<S: AsRef<str>>(
    from: &Sharding,
    placements: &[(S, Placement)],
) -> Result<Sharding, ShardingError> {
    let is_named = |axis: &str| placements.iter().any(|(name, _)| name.as_ref() == axis);
    let own = from.placements().into_iter();
    let kept = own.filter(|(axis, _)| !is_named(axis));
    let named = placements
        .iter()
        .map(|(axis, at)| (axis.as_ref(), at.clone()));
    Sharding::new(
        from.mesh(),
        kept.chain(named).collect::<Vec<_>>(),
        from.shape(),
    )
}

fn sharding_error(error: ShardingError) -> Error {
    ShardedTensorError::from(error).into()
}
