//! The transport over NCCL, between GPUs of one host or of several.
//!
//! A rank of another transport, whose device is a CPU, carries what is not on a GPU: the unique ids of new
//! communicators, control channels, and a call without tensors for each collective. So that transport compares the
//! calls of all ranks and knows who is missing, while NCCL moves the tensors. When it reports an error, all
//! communicators of the rank are aborted. The thread that computes waits for none of this, except that the first
//! call of a communicator waits until the other members have connected it.
//!
//! - `mod.rs`: the rank.
//! - `connect.rs`, `created.rs`: how communicators are created; `communicator.rs`: a communicator of one rank.
//! - `settings.rs`: what the communicators of a rank have in common.
//! - `steps.rs`: what a collective asks of NCCL.
//! - `watch.rs`: the threads that tell the other ranks what this one called, and wait for them.

mod communicator;
mod connect;
mod created;
mod settings;
mod steps;
mod watch;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use meshgrad_collectives::{Clock, ControlChannel, GroupConnector, Rank};
use meshgrad_error::ensure;
use meshgrad_nccl::Library;
use meshgrad_runtime::{Device, Result};

use crate::shares::Shares;
use connect::NcclConnector;
use settings::Settings;
use watch::Watch;

/// A rank whose tensors are on a GPU and travel over NCCL.
///
/// Results have the same bits on all members and in every run of the same ranks and library, but sums are in NCCL's
/// order, not in that of other transports; [`NcclRank::tree`] changes that. A communicator runs its collectives one
/// after the other, and so does a GPU that has several: ranks call them in the same order. Messages in opposite
/// directions between ranks of one group are called in [`fuse`](crate::Collectives::fuse), otherwise each rank may
/// wait for the other one.
pub struct NcclRank<'a> {
    base: &'a dyn Rank,
    settings: Settings,
    shares: Arc<Shares<NcclConnector>>,
    watch: Arc<Watch>,
    /// Of the GPU's memory, what its tensors did not take when the rank was created.
    taken_before: usize,
}

impl<'a> NcclRank<'a> {
    /// This rank of the world of `base`, on `device`. `base` is on a CPU; it carries what is not on a GPU.
    ///
    /// # Errors
    /// When `device` is not a GPU or `base` is on one; when there is no NCCL; when the system starts no thread.
    pub fn new(base: &'a dyn Rank, device: Device) -> Result<NcclRank<'a>> {
        ensure!(
            device.is_gpu() && !base.device().is_gpu(),
            Invalid,
            "NCCL moves tensors between GPUs, and the other ranks are told on the host: rank {} is on {device}, and \
             joined on {}; pass a GPU, and a rank of a CPU",
            base.rank(),
            base.device()
        );
        let library = match device.emulator_library() {
            Some(path) => Library::of_emulator(&path)?,
            None => Library::open()?,
        };
        let stream = (!library.orders_launches()).then(|| device.stream()).transpose()?;
        let taken_before = taken_by_others(&device)?;
        let settings = Settings { device, library, stream, is_strict: false, is_tree: false };
        let watch = Arc::new(Watch::start(base.rank(), &settings.device)?);
        let shares = Arc::new(shares(base, &settings, &watch));
        Ok(NcclRank { base, settings, shares, watch, taken_before })
    }

    /// Whether [`NcclRank::new`] finds NCCL for real GPUs.
    pub fn is_installed() -> bool {
        Library::open().is_ok()
    }

    /// The library, and what overrides the options of groups.
    pub fn library(&self) -> String {
        self.settings.library.describe()
    }

    /// Measures the bytes of the GPU that have been taken since this rank was created, but not by its tensors: by
    /// the communicators that exist, from the first collective of each on, and by other users of the GPU. It fails
    /// when the driver fails.
    pub fn memory(&self) -> impl Fn() -> Result<usize> + Send + use<> {
        let (device, before) = (self.settings.device.clone(), self.taken_before);
        move || Ok(taken_by_others(&device)?.saturating_sub(before))
    }

    /// As [`Local::strict`](crate::Local::strict), for groups that are connected later.
    pub fn strict(self, is_strict: bool) -> NcclRank<'a> {
        self.set(|settings| settings.is_strict = is_strict)
    }

    /// Computes reductions as the other transports do, bit for bit, in groups of up to 64 ranks: each member gets its
    /// shard of all, and adds it in a fixed order. Otherwise only means, maxima, minima and ragged sums are computed
    /// in this way. For groups that are connected later.
    pub fn tree(self, is_tree: bool) -> NcclRank<'a> {
        self.set(|settings| settings.is_tree = is_tree)
    }

    fn set(mut self, change: impl FnOnce(&mut Settings)) -> NcclRank<'a> {
        change(&mut self.settings);
        self.shares = Arc::new(shares(self.base, &self.settings, &self.watch));
        self
    }
}

/// Bytes of the memory of a GPU that are not free and not its tensors'.
fn taken_by_others(device: &Device) -> Result<usize> {
    let total = device.properties().gpu.as_ref().map_or(0, |gpu| gpu.memory);
    let own = device.available_memory()?.unwrap_or(0) + device.memory_stats().live;
    Ok(total.saturating_sub(own))
}

/// A registry without communicators.
fn shares(base: &dyn Rank, settings: &Settings, watch: &Arc<Watch>) -> Shares<NcclConnector> {
    let connector = NcclConnector::new(base, settings.clone(), watch.clone());
    Shares::new(base.rank(), settings.device.clone(), connector)
}

impl Rank for NcclRank<'_> {
    fn rank(&self) -> usize {
        self.base.rank()
    }

    fn world_size(&self) -> usize {
        self.base.world_size()
    }

    fn device(&self) -> &Device {
        &self.settings.device
    }

    fn clock(&self) -> &Clock {
        self.base.clock()
    }

    fn connector(&self) -> Arc<dyn GroupConnector> {
        self.shares.clone()
    }

    fn control(&self, number: u16, limit: Duration) -> Result<ControlChannel> {
        self.base.control(number, limit)
    }
}

impl Drop for NcclRank<'_> {
    fn drop(&mut self) {
        self.watch.leave();
    }
}

impl fmt::Debug for NcclRank<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NcclRank({} of {} on {})", self.rank(), self.world_size(), self.device())
    }
}
