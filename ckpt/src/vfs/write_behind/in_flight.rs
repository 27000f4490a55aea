//! Pending writes of a file, and their errors.

use std::io;
use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::error::again;

/// Shared by the writers of a file and the threads that perform the writes.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The ranges being written. There are at most as many as the pool has blocks, plus one per
    /// writer that waits for a block.
    pending: Vec<Range<u64>>,
    /// The first error, which stays.
    failed: Option<io::Error>,
}

impl InFlight {
    /// Waits until no write overlaps `range`.
    ///
    /// Fails if any write of the file has failed. So do `begin` and `drain`.
    pub(super) fn wait_for(&self, range: &Range<u64>) -> io::Result<()> {
        self.without(range).map(|_| ())
    }

    /// Waits until no write overlaps `range`, then adds it.
    pub(super) fn begin(&self, range: Range<u64>) -> io::Result<()> {
        self.without(&range)?.pending.push(range);
        Ok(())
    }

    /// Waits until no writes are pending.
    pub(super) fn drain(&self) -> io::Result<()> {
        self.wait_for(&(0..u64::MAX))
    }

    /// Removes `range`, which was written or has failed.
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
