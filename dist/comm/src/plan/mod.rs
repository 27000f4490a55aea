//! The transport without data: it logs what each rank communicates.
//!
//! A rank's main function runs alone, on a meta device, in a world of any size. Its collectives
//! complete at once and are logged; [`check_logs`] then finds mismatches and deadlocks between the
//! logs of all ranks, without running them together.
//!
//! - `mod.rs`: a rank and its communicators.
//! - `log.rs`: what is logged.
//! - `check.rs`: executes logs together.

mod check;
mod log;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use meshgrad_collectives::registry::{Connect, Creation, Progress};
use meshgrad_collectives::{
    Clock, Communicator, ControlChannel, GroupConnector, Operands, Output, Rank, Request,
};
use meshgrad_error::error;
use meshgrad_mesh::Group;
use meshgrad_runtime::{Device, Error, Pending, Result, Tensor};

pub use check::{Checked, check_logs};
pub use log::{CommEvent, CommLog, LoggedCall};

use crate::members::index_in;

/// A world whose ranks run one after another, or of which only some run.
///
/// ```
/// use meshgrad_comm::{Collectives, Plan, Rank, Reduction, check_logs};
/// use meshgrad_mesh::Mesh;
/// use meshgrad_runtime::{DType, Error, ops};
///
/// let mesh = Mesh::new(&[100, 1000], &["dp", "tp"]).unwrap();
/// let plan = Plan::new(100_000).unwrap();
/// let log = plan.trace(4_321, |rank| {
///     let group = mesh.group(["dp"], rank.rank())?.unwrap();
///     let dp = rank.connect("dp", &group)?;
///     let gradient = ops::full(rank.device(), &[1 << 20], DType::F32, 0.0)?;
///     dp.all_reduce(&gradient, Reduction::Sum)?.wait()?;
///     Ok::<_, Error>(())
/// });
/// let log = log.unwrap();
/// assert_eq!(log.calls().next().unwrap().bytes, 4 << 20);
/// check_logs(&[log]).unwrap(); // members without a log are assumed to take part
/// ```
#[derive(Clone, Debug)]
pub struct Plan {
    all: Group,
    like: Device,
}

impl Plan {
    /// A world of `ranks` ranks, whose devices are meta devices that model this machine's CPU.
    ///
    /// # Errors
    /// When a world cannot have this size.
    pub fn new(ranks: usize) -> Result<Plan> {
        let all: Vec<usize> = (0..ranks).collect();
        let all = Group::new(all)
            .map_err(|error| error.context("the communicator could not be created"))?;
        Ok(Plan { all, like: Device::cpu() })
    }

    /// Makes the meta devices model `device` instead.
    pub fn like(mut self, device: &Device) -> Plan {
        self.like = device.clone();
        self
    }

    /// Runs `main` as one rank and returns its log.
    ///
    /// # Errors
    /// The error of `main`; when the rank is outside of the world.
    pub fn trace<E: From<Error>>(
        &self,
        rank: usize,
        main: impl FnOnce(&PlanRank) -> Result<(), E>,
    ) -> Result<CommLog, E> {
        let world = self.all.len();
        if rank >= world {
            return Err(error!(
                Invalid,
                "rank {rank} is not in a world of {world} ranks; pass a rank below {world}"
            )
            .into());
        }
        let rank = PlanRank {
            rank,
            all: self.all.clone(),
            device: Device::meta(self.like.properties()),
            clock: Clock::simulated(1, 0),
            log: Arc::new(Mutex::new(CommLog::new(rank))),
        };
        main(&rank)?;
        let log = rank.lock().clone();
        Ok(log)
    }

    /// The logs of all ranks, in rank order.
    ///
    /// # Errors
    /// The error of the first rank whose `main` fails.
    pub fn trace_all<E: From<Error>>(
        &self,
        main: impl Fn(&PlanRank) -> Result<(), E>,
    ) -> Result<Vec<CommLog>, E> {
        (0..self.all.len()).map(|rank| self.trace(rank, &main)).collect()
    }
}

