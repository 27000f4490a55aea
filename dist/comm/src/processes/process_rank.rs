//! A rank's view of its world.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use meshgrad_collectives::registry::Registry;
use meshgrad_collectives::{Clock, GroupConnector, Rank};
use meshgrad_error::FailedRank;
use meshgrad_runtime::{Device, Result};

use super::acceptor::Acceptor;
use super::communicator::{TcpConnector, TcpExchange};
use super::connection::Connection;
use super::coordinator::Coordinator;
use super::data::{DataPlane, Engine};
use super::poll::Waker;
use super::progress::Progress;
use super::shared::Shared;
use super::tcp::{Addresses, TcpData};
use crate::shares::Shares;
use crate::system::system;

/// This process as a rank of a world of processes ([`Tcp::join`](crate::Tcp::join)).
///
/// Dropping it leaves the world: what this rank has sent still arrives, and ranks that wait for
/// anything else from it fail. Over TCP, rank 0 waits in `drop` until all other ranks have left,
/// because they are connected to it; over MPI, all ranks wait for each other. After a failure,
/// `drop` does not wait. Over TCP, a process can join another world afterwards: at another address,
/// or at the same one once all ranks have left.
pub struct ProcessRank {
    rank: usize,
    size: usize,
    device: Device,
    clock: Clock,
    deadline: Duration,
    shared: Arc<Shared>,
    shares: Arc<Shares<TcpConnector>>,
    exchanges: Arc<AtomicU64>,
    progress: Option<JoinHandle<()>>,
    coordinator: Option<Coordinator>,
    engine: Option<Box<dyn Engine>>,
}

/// What a rank has when it has joined.
pub(super) struct Parts {
    pub(super) rank: usize,
    pub(super) world: usize,
    pub(super) device: Device,
    pub(super) deadline: Duration,
    pub(super) grace: Option<Duration>,
    pub(super) is_strict: bool,
    pub(super) coordinator: Option<Coordinator>,
    pub(super) control: Connection,
    pub(super) carrier: Carrier,
}

/// What carries the data.
pub(super) enum Carrier {
    Tcp(Addresses, Acceptor),
    Engine(Box<dyn Engine>),
}

impl ProcessRank {
    pub(super) fn start(parts: Parts) -> Result<ProcessRank> {
        let Parts {
            rank,
            world,
            device,
            deadline,
            grace,
            is_strict,
            coordinator,
            control,
            carrier,
        } = parts;
        let failed = system("the rank's thread could not be started");
        let (waker, sleeper) = Waker::pair().map_err(&failed)?;
        let shared = Arc::new(Shared::new(rank, world, waker));
        let (data, engine): (Box<dyn DataPlane>, _) = match carrier {
            Carrier::Tcp(addresses, acceptor) => {
                let tcp = TcpData::start(shared.clone(), addresses, acceptor).map_err(&failed)?;
                (Box::new(tcp), None)
            }
            Carrier::Engine(engine) => (engine.data_plane(shared.clone())?, Some(engine)),
        };
        let progress = Progress::new(shared.clone(), sleeper, control, data);
        let progress = thread::Builder::new()
            .name(format!("rank {rank}"))
            .spawn(move || progress.run())
            .map_err(failed)?;
        let connector = TcpConnector {
            shared: shared.clone(),
            device: device.clone(),
            deadline,
            grace,
            is_strict,
        };
        let shares = Arc::new(Shares::new(rank, device.clone(), connector));
        Ok(ProcessRank {
            rank,
            size: world,
            device,
            clock: Clock::real(),
            deadline,
            shared,
            shares,
            exchanges: Arc::default(),
            progress: Some(progress),
            coordinator,
            engine,
        })
    }

    /// Its registry, which creates and shares its communicators.
    pub fn registry(&self) -> &Registry<TcpConnector> {
        self.shares.registry()
    }

    /// Exchanges bytes with all ranks, to [agree](meshgrad_collectives::registry::GroupPlan::agree) on a
    /// plan.
    pub fn exchange(&self) -> TcpExchange {
        TcpExchange {
            shared: self.shared.clone(),
            next: self.exchanges.clone(),
            deadline: self.deadline,
        }
    }

    /// The rank whose failure ended the world, if this rank knows of one.
    pub fn failure(&self) -> Option<FailedRank> {
        self.shared.death()
    }

    /// Leaves the world because of a failure: all ranks that wait fail, with a [`FailedRank`] with
    /// this reason as details. A panic does the same.
    pub fn fail(self, reason: impl Into<String>) {
        self.shared.died(self.rank, reason);
    }

    /// As [`ProcessRank::fail`], as a consequence of the failure of another rank, which the errors
    /// name. That rank may report its failure later than this one. A rank outside of the world
    /// stands for this one.
    pub fn fail_with(self, failed: FailedRank) {
        let rank = match failed.rank < self.world_size() {
            true => failed.rank,
            false => self.rank,
        };
        self.shared.died(rank, failed.reason);
    }
}

impl Rank for ProcessRank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.size
    }

    /// Its CPU device.
    fn device(&self) -> &Device {
        &self.device
    }

    /// Its clock, which starts when it has joined.
    fn clock(&self) -> &Clock {
        &self.clock
    }

    fn connector(&self) -> Arc<dyn GroupConnector> {
        self.shares.clone()
    }
}

impl Drop for ProcessRank {
    fn drop(&mut self) {
        if thread::panicking() {
            self.shared.died(self.rank, "it panicked");
        }
        let has_failed = self.shared.has_failed();
        self.shared.leave();
        if let Some(progress) = self.progress.take() {
            // Its panic would have closed the connections, which the other ranks notice.
            let _ = progress.join();
        }
        if !has_failed && let Some(coordinator) = &mut self.coordinator {
            coordinator.finish();
        }
        if let Some(engine) = self.engine.take() {
            engine.finish(has_failed || self.shared.death().is_some());
        }
    }
}

impl fmt::Debug for ProcessRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProcessRank(rank {} of {})", self.rank, self.world_size())
    }
}
