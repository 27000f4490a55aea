//! What ranks of all transports have in common.

use std::sync::Arc;

use meshgrad_mesh::Group;
use meshgrad_runtime::{Device, Result};

use crate::clock::Clock;
use crate::communicator::Communicator;
use crate::host::World;
use crate::local::LocalRank;
use crate::plan::PlanRank;
use crate::shares::GroupConnector;

/// A rank of a world, whatever its transport: a main function that takes `&dyn Rank` runs as
/// threads ([`Local::run`](crate::Local::run)) and as processes ([`World::from_env`]), and
/// [`Plan::trace`](crate::Plan::trace) logs its collectives.
pub trait Rank: Sync {
    /// Its number, from 0.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn world_size(&self) -> usize;

    /// Its device.
    fn device(&self) -> &Device;

    /// Its clock: [`Clock::real`], or the simulated one of a `Local` world. With `Plan`, it
    /// advances only by [`Clock::sleep`].
    fn clock(&self) -> &Clock;

    /// What connects its groups.
    fn connector(&self) -> Arc<dyn GroupConnector>;

    /// The communicator of a group, shared with other requests for an equal group. `name`
    /// identifies the requester in reports.
    ///
    /// # Errors
    /// When the rank is not a member, and errors of the transport.
    fn connect(&self, name: &str, group: &Group) -> Result<Arc<dyn Communicator>> {
        self.connector().connect(name, group)
    }

    /// The communicator of all ranks.
    ///
    /// # Errors
    /// As [`Rank::connect`].
    fn world(&self) -> Result<Arc<dyn Communicator>> {
        let all: Vec<usize> = (0..self.world_size()).collect();
        self.connect("world", &Group::new(all)?)
    }
}

impl Rank for LocalRank {
    fn rank(&self) -> usize {
        self.rank()
    }

    fn world_size(&self) -> usize {
        self.world_size()
    }

    fn device(&self) -> &Device {
        self.device()
    }

    fn clock(&self) -> &Clock {
        self.clock()
    }

    fn connector(&self) -> Arc<dyn GroupConnector> {
        self.shares().clone()
    }
}

impl Rank for PlanRank {
    fn rank(&self) -> usize {
        self.rank()
    }

    fn world_size(&self) -> usize {
        self.world_size()
    }

    fn device(&self) -> &Device {
        self.device()
    }

    fn clock(&self) -> &Clock {
        self.clock()
    }

    fn connector(&self) -> Arc<dyn GroupConnector> {
        Arc::new(self.clone())
    }
}

impl Rank for World {
    fn rank(&self) -> usize {
        self.rank()
    }

    fn world_size(&self) -> usize {
        self.world_size()
    }

    fn device(&self) -> &Device {
        self.device()
    }

    fn clock(&self) -> &Clock {
        self.clock()
    }

    fn connector(&self) -> Arc<dyn GroupConnector> {
        self.shares().clone()
    }
}
