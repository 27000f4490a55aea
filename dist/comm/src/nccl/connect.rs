//! Creating communicators.
//!
//! The first member makes a unique id and sends it to the others. A thread for each communicator waits for it and
//! for the other ranks, so that ranks may connect groups in any order.

use std::sync::Arc;
use std::thread;

use meshgrad_collectives::registry::{Connect, Creation, Progress};
use meshgrad_collectives::{Collectives, Communicator, GroupConnector, Rank};
use meshgrad_runtime::{Device, Result, Tensor};

use super::communicator::NcclCommunicator;
use super::created::{Created, NewCommunicator};
use super::settings::Settings;
use super::watch::Watch;

use crate::members::index_in;
use crate::system::system;

/// Creates the communicators of one rank. Only the first collective waits until the other members have connected.
pub(super) struct NcclConnector {
    rank: usize,
    world: usize,
    settings: Settings,
    watch: Arc<Watch>,
    host: Device,
    base: Arc<dyn GroupConnector>,
}

impl NcclConnector {
    pub(super) fn new(base: &dyn Rank, settings: Settings, watch: Arc<Watch>) -> NcclConnector {
        NcclConnector {
            rank: base.rank(),
            world: base.world_size(),
            settings,
            watch,
            host: base.device().clone(),
            base: base.connector(),
        }
    }

    /// Begins to create NCCL's communicator of the group of `ranks`.
    fn create(&self, ranks: &Arc<dyn Communicator>) -> Result<Arc<Created>> {
        let library = self.settings.library;
        let id = match ranks.index() {
            0 => library.unique_id()?,
            _ => [0; 128],
        };
        let id = Tensor::from_slice(&self.host, &[id.len()], &id)?;
        let creation = NewCommunicator {
            id: ranks.broadcast(&id, 0)?,
            settings: self.settings.clone(),
            watch: self.watch.clone(),
            group: ranks.group().clone(),
            index: ranks.index(),
            limit: ranks.time_limit(),
        };
        let created = Arc::new(Created::default());
        let result = created.clone();
        thread::Builder::new()
            .name(format!("nccl init {}", self.rank))
            .spawn(move || result.set(creation.create()))
            .map_err(system("a thread to create a communicator could not be started"))?;
        Ok(created)
    }
}

impl Connect for NcclConnector {
    type Communicator = NcclCommunicator;
    type Connecting = NcclCommunicator;

    fn begin(&mut self, creation: &Creation<'_>) -> Result<NcclCommunicator> {
        index_in(creation.group, self.rank, self.world)?;
        let ranks = self.base.connect("nccl", creation.group)?;
        let created = self.create(&ranks)?;
        NcclCommunicator::new(ranks, created, self.settings.clone(), self.watch.clone())
    }

    fn poll(&mut self, connecting: &mut NcclCommunicator) -> Result<Progress<NcclCommunicator>> {
        Ok(Progress::Ready(connecting.clone()))
    }
}
