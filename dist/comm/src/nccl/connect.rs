//! Creating communicators.
//!
//! The first member makes a unique id and sends it to the others. A thread for each communicator waits for it and
//! for the other ranks, so that ranks may connect groups in any order.

use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use meshgrad_collectives::registry::{Connect, Creation, Progress};
use meshgrad_collectives::{Collectives, Communicator, GroupConnector, Rank};
use meshgrad_error::{Error, bail, error};
use meshgrad_mesh::Group;
use meshgrad_nccl::{Communicator as Raw, UniqueId};
use meshgrad_runtime::{Completion, Device, Pending, Result, Tensor};

use super::communicator::NcclCommunicator;
use super::watch::Watch;
use super::{LIMIT, Settings};
use crate::members::index_in;
use crate::system::system;

/// The time between polls of a creation.
const POLL: Duration = Duration::from_millis(1);

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
            0 => library.unique_id()?.0,
            _ => [0; 128],
        };
        let id = Tensor::from_slice(&self.host, &[id.len()], &id)?;
        let creation = NewCommunicator {
            id: ranks.broadcast(&id, 0)?,
            settings: self.settings.clone(),
            watch: self.watch.clone(),
            group: ranks.group().clone(),
            index: ranks.index(),
            until: Instant::now() + ranks.group().options().timeout.unwrap_or(LIMIT),
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

/// A communicator of NCCL, once it exists.
#[derive(Default)]
pub(super) struct Created {
    done: Completion,
    communicator: OnceLock<Arc<Raw>>,
}

impl Created {
    fn set(&self, created: Result<Arc<Raw>>) {
        let result = created.map(|communicator| drop(self.communicator.set(communicator)));
        self.done.complete(result);
    }

    /// Waits until the other members have connected.
    pub(super) fn get(&self) -> Result<&Arc<Raw>> {
        self.done.wait()?;
        let missing = || error!(Invalid, "a communicator was created without a value");
        self.communicator.get().ok_or_else(missing)
    }
}

/// A communicator that is being created.
struct NewCommunicator {
    id: Pending<Tensor>,
    settings: Settings,
    watch: Arc<Watch>,
    group: Group,
    index: usize,
    until: Instant,
}

impl NewCommunicator {
    fn create(self) -> Result<Arc<Raw>> {
        let failed = |error: Error| {
            error.context(format!("NCCL's communicator of {} could not be created", self.group))
        };
        let id = self.id.wait().and_then(|id| id.to_vec::<u8>()).map_err(&failed)?;
        let id = <[u8; 128]>::try_from(id)
            .map_err(|id| failed(error!(Mismatch, "an id of {} bytes", id.len())))?;
        self.settings.device.bind()?;
        let place = [self.index, self.group.len()];
        let options = self.group.options();
        let raw =
            Raw::begin(self.settings.library, UniqueId(id), place, options).map_err(&failed)?;
        let raw = Arc::new(raw);
        self.watch.add(&raw);
        while !raw.is_ready().map_err(&failed)? {
            if Instant::now() > self.until {
                let _ = raw.abort(); // the error below says more
                bail!(Stuck, "NCCL did not connect all members of {} in time", self.group);
            }
            thread::sleep(POLL);
        }
        Ok(raw)
    }
}
