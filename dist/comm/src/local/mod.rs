//! The transport between threads of one process.
//!
//! Ranks are threads, and tensors are in memory that all of them reach, or on GPUs. A member of a
//! collective lends its tensors to a shared table, and the thread of the last member to arrive does
//! the whole work: it reads the inputs of all members and writes each output once. Waiting threads
//! sleep, and their cores help with large collectives. The only other lasting thread is the timer
//! of modelled links, so 64 ranks run on two cores.
//!
//! - `mod.rs`: starts ranks and ends them.
//! - `world.rs`, `status.rs`: what all ranks share: communicators, and which ranks have ended.
//! - `connect.rs`: the registry's interface to it.
//! - `communicator.rs`: a communicator of one rank.
//! - `table.rs`, `meeting.rs`: the open collectives of a communicator, shared by its members, and
//!   how they end.
//! - `watch.rs`: the ranks that wait, and why a collective cannot complete.
//! - `rules.rs`, `links.rs`: the settings of a world, and how long its transfers take.
//! - `execute.rs`: the work of a collective whose members have all arrived; `gpus/`: on GPUs.
//! - `work.rs`: which elements a collective copies and reduces.
//! - `part.rs`, `shards.rs`: the elements of one member, and their division among threads.

pub(crate) mod communicator;
mod connect;
mod execute;
pub(crate) mod gpus;
mod links;
mod meeting;
mod part;
mod rules;
mod shards;
mod status;
mod table;
mod watch;
mod work;
mod world;

use std::any::Any;
use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use meshgrad_collectives::registry::Registry;
use meshgrad_collectives::{Clock, Communicator, ControlChannel, GroupConnector, Rank};
use meshgrad_error::{Error, FailedRank, bail, error};
use meshgrad_mesh::{Group, Hosts, LinkCosts};
use meshgrad_runtime::{Device, Result};

pub use communicator::LocalCommunicator;
pub use connect::LocalConnector;

use crate::shares::Shares;
use links::Links;
use rules::Rules;
use world::World;

/// The time limit of a collective if neither [`Local::deadline`] nor the group's options set one.
const DEADLINE: Duration = Duration::from_secs(300);

/// Runs the ranks of a world as threads of this process.
///
/// ```
/// use meshgrad_comm::{Collectives, Local, Rank, Reduction};
/// use meshgrad_runtime::{Error, Tensor};
///
/// let sums = Local::run(4, |rank| {
///     let world = rank.world()?;
///     let x = Tensor::scalar(rank.device(), rank.rank() as f32)?;
///     world.all_reduce(&x, Reduction::Sum)?.wait()?.item::<f32>()
/// });
/// assert_eq!(sums.unwrap(), [6.0; 4]);
/// ```
#[derive(Clone, Debug)]
pub struct Local {
    ranks: usize,
    threads: Option<usize>,
    /// The ranks' devices, if they are not CPU devices of their own.
    devices: Option<Vec<Device>>,
    deadline: Duration,
    grace: Option<Duration>,
    is_strict: bool,
    links: Option<(LinkCosts, Hosts)>,
    /// The seed of simulated time.
    seed: Option<u64>,
}

impl Local {
    /// A world of `ranks` ranks.
    pub fn new(ranks: usize) -> Local {
        Local {
            ranks,
            threads: None,
            devices: None,
            deadline: DEADLINE,
            grace: None,
            is_strict: false,
            links: None,
            seed: None,
        }
    }

    /// The threads of each rank's device, at least 1. By default its share of the cores.
    pub fn threads(mut self, threads: usize) -> Local {
        self.threads = Some(threads);
        self
    }

    /// The device of each rank, such as [`Device::cuda`] of its number: all GPUs, or all CPU
    /// devices. Ranks may share a GPU, each with a [`Device`] of its own.
    pub fn devices(mut self, devices: Vec<Device>) -> Local {
        self.devices = Some(devices);
        self
    }

    /// The time limit of collectives whose group has no `timeout` option; 5 minutes by default.
    pub fn deadline(mut self, deadline: Duration) -> Local {
        self.deadline = deadline;
        self
    }

    /// How long a collective waits after its time limit for ranks that are not waiting themselves.
    /// Ranks that arrive by then are reported as late ([`Verdict::Straggler`](crate::Verdict)), the
    /// others as missing. By default a tenth of the limit.
    pub fn grace(mut self, grace: Duration) -> Local {
        self.grace = Some(grace);
        self
    }

    /// Makes each collective wait for all members before its call returns. The call itself then
    /// fails if calls differ, and a program that uses groups in different orders fails in every
    /// run, not only in those with unlucky timing. Sends and receives do not wait.
    pub fn strict(mut self, strict: bool) -> Local {
        self.is_strict = strict;
        self
    }

