//! Real time, with a thread that completes work later. The thread starts with the first such work.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use meshgrad_runtime::{Completion, Result};

pub(super) struct Timer {
    start: Instant,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// By completion time, then by order of calls.
    queue: BTreeMap<(Instant, u64), (Completion, Result<()>)>,
    calls: u64,
    has_thread: bool,
    is_closed: bool,
}

impl Default for Timer {
    fn default() -> Timer {
        Timer { start: Instant::now(), shared: Arc::default() }
    }
}

impl Timer {
    pub(super) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// The instant at a time; `None` if it is too far in the future.
    pub(super) fn instant(&self, time: Duration) -> Option<Instant> {
        self.start.checked_add(time)
    }

    /// Sets a completion at a time; at once if no thread can be started.
    pub(super) fn complete_at(&self, time: Duration, completion: Completion, result: Result<()>) {
        let mut state = self.shared.lock();
        if !state.has_thread {
            let shared = self.shared.clone();
            let thread = thread::Builder::new().name("transfer timer".to_owned());
            state.has_thread = thread.spawn(move || shared.run()).is_ok();
        }
        let (Some(at), true) = (self.instant(time), state.has_thread) else {
            drop(state);
            completion.complete(result);
            return;
        };
        state.calls += 1;
        let key = (at, state.calls);
        state.queue.insert(key, (completion, result));
        drop(state);
        self.shared.changed.notify_one();
    }
}

/// Ends the thread. Queued work is completed at once.
impl Drop for Timer {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.changed.notify_one();
    }
}

impl Shared {
    fn run(&self) {
        let mut state = self.lock();
        loop {
            let first = state.queue.first_key_value().map(|(key, _)| key.0);
            let left = first.map(|at| at.saturating_duration_since(Instant::now()));
            match left {
                Some(left) if left.is_zero() || state.is_closed => {
                    if let Some((_, (completion, result))) = state.queue.pop_first() {
                        drop(state);
                        completion.complete(result);
                        state = self.lock();
                    }
                }
                None if state.is_closed => return,
                None => {
                    let waited = self.changed.wait(state);
                    state = waited.unwrap_or_else(PoisonError::into_inner);
                }
                Some(left) => {
                    let waited = self.changed.wait_timeout(state, left);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
