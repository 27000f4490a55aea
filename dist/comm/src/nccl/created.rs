//! A communicator of NCCL that is being created.

use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use meshgrad_error::{Error, bail, error};
use meshgrad_mesh::Group;
use meshgrad_nccl::Communicator as Raw;
use meshgrad_runtime::{Completion, Pending, Result, Tensor};

use super::settings::Settings;
use super::watch::Watch;

/// The time between polls of a creation.
const POLL: Duration = Duration::from_millis(1);

/// A communicator of NCCL, once it exists.
#[derive(Default)]
pub(super) struct Created {
    done: Completion,
    communicator: OnceLock<Arc<Raw>>,
}

impl Created {
    pub(super) fn set(&self, created: Result<Arc<Raw>>) {
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
pub(super) struct NewCommunicator {
    pub(super) id: Pending<Tensor>,
    pub(super) settings: Settings,
    pub(super) watch: Arc<Watch>,
    pub(super) group: Group,
    pub(super) index: usize,
    pub(super) limit: Duration,
}

impl NewCommunicator {
    pub(super) fn create(self) -> Result<Arc<Raw>> {
        let failed = |error: Error| {
            error.context(format!("NCCL's communicator of {} could not be created", self.group))
        };
        let id = self.id.wait().and_then(|id| id.to_vec::<u8>()).map_err(&failed)?;
        let id = <[u8; 128]>::try_from(id)
            .map_err(|id| failed(error!(Mismatch, "an id of {} bytes", id.len())))?;
        self.settings.device.bind()?;
        let place = [self.index, self.group.len()];
        let options = self.group.options();
        let raw = Raw::begin(self.settings.library, id, place, options).map_err(&failed)?;
        let raw = Arc::new(raw);
        self.watch.add(&raw);
        let since = Instant::now();
        while !raw.is_ready().map_err(&failed)? {
            if since.elapsed() > self.limit {
                let _ = raw.abort(); // the error below says more
                bail!(Stuck, "NCCL did not connect all members of {} in time", self.group);
            }
            thread::sleep(POLL);
        }
        Ok(raw)
    }
}