    /// Models links: transfers take the time of the cost model of rings. Ranks continue meanwhile.
    /// Transfers that share a rank run one after another.
    pub fn links(mut self, costs: LinkCosts, hosts: Hosts) -> Local {
        self.links = Some((costs, hosts));
        self
    }

    /// Simulates time: [`Rank::clock`] and all time limits then use a clock that stands still
    /// while a rank runs and jumps to the next event when all ranks wait or sleep. Ranks run one at
    /// a time, in an order that `seed` determines, so a run can be repeated. Threads must not wait
    /// for each other in any other way.
    pub fn simulated(mut self, seed: u64) -> Local {
        self.seed = Some(seed);
        self
    }

    /// Runs `main` on each rank and returns its results in rank order. When a rank returns an error
    /// or panics, waiting ranks fail, with a [`FailedRank`] as details; when one returns without
    /// starting a collective, those that wait for it there fail with
    /// [`CommError::Returned`](crate::CommError::Returned).
    ///
    /// # Errors
    /// When the ranks cannot be started. When a rank fails: the details are the [`FailedRank`] that
    /// failed first, and the source is its error, unless it panicked.
    pub fn run<T, E>(
        ranks: usize,
        main: impl Fn(&LocalRank) -> Result<T, E> + Sync,
    ) -> Result<Vec<T>>
    where
        T: Send,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        Local::new(ranks).launch(main)
    }

    /// [`Local::run`] with these settings.
    ///
    /// # Errors
    /// As [`Local::run`].
    pub fn launch<T, E>(&self, main: impl Fn(&LocalRank) -> Result<T, E> + Sync) -> Result<Vec<T>>
    where
        T: Send,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        let all: Vec<usize> = (0..self.ranks).collect();
        let not_started = |error: Error| error.context("the ranks could not be started");
        let all = Group::new(all).map_err(not_started)?;
        let devices = self.checked_devices().map_err(not_started)?;
        let launch = Launch {
            devices,
            world: Arc::new(World::new(all, self.rules())),
            first_failure: Mutex::default(),
        };
        let values: Vec<Option<T>> = thread::scope(|scope| {
            let (launch, main) = (&launch, &main);
            let start = |rank| {
                let builder = thread::Builder::new().name(format!("rank {rank}"));
                let thread = builder.spawn_scoped(scope, move || launch.run(rank, main));
                thread.map_err(|error| launch.not_started(rank, &error))
            };
            let threads: Vec<_> = (0..self.ranks).map(start).collect();
            let joined = threads.into_iter().map(|thread| thread.ok()?.join().ok()?);
            joined.collect()
        });
        let failure = launch.first_failure.into_inner();
        match failure.unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(values.into_iter().flatten().collect()),
        }
    }

    fn checked_devices(&self) -> Result<Option<&[Device]>> {
        let Some(devices) = &self.devices else {
            return Ok(None);
        };
        let (given, ranks) = (devices.len(), self.ranks);
        if given != ranks {
            bail!(Invalid, "{given} devices for {ranks} ranks; pass one per rank");
        }
        if let Some(meta) = devices.iter().find(|device| !device.computes()) {
            bail!(Invalid, "{meta} computes no values; use `Plan`");
        }
        for (rank, device) in devices.iter().enumerate() {
            if let Some(before) = devices[..rank].iter().position(|it| it == device) {
                bail!(
                    Invalid,
                    "ranks {before} and {rank} have the same device; create one for each rank"
                );
            }
        }
        let differs = |device: &&Device| device.is_gpu() != devices[0].is_gpu();
        match devices.iter().find(differs) {
            Some(other) => bail!(
                Invalid,
                "{} and {other} cannot be devices of one world; pass GPUs or CPU devices only",
                devices[0]
            ),
            None => Ok(Some(devices)),
        }
    }

    fn rules(&self) -> Rules {
        let links = self.links.clone();
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Rules {
            threads: self.threads.unwrap_or((cores / self.ranks).max(1)),
            clock: match self.seed {
                Some(seed) => Clock::simulated(self.ranks, seed),
                None => Clock::real(),
            },
            deadline: self.deadline,
            grace: self.grace,
            is_strict: self.is_strict,
            links: links.map(|(costs, hosts)| Links::new(costs, hosts)),
        }
    }
}

/// The ranks of one call of [`Local::launch`].
struct Launch<'a> {
    devices: Option<&'a [Device]>,
    world: Arc<World>,
    first_failure: Mutex<Option<Error>>,
}

