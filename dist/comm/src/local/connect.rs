//! The registry's interface to a local world.

use std::sync::Arc;

use meshgrad_collectives::registry::{Connect, Creation, Progress};
use meshgrad_mesh::Result;
use meshgrad_runtime::Device;

use super::communicator::LocalCommunicator;
use super::world::World;
use crate::members::index_in;

/// Creates the communicators of one rank of a [`Local`](crate::Local) world. They are ready at
/// once: only the first collective waits for other members.
pub struct LocalConnector {
    rank: usize,
    device: Device,
    world: Arc<World>,
    /// Whether it connects control channels, which share no table with communicators of tensors.
    is_control: bool,
}

impl LocalConnector {
    pub(super) fn new(rank: usize, device: Device, world: Arc<World>) -> LocalConnector {
        LocalConnector { rank, device, world, is_control: false }
    }

    pub(super) fn of_control(self) -> LocalConnector {
        LocalConnector { is_control: true, ..self }
    }
}

impl Connect for LocalConnector {
    type Communicator = LocalCommunicator;
    type Connecting = LocalCommunicator;

    fn begin(&mut self, creation: &Creation<'_>) -> Result<LocalCommunicator> {
        let index = index_in(creation.group, self.rank, self.world.all().len())?;
        let table = self.world.join(creation.group, creation.generation, self.is_control);
        Ok(LocalCommunicator::new(table, index, self.device.clone()))
    }

    fn poll(&mut self, connecting: &mut LocalCommunicator) -> Result<Progress<LocalCommunicator>> {
        Ok(Progress::Ready(connecting.clone()))
    }
}
