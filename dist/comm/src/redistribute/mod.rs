//! Redistribution: the only operation on sharded tensors that communicates. It runs the plan of
//! [`Redistribution`] with collectives.

mod boxes;
mod steps;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use meshgrad_mesh::{Group, Hosts, LinkCosts, Redistribution, Sharding};
use meshgrad_runtime::{Redistribute, Result, ShardedTensorError, Tensor};

use crate::communicator::Communicator;
use crate::rank::Rank;
use crate::shares::GroupConnector;

/// Redistributes tensors of one rank, for
/// [`with_redistribution`](meshgrad_runtime::with_redistribution). It keeps the plans and the
/// communicators that it has used.
///
/// All ranks of a mesh redistribute the same tensors in the same order.
pub struct Redistributor {
    rank: usize,
    connector: Arc<dyn GroupConnector>,
    hosts: Hosts,
    links: LinkCosts,
    plans: Mutex<HashMap<Key, Arc<Redistribution>>>,
    communicators: Mutex<HashMap<Group, Arc<dyn Communicator>>>,
}

/// Source, target and bits per element.
type Key = (Sharding, Sharding, usize);

/// Plans that are kept. When there are more, all are dropped.
const MAX_PLANS: usize = 1024;

impl Redistributor {
    /// For ranks that are all on one host, with the link costs of [`LinkCosts::default`].
    pub fn new(rank: &dyn Rank) -> Redistributor {
        let hosts = Hosts::Uniform(rank.world_size());
        Redistributor::with_links(rank, hosts, LinkCosts::default())
    }

    /// With the hosts and link costs by which plans are chosen. They must be equal on all ranks.
    pub fn with_links(rank: &dyn Rank, hosts: Hosts, links: LinkCosts) -> Redistributor {
        Redistributor {
            rank: rank.rank(),
            connector: rank.connector(),
            hosts,
            links,
            plans: Mutex::default(),
            communicators: Mutex::default(),
        }
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
        let plan = Redistribution::plan(from, to, bits, &self.hosts, &self.links)?;
        let plan = Arc::new(plan);
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
        let communicator = self.connector.connect("redistribute", group)?;
        kept.insert(group.clone(), communicator.clone());
        Ok(communicator)
    }
}

impl Redistribute for Redistributor {
    fn redistribute(&self, x: &Tensor, to: &Sharding) -> Result<Tensor> {
        let Some(from) = x.sharding() else {
            let tensor = x.to_string();
            return Err(ShardedTensorError::NoSharding { tensor }.into());
        };
        // Fails for a part of another rank.
        x.with_sharding(from, self.rank)?;
        let plan = self.plan(from, to, x.dtype().bits())?;
        let mut local = x.local();
        for step in plan.steps() {
            // Inside of `with_mesh`, new zeros have a sharding.
            local = self.run(step, &local)?.local();
        }
        local.with_sharding(to, self.rank)
    }
}
