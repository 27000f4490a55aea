//! The threads that tell the other ranks what this one called, and wait for them.
//!
//! For each collective, one thread starts a call without tensors on the host, the next one waits until all
//! members have called it, and the last one until NCCL has finished it. The first error aborts all communicators
//! of this rank.

use std::sync::mpsc::{Receiver, SendError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use meshgrad_collectives::{Communicator, Operands, Output, Request};
use meshgrad_error::{Error, error};
use meshgrad_nccl::Communicator as Raw;
use meshgrad_runtime::{Completion, Device, Pending, Result, StreamEvent, Tensor};

use crate::system::system;

/// The time between polls of a collective that runs.
const POLL: Duration = Duration::from_millis(1);
/// How long to wait for the name of a rank that failed.
const NAMED: Duration = Duration::from_secs(1);
/// How long a rank that leaves waits for collectives that it has called.
const LEAVE: Duration = Duration::from_secs(10);

/// A rank's collectives in flight.
pub(super) struct Watch {
    calls: Sender<Option<Call>>,
    state: Arc<State>,
}

struct State {
    /// Whose values are not valid after a failure.
    device: Device,
    failure: OnceLock<Error>,
    communicators: Mutex<Vec<Weak<Raw>>>,
    /// Set when this rank has left and its collectives are done.
    has_left: Completion,
}

/// A collective that this rank has called.
pub(super) struct Call {
    /// What compares it with the calls of other ranks.
    pub(super) ranks: Arc<dyn Communicator>,
    pub(super) request: Request,
    pub(super) progress: Arc<CallProgress>,
}

/// How far a collective has come.
#[derive(Default)]
pub(super) struct CallProgress {
    /// Set when all members have called it.
    pub(super) called: Completion,
    /// The end of its work on the GPU; `None` without such work. Set once it is enqueued.
    pub(super) end: OnceLock<Option<StreamEvent>>,
}

impl CallProgress {
    /// A call whose work ends with `end`.
    pub(super) fn until(end: Option<StreamEvent>) -> CallProgress {
        CallProgress { called: Completion::default(), end: OnceLock::from(end) }
    }
}

impl Watch {
    pub(super) fn start(rank: usize, device: &Device) -> Result<Watch> {
        let (calls, to_start) = channel();
        let (started, to_wait) = channel();
        let (called, to_finish) = channel();
        let state = Arc::new(State {
            device: device.clone(),
            failure: OnceLock::new(),
            communicators: Mutex::default(),
            has_left: Completion::default(),
        });
        let failed = system("the threads of a rank of NCCL could not be started");
        let of_start = state.clone();
        let named = |what: &str| thread::Builder::new().name(format!("nccl {what} {rank}"));
        named("calls")
            .spawn(move || start_calls(&to_start, &started, &of_start))
            .map_err(&failed)?;
        let of_wait = state.clone();
        named("ranks")
            .spawn(move || wait_for_ranks(to_wait, &called, &of_wait))
            .map_err(&failed)?;
        let of_finish = state.clone();
        named("ends").spawn(move || wait_for_ends(to_finish, &of_finish)).map_err(failed)?;
        Ok(Watch { calls, state })
    }

    /// Records a communicator, to abort it: at once, if the rank has failed while it was created.
    pub(super) fn add(&self, communicator: &Arc<Raw>) {
        let mut communicators = self.state.lock();
        communicators.retain(|it| it.strong_count() > 0);
        communicators.push(Arc::downgrade(communicator));
        drop(communicators);
        if let Err(failure) = self.check() {
            self.fail(failure);
        }
    }

    /// Tells the other ranks of a call.
    pub(super) fn call(&self, call: Call) {
        if let Err(SendError(Some(call))) = self.calls.send(Some(call)) {
            let left = error!(Invalid, "rank {} has left its world", call.ranks.rank());
            call.progress.called.complete(Err(left));
        }
    }

    /// The failure of this rank's communicators.
    pub(super) fn check(&self) -> Result<()> {
        self.state.failure.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Aborts all communicators of this rank, unless that has happened. Returns the first reason.
    pub(super) fn fail(&self, reason: Error) -> Error {
        self.state.fail(reason)
    }

    /// Waits until the collectives that were called are done, or for some seconds.
    pub(super) fn leave(&self) {
        let _ = self.calls.send(None); // fails if the thread has ended
        let done = self.state.has_left.wait_until(Instant::now() + LEAVE);
        if done.is_none() {
            self.fail(error!(
                PeerFailed,
                "this rank left before other ranks had made all its calls"
            ));
        }
    }
}

impl State {
    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Raw>>> {
        self.communicators.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks for errors that NCCL found after a call.
    fn check_library(&self) -> Result<()> {
        let open: Vec<Arc<Raw>> = self.lock().iter().filter_map(Weak::upgrade).collect();
        open.iter().try_for_each(|it| it.check())
    }

    fn fail(&self, reason: Error) -> Error {
        let failure = self.failure.get_or_init(|| reason).clone();
        self.device.fail(failure.clone()); // before aborted work ends
        let open: Vec<Arc<Raw>> = self.lock().drain(..).filter_map(|it| it.upgrade()).collect();
        Raw::abort_all(&open);
        failure
    }
}

/// A call whose fingerprint was sent.
struct Started {
    call: Call,
    everyone: Result<Pending<Option<Tensor>>>,
    since: Instant,
}

fn start_calls(calls: &Receiver<Option<Call>>, started: &Sender<Started>, state: &State) {
    for call in calls {
        let Some(call) = call else {
            break;
        };
        let nothing = Operands { input: None, output: Output::None };
        let everyone = match state.failure.get() {
            Some(failure) => Err(failure.clone()),
            None => call.ranks.start(call.request.clone(), nothing),
        };
        let sent = Started { call, everyone, since: Instant::now() };
        if started.send(sent).is_err() {
            break;
        }
    }
}

fn wait_for_ranks(calls: Receiver<Started>, called: &Sender<(Call, Instant)>, state: &State) {
    for Started { call, everyone, since } in calls {
        let by_all = everyone.and_then(Pending::wait).map(drop);
        let by_all = by_all.map_err(|error| state.fail(error));
        call.progress.called.complete(by_all);
        if called.send((call, since)).is_err() {
            break;
        }
    }
}

fn wait_for_ends(calls: Receiver<(Call, Instant)>, state: &State) {
    for (call, since) in calls {
        if let Err(error) = wait_for_end(&call, since, state) {
            state.fail(error);
        }
    }
    state.has_left.complete(Ok(()));
}

/// The reason of the other transport for an error of NCCL, which does not say which rank failed, if that comes soon.
pub(super) fn named(ranks: &dyn Communicator, error: Error) -> Error {
    let until = Instant::now() + NAMED;
    loop {
        match ranks.failure() {
            Some(failure) => return failure,
            None if Instant::now() > until => return error,
            None => thread::sleep(POLL),
        }
    }
}

/// Waits until NCCL has finished a call that all members have made.
fn wait_for_end(call: &Call, since: Instant, state: &State) -> Result<()> {
    let limit = call.ranks.time_limit();
    while state.failure.get().is_none() {
        let end = call.progress.end.get();
        if let Some(end) = end
            && end.as_ref().map_or(Ok(true), StreamEvent::is_done)?
        {
            break;
        }
        state.check_library().map_err(|error| named(&*call.ranks, error))?;
        if let Some(failure) = call.ranks.failure() {
            return Err(failure); // a rank that failed ends none of its work
        }
        if since.elapsed() > limit {
            let (group, at) = (call.ranks.group(), call.request.caller);
            let what = &call.request.fingerprint;
            return Err(error!(
                Stuck,
                "{what} of {group} at {at}: all members called it, but NCCL did not finish it within {limit:?}; call \
                 collectives in the same order on all ranks, messages in opposite directions in one `fuse`, and look \
                 for a rank that has stopped"
            ));
        }
        thread::sleep(POLL);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::panic::Location;

    use meshgrad_collectives::{Collective, Counts, Fingerprint, Rank, Reduction};
    use meshgrad_runtime::DType;

    use super::*;
    use crate::local::Local;

    /// Prints what telling another rank of a call costs the thread that calls: `scripts/prove/nccl-host-cost`.
    #[test]
    #[ignore = "a measurement"]
    fn the_cost_of_telling() {
        const CALLS: u32 = 1000;
        let rounds = Local::run(2, |rank| {
            let group = meshgrad_mesh::Group::new([0, 1])?;
            let ranks = rank.connector().connect("pair", &group)?;
            let watch = Watch::start(rank.rank(), rank.device())?;
            let fingerprint = Fingerprint {
                collective: Collective::AllReduce,
                dtype: Some(DType::F32),
                counts: Counts::Even(1 << 20),
                reduction: Some(Reduction::Sum),
                root: None,
            };
            let request = Request { fingerprint, peer: None, caller: Location::caller() };
            let round = |_| {
                let since = Instant::now();
                let mut last = Arc::default();
                for _ in 0..CALLS {
                    let (ranks, request) = (ranks.clone(), request.clone());
                    last = Arc::new(CallProgress::until(None));
                    watch.call(Call { ranks, request, progress: last.clone() });
                }
                let each = since.elapsed() / CALLS;
                last.called.wait().map(|()| each)
            };
            (0..20).map(round).collect::<Result<Vec<Duration>>>()
        });
        let mut rounds = rounds.unwrap().concat();
        rounds.sort();
        let [least, median, most] = [0, rounds.len() / 2, rounds.len() - 1].map(|at| rounds[at]);
        println!("per call: {least:?} to {most:?}, median {median:?}");
    }
}
