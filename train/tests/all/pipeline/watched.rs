//! Counts the collectives of stages that are under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use meshgrad_collectives::{GroupConnector, Operands, Request};
use meshgrad_comm::Communicator;
use meshgrad_mesh::{Channel, Group};
use meshgrad_runtime::{Device, Pending, Result, Tensor};

/// Connects groups and counts what they have under way.
pub(crate) struct Watched {
    connector: Arc<dyn GroupConnector>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    under_way: AtomicUsize,
    most: AtomicUsize,
}

struct WatchedCommunicator {
    counts: Arc<Counts>,
    inner: Arc<dyn Communicator>,
}

impl Watched {
    pub(crate) fn new(connector: Arc<dyn GroupConnector>) -> Watched {
        Watched { connector, counts: Arc::default() }
    }

    /// The most at one time.
    pub(crate) fn most(&self) -> usize {
        self.counts.most.load(Ordering::Relaxed)
    }
}

impl GroupConnector for Watched {
    fn connect(&self, name: &str, group: &Group) -> Result<Arc<dyn Communicator>> {
        let inner = self.connector.connect(name, group)?;
        Ok(match name == "redistribute" && group.channel() == Channel::Main {
            true => Arc::new(WatchedCommunicator { counts: self.counts.clone(), inner }),
            false => inner,
        })
    }
}

impl Communicator for WatchedCommunicator {
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

    fn start(&self, call: Request, operands: Operands) -> Result<Pending<Option<Tensor>>> {
        let pending = self.inner.start(call, operands)?;
        let counts = self.counts.clone();
        let under_way = counts.under_way.fetch_add(1, Ordering::Relaxed) + 1;
        counts.most.fetch_max(under_way, Ordering::Relaxed);
        Ok(Pending::by_host(move || {
            counts.under_way.fetch_sub(1, Ordering::Relaxed);
            pending.wait()
        }))
    }
}
