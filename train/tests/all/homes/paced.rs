//! Ranks whose computation takes simulated time: so long per FLOP.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use meshgrad_collectives::{Operands, Request};
use meshgrad_comm::{Clock, Communicator, GroupConnector, Rank};
use meshgrad_mesh::Group;
use meshgrad_runtime::{Device, Pending, Result, Tensor};

/// Sleeps for what the device of a rank has computed.
#[derive(Clone)]
pub(crate) struct Pace {
    clock: Clock,
    device: Device,
    per_flop: Duration,
    /// The FLOPs up to the last sleep.
    done: Arc<Mutex<u64>>,
}

impl Pace {
    pub(crate) fn new(rank: &dyn Rank, per_flop: Duration) -> Pace {
        Pace {
            clock: rank.clock().clone(),
            device: rank.device().clone(),
            per_flop,
            done: Arc::default(),
        }
    }

    /// Sleeps for the FLOPs since the last call.
    pub(crate) fn catch_up(&self) {
        let flops = self.device.work().flops;
        let new = flops - std::mem::replace(&mut *self.done.lock().unwrap(), flops);
        if new > 0 {
            self.clock.sleep(self.time(new));
        }
    }

    pub(crate) fn time(&self, flops: u64) -> Duration {
        let nanos = u64::try_from(self.per_flop.as_nanos()).unwrap();
        Duration::from_nanos(flops * nanos)
    }
}

/// Connects groups whose collectives start, and are waited for, when the rank has computed what
/// comes before.
pub(crate) struct PacedConnector {
    pub(crate) inner: Arc<dyn GroupConnector>,
    pub(crate) pace: Pace,
}

impl GroupConnector for PacedConnector {
    fn connect(&self, name: &str, group: &Group) -> Result<Arc<dyn Communicator>> {
        Ok(Arc::new(Paced { inner: self.inner.connect(name, group)?, pace: self.pace.clone() }))
    }
}

struct Paced {
    inner: Arc<dyn Communicator>,
    pace: Pace,
}

impl Communicator for Paced {
    fn group(&self) -> &Group {
        self.inner.group()
    }

    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn index(&self) -> usize {
        self.inner.index()
    }

    fn device(&self) -> &Device {
        self.inner.device()
    }

    fn start(&self, request: Request, operands: Operands) -> Result<Pending<Option<Tensor>>> {
        self.pace.catch_up();
        let (pending, pace) = (self.inner.start(request, operands)?, self.pace.clone());
        Ok(Pending::by_host(move || {
            pace.catch_up();
            pending.wait()
        }))
    }
}
