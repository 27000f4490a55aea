//! What of a file is on its way, and whether some of it was lost.

use std::io;
use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Shared by those who write a file and the threads that carry it out.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// At most as many as the pool has blocks, and those who wait for one.
    pending: Vec<Range<u64>>,
    /// The first error. It stays.
    failed: Option<io::Error>,
}

impl InFlight {
    /// Waits until nothing of `range` is on its way.
    ///
    /// An error when anything of the file was lost; the same holds for all the others.
    pub(super) fn wait_for(&self, range: &Range<u64>) -> io::Result<()> {
        self.without(range).map(|_| ())
    }

    /// Waits likewise; then `range` is on its way.
    pub(super) fn begin(&self, range: Range<u64>) -> io::Result<()> {
        self.without(&range)?.pending.push(range);
        Ok(())
    }

    /// Waits until nothing is on its way.
    pub(super) fn drain(&self) -> io::Result<()> {
        self.wait_for(&(0..u64::MAX))
    }

    /// `range`, which was begun, is where it belongs or lost.
    pub(super) fn end(&self, range: &Range<u64>, written: io::Result<()>) {
        let mut state = self.lock();
        state.pending.retain(|it| it != range);
        if let Err(error) = written {
            state.failed.get_or_insert(error);
        }
        self.ended.notify_all();
    }

    fn without(&self, range: &Range<u64>) -> io::Result<MutexGuard<'_, State>> {
        let meets = |it: &Range<u64>| it.start < range.end && range.start < it.end;
        let mut state = self.lock();
        while state.pending.iter().any(meets) {
            let waited = self.ended.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        match &state.failed {
            Some(error) => Err(again(error)),
            None => Ok(state),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An error like this one.
fn again(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => error.kind().into(),
    }
}
