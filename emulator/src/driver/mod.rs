//! The CUDA driver: the functions that `libcuda.so` exports, on virtual devices.
//!
//! Every exported function is a thin wrapper in [`ffi`] that converts pointers to values and calls
//! a method of [`Driver`]; no other code of the driver is unsafe. One lock guards the driver's
//! state; it is not held while a stream operation runs.
//!
//! There are two orders of execution (`MESHGRAD_EMULATOR_STREAMS`). *ordered* runs an operation in
//! the call that submits it, so the launch itself returns a kernel's failure, as with
//! `CUDA_LAUNCH_BLOCKING=1`. *random* defers operations and interleaves streams by a seed (see
//! [`schedule`]); a later call returns the failure, as on a GPU. Either way the context is then
//! unusable, and every call returns the same error.

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
mod nccl;
mod occupancy;
mod pointer;
mod pool;
mod report;
mod schedule;
mod stream;
mod ticket;
mod transfer;
mod work;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::memory::AddressSpace;
use crate::options::Options;

use capture::{Capture, CaptureId};
use configuration::Configuration;
use context::{Context, ContextHandle, Primary};
use device::Device;
use error::{Error, Result, catch_panic};
use event::Event;
use graph::{Executable, Graph};
use handles::Table;
use memory::Ownership;
use module::{Function, LoadedModule};
use nccl::world::Communicators;
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
    /// Signaled when an operation has finished.
    changed: Condvar,
    reports: Reports,
}

/// The driver's state.
struct State {
    space: Arc<AddressSpace>,
    devices: Vec<Device>,
    /// Indexed by device.
    primaries: Vec<Primary>,
    /// The default pool of each device, and the current one.
    device_pools: Vec<(PoolHandle, PoolHandle)>,
    contexts: Table<Context>,
    streams: Table<Stream>,
    events: Table<Event>,
    modules: Table<LoadedModule>,
    functions: Table<Function>,
    pools: Table<Pool>,
    graphs: Table<Graph>,
    executables: Table<Executable>,
    nccl: Communicators,
    captures: BTreeMap<CaptureId, Capture>,
    captures_begun: u64,
    ownership: Ownership,
    schedule: Schedule,
}

/// The polling interval when the only work left waits for a value that the host may write.
const POLL: Duration = Duration::from_micros(50);
/// The time without a change after which operations may wait for each other.
const DEADLOCK: Duration = Duration::from_millis(20);

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

    pub(crate) fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    /// The last error message and the launch counters.
    pub(crate) fn reports(&self) -> &Reports {
        &self.reports
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `act` with the state locked.
    fn with<T>(&self, act: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        act(&mut self.lock())
    }

    /// Runs what the order of execution requires after a submission to `stream`.
    fn run_submitted<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        stream: StreamHandle,
    ) -> Result<()> {
        let Stream { context, last, .. } = *state.streams.get(stream)?;
        let steps = state.schedule.steps_after_submission();
        state = self.progress(state, steps);
        // Another thread may be running an operation that the submitted one depends on.
        while state.schedule.is_ordered()
            && state.schedule.is_running_own()
            && last.is_some_and(|last| !state.schedule.is_done(last))
        {
            let woken = self.changed.wait(state);
            state = self.progress(woken.unwrap_or_else(PoisonError::into_inner), steps);
        }
        state.check_context(context)
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
        let mut idle = (state.schedule.changes(), Instant::now());
        while !done(&state) {
            state = match state.start() {
                Some(started) => self.run(state, started),
                None if state.schedule.is_running() => {
                    let woken = self.changed.wait(state);
                    woken.unwrap_or_else(PoisonError::into_inner)
                }
                None => match self.deadlock(&state, &mut idle) {
                    Some((contexts, error)) => {
                        self.reports.report_failure(&error);
                        contexts.into_iter().for_each(|context| state.fail(context, error.clone()));
                        state
                    }
                    None => {
                        let slept = self.changed.wait_timeout(state, POLL);
                        slept.unwrap_or_else(PoisonError::into_inner).0
                    }
                },
            };
        }
        state
    }

    /// The operations that wait for each other, if nothing has changed for a while: to find them takes long.
    fn deadlock(
        &self,
        state: &State,
        idle: &mut (u64, Instant),
    ) -> Option<(Vec<ContextHandle>, Error)> {
        let changes = state.schedule.changes();
        let is_due = idle.0 == changes && idle.1.elapsed() > DEADLOCK && !self.configuration.hangs;
        if idle.0 != changes || is_due {
            *idle = (changes, Instant::now());
        }
        is_due.then(|| state.deadlock()).flatten()
    }

    fn run<'a>(&'a self, state: MutexGuard<'a, State>, started: Started) -> MutexGuard<'a, State> {
        let Started { ticket, context, work } = started;
        // After a failure, no further operation of the context runs.
        let is_healthy = state.check_context(context).is_ok();
        drop(state);
        let meetings = work.meetings().to_vec();
        let outcome = match is_healthy {
            true => catch_panic(|| self.perform(work)),
            false => {
                meetings.iter().for_each(|(meeting, member)| meeting.leave(*member));
                Ok(())
            }
        };
        let mut state = self.lock();
        if is_healthy {
            self.check_order(&mut state, &meetings);
        }
        state.schedule.finish(ticket);
        if let Err(error) = outcome {
            self.reports.report_failure(&error);
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
            memory: configuration.memory.unwrap_or(model.data_sheet().memory),
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
            nccl: Communicators { hangs: configuration.hangs, ..Communicators::default() },
            captures: BTreeMap::new(),
            captures_begun: 0,
            ownership: Ownership::default(),
            schedule: Schedule::new(configuration.streams, configuration.resident),
        }
    }

    /// Starts collectives that wait for no operation, as long as there is room.
    fn start_collectives(&mut self) {
        for meetings in self.schedule.start_collectives() {
            meetings.iter().for_each(|(meeting, member)| meeting.begin(*member, &self.space));
        }
    }

    fn start(&mut self) -> Option<Started> {
        self.start_collectives();
        let (space, contexts) = (&self.space, &self.contexts);
        let has_failed = |context| contexts.get(context).is_ok_and(|it| it.failure.is_some());
        self.schedule.start(has_failed, |work| work.may_run(space))
    }

    /// Fails with the context's first error if the context has failed.
    fn check_context(&self, context: ContextHandle) -> Result<()> {
        let failure = self.contexts.get(context).ok().and_then(|it| it.failure.clone());
        failure.map_or(Ok(()), Err)
    }

    /// Marks `context` as failed; the first error is kept.
    fn fail(&mut self, context: ContextHandle, error: Error) {
        if let Ok(context) = self.contexts.get_mut(context) {
            context.failure.get_or_insert(error);
        }
    }
}
