//! Redistribution: the only operation on sharded tensors that communicates. It runs the plan of
//! [`Redistribution`] with collectives, and transfers between meshes with messages.
//!
//! - `mod.rs`: what callers use, and what a rank keeps between calls.
//! - `plans.rs`: the plans that it keeps.
//! - `member.rs`: the rank and its communicators.
//! - `steps.rs`: the steps of a plan on one rank.
//! - `transfer.rs`: transfers between meshes.
//! - `replicas.rs`: strict mode.
//! - `regions.rs`: parts of tensors.

mod member;
mod plans;
mod regions;
mod replicas;
mod steps;
mod transfer;

use std::sync::Arc;

use meshgrad_mesh::{Hosts, LinkCosts, Redistribution, Sharding};
use meshgrad_runtime::{Pending, Redistribute, Result, ShardedTensorError, Tensor};

pub use transfer::Transferred;

use crate::rank::Rank;
use member::Member;
use plans::Plans;
use steps::Runner;

/// Redistributes tensors of one rank, for
/// [`with_redistribution`](meshgrad_runtime::with_redistribution). It keeps the plans and the
/// communicators that it has used.
///
/// All ranks of a mesh redistribute the same tensors in the same order.
pub struct Redistributor {
    hosts: Hosts,
    links: LinkCosts,
    plans: Plans,
    member: Arc<Member>,
    is_strict: bool,
}

impl Redistributor {
    /// For ranks that are all on one host, with the link costs of [`LinkCosts::default`].
    pub fn new(rank: &dyn Rank) -> Redistributor {
        let hosts = Hosts::Uniform(rank.world_size());
        Redistributor::with_links(rank, hosts, LinkCosts::default())
    }

    /// With the hosts and link costs by which plans are chosen. They must be equal on all ranks.
    pub fn with_links(rank: &dyn Rank, hosts: Hosts, links: LinkCosts) -> Redistributor {
        let member = Arc::new(Member::new(rank));
        Redistributor {
            hosts,
            links,
            plans: Plans::default(),
            member,
            is_strict: false,
        }
    }

    /// Strict mode, to find forgotten communication: backward passes compare the roots, and the
    /// parameters and gradients of `Grads`, between the ranks that should have the same values.
    /// Each of these tensors costs a read, a hash and an all_gather of 8 bytes. All ranks must use
    /// it, or none.
    pub fn strict(mut self) -> Redistributor {
        self.is_strict = true;
        self
    }

    /// The plan from one sharding to another, for elements of `bits` bits.
    ///
    /// # Errors
    /// As [`Redistribution::plan`].
    pub fn plan(&self, from: &Sharding, to: &Sharding, bits: usize) -> Result<Arc<Redistribution>> {
        let make = || Redistribution::plan(from, to, bits, &self.hosts, &self.links);
        Ok(self.plans.get(from, to, bits, make)?)
    }

    /// The plan for `x`.
    fn plan_of(&self, x: &Tensor, to: &Sharding) -> Result<Arc<Redistribution>> {
        let Some(from) = x.sharding() else {
            let tensor = x.to_string();
            return Err(ShardedTensorError::NoSharding { tensor }.into());
        };
        // Fails for a part of another rank.
        x.with_sharding(from, self.member.rank)?;
        self.plan(from, to, x.dtype().bits())
    }

    fn runner(&self) -> Runner {
        Runner::new(self.member.clone())
    }
}

impl Redistribute for Redistributor {
    fn redistribute(&self, x: &Tensor, to: &Sharding) -> Result<Tensor> {
        let plan = self.plan_of(x, to)?;
        self.runner().run(&plan, &x.local())
    }

    /// Starts the first collective of the plan. [`Pending::wait`] runs the others, so all ranks wait
    /// for their results in the same order, or drop them.
    fn start(&self, x: &Tensor, to: &Sharding) -> Result<Pending<Tensor>> {
        self.runner().start(self.plan_of(x, to)?, x.local())
    }

    fn is_strict(&self) -> bool {
        self.is_strict
    }

    fn check_replicas(&self, name: &str, x: &Tensor) -> Result<()> {
        match x.sharding() {
            Some(sharding) => replicas::compare(&self.member, name, x, sharding),
            None => Ok(()),
        }
    }
}