/// One rank of a [`Plan`]. Also creates communicators for a
/// [`Registry`](meshgrad_collectives::registry::Registry). Clones are the same rank.
#[derive(Clone)]
pub struct PlanRank {
    rank: usize,
    all: Group,
    device: Device,
    clock: Clock,
    log: Arc<Mutex<CommLog>>,
}

impl PlanRank {
    fn communicator(&self, group: &Group) -> Result<PlanCommunicator> {
        Ok(PlanCommunicator {
            rank: self.clone(),
            index: index_in(group, self.rank, self.world_size())?,
            group: group.clone(),
            logged: self.lock().group(group),
        })
    }

    fn lock(&self) -> MutexGuard<'_, CommLog> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Rank for PlanRank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.all.len()
    }

    /// Its meta device.
    fn device(&self) -> &Device {
        &self.device
    }

    /// Its clock, which advances only by [`Clock::sleep`]: collectives take no time.
    fn clock(&self) -> &Clock {
        &self.clock
    }

    fn connector(&self) -> Arc<dyn GroupConnector> {
        Arc::new(self.clone())
    }

    fn world(&self) -> Result<Arc<dyn Communicator>> {
        Ok(Arc::new(PlanCommunicator {
            rank: self.clone(),
            index: self.rank,
            group: self.all.clone(),
            logged: self.lock().group(&self.all),
        }))
    }

    /// Takes this rank's messages for those of all ranks.
    fn control(&self, _: u16, _: Duration) -> Result<ControlChannel> {
        Ok(ControlChannel::echo(self.world_size()))
    }
}

impl fmt::Debug for PlanRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PlanRank({} of {})", self.rank, self.world_size())
    }
}

impl Connect for PlanRank {
    type Communicator = PlanCommunicator;
    type Connecting = PlanCommunicator;

    fn begin(&mut self, creation: &Creation<'_>) -> Result<PlanCommunicator> {
        self.communicator(creation.group)
    }

    fn poll(&mut self, connecting: &mut PlanCommunicator) -> Result<Progress<PlanCommunicator>> {
        Ok(Progress::Ready(connecting.clone()))
    }
}

impl GroupConnector for PlanRank {
    fn connect(&self, _name: &str, group: &Group) -> Result<Arc<dyn Communicator>> {
        Ok(Arc::new(self.communicator(group)?))
    }
}

/// A communicator that moves nothing and logs its collectives. Clones are the same communicator.
#[derive(Clone, Debug)]
pub struct PlanCommunicator {
    rank: PlanRank,
    index: usize,
    group: Group,
    /// The group's number in the log.
    logged: usize,
}

impl Communicator for PlanCommunicator {
    fn group(&self) -> &Group {
        &self.group
    }

    fn rank(&self) -> usize {
        self.rank.rank
    }

    fn index(&self) -> usize {
        self.index
    }

    fn device(&self) -> &Device {
        &self.rank.device
    }

    fn start(&self, request: Request, operands: Operands) -> Result<Pending<Option<Tensor>>> {
        Ok(self.log(request, operands, 1))
    }

    fn start_fused(&self, calls: Vec<(Request, Operands)>) -> Result<Vec<Pending<Option<Tensor>>>> {
        let is_collective = |call: &&(Request, Operands)| call.0.peer.is_none();
        let together = calls.iter().filter(is_collective).count();
        let starts = calls.into_iter().map(|(request, operands)| {
            let fused = if request.peer.is_none() { together } else { 1 };
            self.log(request, operands, fused)
        });
        Ok(starts.collect())
    }
}

impl PlanCommunicator {
    fn log(&self, request: Request, operands: Operands, fused: usize) -> Pending<Option<Tensor>> {
        let bytes = operands.bytes();
        let result = match operands.output {
            Output::None => None,
            Output::New(tensor) => Some(tensor.finish()),
            Output::Into(tensor) => Some(tensor),
        };
        let call = self.rank.lock().start(LoggedCall { group: self.logged, request, bytes, fused });

        let rank = self.rank.clone();
        Pending::by_host(move || {
            rank.lock().wait(call);
            Ok(result)
        })
    }
}