impl Launch<'_> {
    /// Runs a rank on the calling thread. `None` if it fails, which ends all ranks.
    fn run<T, E>(&self, rank: usize, main: impl Fn(&LocalRank) -> Result<T, E>) -> Option<T>
    where
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        let clock = self.world.rules().clock.of_rank(rank);
        clock.enter();
        let value = match self.result(rank, main) {
            Ok(value) => {
                self.world.returned(rank);
                Some(value)
            }
            Err((error, reason)) => {
                self.fail(error, rank, reason);
                None
            }
        };
        clock.leave();
        value
    }

    /// A failure is an error and the reason that the other ranks report.
    fn result<T, E>(
        &self,
        rank: usize,
        main: impl Fn(&LocalRank) -> Result<T, E>,
    ) -> Result<T, (Error, String)>
    where
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        let failed = |source: Box<dyn StdError + Send + Sync>| {
            let reason = source.to_string();
            (error!(PeerFailed, "rank {rank}: {reason}").caused_by(source), reason)
        };
        let device = match self.devices {
            Some(devices) => Ok(devices[rank].clone()),
            None => Device::cpu_with_threads(self.world.rules().threads),
        };
        let device = device.map_err(|error| failed(error.into()))?;
        let local = LocalRank::new(rank, device.clone(), self.world.clone());
        match catch_unwind(AssertUnwindSafe(|| device.run(|| main(&local)))) {
            Ok(result) => result.map_err(|error| failed(error.into())),
            Err(panic) => {
                let message = message(panic);
                let error = error!(PeerFailed, "rank {rank} panicked: {message}");
                Err((error, format!("panic: {message}")))
            }
        }
    }

    fn not_started(&self, rank: usize, error: &io::Error) {
        let reason = format!("the system could not start its thread: {error}");
        self.fail(error!(System, "the ranks could not be started: {reason}"), rank, reason);
        self.world.rules().clock.of_rank(rank).leave();
    }

    fn fail(&self, error: Error, rank: usize, reason: String) {
        let error = error.and_details(FailedRank { rank, reason: reason.clone() });
        let first = self.first_failure.lock();
        let mut first = first.unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(error);
        drop(first);
        self.world.fail(rank, reason);
    }
}

fn message(panic: Box<dyn Any + Send>) -> String {
    match panic.downcast::<String>() {
        Ok(message) => *message,
        Err(panic) => match panic.downcast::<&str>() {
            Ok(message) => (*message).to_owned(),
            Err(_) => "a value that is not a message".to_owned(),
        },
    }
}

/// One rank of a [`Local`] world, for its main function.
pub struct LocalRank {
    rank: usize,
    device: Device,
    world: Arc<World>,
    clock: Clock,
    shares: Arc<Shares<LocalConnector>>,
    /// Of control channels, once one is requested.
    control: OnceLock<Shares<LocalConnector>>,
}

impl LocalRank {
    fn new(rank: usize, device: Device, world: Arc<World>) -> LocalRank {
        let connector = LocalConnector::new(rank, device.clone(), world.clone());
        LocalRank {
            rank,
            clock: world.rules().clock.of_rank(rank),
            world,
            shares: Arc::new(Shares::new(rank, device.clone(), connector)),
            control: OnceLock::new(),
            device,
        }
    }

    /// The rank of a world of one, on the calling thread. Its collectives send nothing.
    ///
    /// # Errors
    /// Never: a world of one rank is valid.
    pub fn alone(device: &Device) -> Result<LocalRank> {
        let world = World::new(Group::new([0])?, Local::new(1).rules());
        Ok(LocalRank::new(0, device.clone(), Arc::new(world)))
    }

    /// Its registry, which creates and shares its communicators.
    pub fn registry(&self) -> &Registry<LocalConnector> {
        self.shares.registry()
    }
}

impl Rank for LocalRank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world.all().len()
    }

    /// The one in [`Local::devices`], or its own CPU device with its share of the cores.
    fn device(&self) -> &Device {
        &self.device
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    fn connector(&self) -> Arc<dyn GroupConnector> {
        self.shares.clone()
    }

    fn world(&self) -> Result<Arc<dyn Communicator>> {
        self.connect("world", self.world.all())
    }

    /// In host memory of its own, so nothing is allocated on the rank's device.
    fn control(&self, number: u16, limit: Duration) -> Result<ControlChannel> {
        ControlChannel::of(self.world_size(), number, limit, |all| {
            let control = match self.control.get() {
                Some(control) => control,
                None => {
                    let host = Device::cpu_with_threads(1)?;
                    let connector =
                        LocalConnector::new(self.rank, host.clone(), self.world.clone());
                    let control = Shares::new(self.rank, host, connector.of_control());
                    self.control.get_or_init(|| control)
                }
            };
            control.connect("control", all)
        })
    }
}

impl fmt::Debug for LocalRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LocalRank({} of {})", self.rank, self.world_size())
    }
}
