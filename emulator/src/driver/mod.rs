//! The CUDA driver: what `libcuda.so` exports, over virtual devices.
//!
//! Every exported function is a thin one in [`ffi`], which turns pointers into values and calls a
//! method of [`Driver`]; nothing outside `ffi` is unsafe. The driver's state lies under one lock,
//! which no operation of a stream holds while it runs.
//!
//! Two orders of execution (`MESHGRAD_EMULATOR_STREAMS`): *ordered* runs an operation in the call
//! that submits it, so a kernel's failure is returned by the launch itself, as with
//! `CUDA_LAUNCH_BLOCKING=1`; *random* lets operations wait and interleaves streams by a seed (see
//! [`schedule`]), and a failure is returned by whichever call meets it later, as on a GPU. Either
//! way the context is then unusable, as on a GPU, and every call repeats the failure.

mod capture;
mod configuration;
mod context;
mod device;
mod error;
mod event;
mod ffi;
mod graph;
mod handles;
mod launch;
mod leaks;
mod memory;
mod module;
mod occupancy;
mod pointer;
mod pool;
mod report;
mod schedule;
mod stream;
mod transfer;
mod work;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::memory::AddressSpace;
use crate::options::Options;

use capture::{Capture, CaptureId};
use configuration::Configuration;
use context::{Context, ContextHandle, Primary};
use device::Device;
use error::{Error, Result, unless_panicking};
use event::Event;
use graph::{Executable, Graph};
use handles::Table;
use memory::Ledger;
use module::{Function, LoadedModule};
use pool::{Pool, PoolHandle};
use report::Reports;
use schedule::{Schedule, Started};
use stream::{Stream, StreamHandle};

/// The emulated driver of a process.
pub(crate) struct Driver {
    configuration: Configuration,
    options: Options,
    space: Arc<AddressSpace>,
    state: Mutex<State>,
    /// Some operation has finished.
    changed: Condvar,
    reports: Reports,
}

/// All that the driver knows.
struct State {
    space: Arc<AddressSpace>,
    devices: Vec<Device>,
    /// By device.
    primaries: Vec<Primary>,
    /// The default pool of each device, and the one in use.
    device_pools: Vec<(PoolHandle, PoolHandle)>,
    contexts: Table<Context>,
    streams: Table<Stream>,
    events: Table<Event>,
    modules: Table<LoadedModule>,
    functions: Table<Function>,
    pools: Table<Pool>,
    graphs: Table<Graph>,
    executables: Table<Executable>,
    captures: BTreeMap<CaptureId, Capture>,
    captures_begun: u64,
    ledger: Ledger,
    schedule: Schedule,
}

/// How long to sleep when all that is left waits for a value that the host may write any time.
const POLL: Duration = Duration::from_micros(50);

impl Driver {
    pub(crate) fn new(configuration: Configuration, options: Options) -> Driver {
        let space = Arc::new(AddressSpace::new());
        let state = State::new(&configuration, space.clone());
        Driver {
            reports: Reports::new(configuration.quiet, configuration.counters.clone()),
            configuration,
            options,
            space,
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// The latest words about something that went wrong, and the counters of launches.
    pub(crate) fn reports(&self) -> &Reports {
        &self.reports
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the state.
    fn with<T>(&self, act: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        act(&mut self.lock())
    }

    /// Runs what the order of execution wants run after something was submitted to `stream`.
    fn settle<'a>(&'a self, mut state: MutexGuard<'a, State>, stream: StreamHandle) -> Result<()> {
        let Stream { context, last, .. } = *state.streams.get(stream)?;
        let steps = state.schedule.steps_after_submission();
        state = self.progress(state, steps);
        // What it follows may be running in another thread.
        while state.schedule.is_ordered()
            && state.schedule.is_running_own()
            && last.is_some_and(|last| !state.schedule.is_done(last))
        {
            let woken = self.changed.wait(state);
            state = self.progress(woken.unwrap_or_else(PoisonError::into_inner), steps);
        }
        state.healthy(context)
    }

    /// Runs up to `steps` operations.
    fn progress<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        steps: usize,
    ) -> MutexGuard<'a, State> {
        for _ in 0..steps {
            let Some(started) = state.start() else {
                break;
            };
            state = self.run(state, started);
        }
        state
    }

    /// Runs operations until `done` holds.
    fn wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        done: impl Fn(&State) -> bool,
    ) -> MutexGuard<'a, State> {
        while !done(&state) {
            state = match state.start() {
                Some(started) => self.run(state, started),
                None if state.schedule.is_running() => {
                    let woken = self.changed.wait(state);
                    woken.unwrap_or_else(PoisonError::into_inner)
                }
                None => {
                    let slept = self.changed.wait_timeout(state, POLL);
                    slept.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        state
    }

    fn run<'a>(&'a self, state: MutexGuard<'a, State>, started: Started) -> MutexGuard<'a, State> {
        let Started {
            ticket,
            context,
            work,
        } = started;
        // After a failure nothing more of the context runs.
        let is_healthy = state.healthy(context).is_ok();
        drop(state);
        let outcome = match is_healthy {
            true => unless_panicking(|| self.perform(work)),
            false => Ok(()),
        };
        let mut state = self.lock();
        state.schedule.finish(ticket);
        if let Err(error) = outcome {
            self.reports.failure(&error);
            state.fail(context, error);
        }
        self.changed.notify_all();
        state
    }
}

impl State {
    fn new(configuration: &Configuration, space: Arc<AddressSpace>) -> State {
        let device = |model: &device::Model| Device {
            model: *model,
            memory: configuration.memory.unwrap_or(model.facts().memory),
        };
        let devices: Vec<Device> = configuration.devices.iter().map(device).collect();
        let mut pools = Table::default();
        let device_pools = (0..devices.len() as u32).map(|device| {
            let pool = pools.insert(Pool::of_device(device));
            (pool, pool)
        });
        State {
            space,
            primaries: devices.iter().map(|_| Primary::default()).collect(),
            device_pools: device_pools.collect(),
            devices,
            contexts: Table::default(),
            streams: Table::default(),
            events: Table::default(),
            modules: Table::default(),
            functions: Table::default(),
            pools,
            graphs: Table::default(),
            executables: Table::default(),
            captures: BTreeMap::new(),
            captures_begun: 0,
            ledger: Ledger::default(),
            schedule: Schedule::new(configuration.streams),
        }
    }

    fn start(&mut self) -> Option<Started> {
        let space = &self.space;
        self.schedule.start(|work| work.may_run(space))
    }

    /// An error if an operation of `context` has failed.
    fn healthy(&self, context: ContextHandle) -> Result<()> {
        let failure = self
            .contexts
            .get(context)
            .ok()
            .and_then(|it| it.failure.clone());
        failure.map_or(Ok(()), Err)
    }

    /// Makes `context` unusable; the first failure stays.
    fn fail(&mut self, context: ContextHandle, error: Error) {
        if let Ok(context) = self.contexts.get_mut(context) {
            context.failure.get_or_insert(error);
        }
    }
}
