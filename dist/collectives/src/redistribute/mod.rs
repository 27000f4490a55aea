//! Redistribution: the only operation on sharded tensors that communicates. It runs the plan of
//! [`Redistribution`] with collectives, and transfers between meshes with messages.
//!
//! - `mod.rs`: what callers use, and what a rank keeps between calls.
//! - `ops.rs`: the op, and the scope in which it communicates.
//! - `plans.rs`: the plans that it keeps.
//! - `member.rs`: the rank and its communicators.
//! - `steps.rs`: the steps of a plan on one rank.
//! - `transfer.rs`: transfers between meshes.
//! - `replicas.rs`: strict mode.
//! - `regions.rs`: parts of tensors.

mod member;
pub(crate) mod ops;
mod plans;
mod regions;
mod replicas;
mod steps;
mod transfer;

use std::sync::Arc;

use meshgrad_mesh::{Chunks, Group, Hosts, LinkCosts, Mesh, Redistribution, Sharding, Transfer};
use meshgrad_runtime::{Error, Pending, Result, Tensor, with_mesh};

pub use transfer::Transferred;

use crate::communicator::Communicator;
use crate::rank::Rank;
use member::Member;
use ops::{Redistribute, with_redistribution};
use plans::{Key, KeyRef, Plans};
use steps::Runner;

/// Redistributes tensors of one rank, for [`with_redistribution`]. It keeps the plans and the
/// communicators that it has used.
///
/// All ranks of a mesh redistribute the same tensors in the same order. Clones share plans and
/// communicators.
#[derive(Clone)]
pub struct Redistributor {
    hosts: Hosts,
    links: LinkCosts,
    plans: Arc<Plans<Key, Redistribution>>,
    transfers: Arc<Plans<Vec<Key>, Transfer>>,
    member: Arc<Member>,
    is_strict: bool,
}

/// The redistribution plans that are kept.
const MAX_PLANS: usize = 1024;

/// The transfer plans that are kept. A plan can be one of all weights of a model.
const MAX_TRANSFERS: usize = 32;

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
            plans: Arc::new(Plans::new(MAX_PLANS)),
            transfers: Arc::new(Plans::new(MAX_TRANSFERS)),
            member,
            is_strict: false,
        }
    }

    /// Strict mode, to find forgotten communication: backward passes compare the roots, and the
    /// parameters and gradients of `Grads`, between the ranks that should have the same values.
    /// Each of these tensors costs a read, a hash and an all_gather of 24 bytes. With
    /// `Plan`, only the all_gathers are logged. All ranks must use it, or none.
    pub fn strict(mut self) -> Redistributor {
        self.is_strict = true;
        self
    }

    /// Calls `body` as this rank of `mesh`: inside of [`with_redistribution`] and [`with_mesh`].
    ///
    /// # Errors
    /// As [`with_mesh`].
    pub fn run_on<T, E: From<Error>>(
        &self,
        mesh: &Mesh,
        body: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let body = || with_mesh(mesh, self.rank(), body);
        with_redistribution(Arc::new(self.clone()), body)
    }

    /// The plan from one sharding to another, for elements of `bits` bits.
    ///
    /// # Errors
    /// As [`Redistribution::plan`].
    pub fn plan(&self, from: &Sharding, to: &Sharding, bits: usize) -> Result<Arc<Redistribution>> {
        let make = || Redistribution::plan(from, to, bits, &self.hosts, &self.links);
        self.plans.get(&KeyRef { from, to, bits }, make)
    }

    /// The plan for `x`.
    fn plan_of(&self, x: &Tensor, to: &Sharding) -> Result<Arc<Redistribution>> {
        let from = x.expect_sharding("redistribute")?;
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

    /// Runs the plan of the whole tensor, so that it reduces in the same order.
    fn start_chunk(
        &self,
        x: &Tensor,
        [from, to]: [&Sharding; 2],
        chunks: &Chunks,
        chunk: usize,
    ) -> Result<Pending<Tensor>> {
        let plan = self.plan(from, to, x.dtype().bits())?;
        let runner = self.runner().of_chunk(chunks, chunk);
        runner.start(plan, x.clone())
    }

    fn rank(&self) -> usize {
        self.member.rank
    }

    fn connect(&self, group: &Group) -> Result<Arc<dyn Communicator>> {
        self.member.communicator(group)
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
