//! What ranks of all transports have in common, and what connects their groups.

use std::sync::Arc;
use std::time::Duration;

use meshgrad_mesh::Group;
use meshgrad_runtime::{Device, Result};

use crate::clock::Clock;
use crate::communicator::Communicator;
use crate::control::ControlChannel;

/// A rank of a world, whatever its transport: a main function that takes `&dyn Rank` runs as
/// threads (`Local::run`) and as processes (`ProcessRank::from_env`), and `Plan::trace` logs its
/// collectives.
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

    /// The communicator of a group, as [`GroupConnector::connect`].
    ///
    /// # Errors
    /// As [`GroupConnector::connect`].
    fn connect(&self, name: &str, group: &Group) -> Result<Arc<dyn Communicator>> {
        self.connector().connect(name, group)
    }

    /// Control channel `number` of all ranks, on which a call waits at most `limit` for the
    /// others. Calls on different channels may have different orders on different ranks. The
    /// default is for ranks whose device is a CPU.
    ///
    /// # Errors
    /// As [`GroupConnector::connect`].
    fn control(&self, number: u16, limit: Duration) -> Result<ControlChannel> {
        ControlChannel::of(self.world_size(), number, limit, |all| self.connect("control", all))
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

/// Connects the groups of one rank. It can be kept and passed to other threads.
pub trait GroupConnector: Send + Sync {
    /// The communicator of a group, shared with other requests for an equal group and kept until
    /// the rank ends. It waits for no other rank. `name` identifies the requester in reports, which
    /// do not list groups of one rank.
    ///
    /// # Errors
    /// When the rank is not a member, and errors of the transport.
    fn connect(&self, name: &str, group: &Group) -> Result<Arc<dyn Communicator>>;
}
