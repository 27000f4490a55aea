//! Assigns chunks to threads.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::plan::Chunk;

/// Returns chunks in order, each once, and keeps the bytes of incomplete targets within the limit.
pub(super) struct Queue<'p> {
    chunks: &'p [Chunk],
    limit: u64,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    next: usize,
    /// Bytes of targets that are started and not complete.
    open: u64,
    stopped: bool,
}

impl<'p> Queue<'p> {
    pub(super) fn new(chunks: &'p [Chunk], limit: u64) -> Queue<'p> {
        Queue {
            chunks,
            limit,
            state: Mutex::new(State { next: 0, open: 0, stopped: false }),
            changed: Condvar::new(),
        }
    }

    /// The next chunk and its number, once the targets that it starts fit; `None` at the end or
    /// after a stop.
    pub(super) fn next(&self) -> Option<(usize, &'p Chunk)> {
        let mut state = self.lock();
        loop {
            let chunk = self.chunks.get(state.next).filter(|_| !state.stopped)?;
            if state.open + chunk.opening <= self.limit {
                state.open += chunk.opening;
                let number = state.next;
                state.next += 1;
                return Some((number, chunk));
            }
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Releases a completed target of `bytes` bytes.
    pub(super) fn release(&self, bytes: u64) {
        self.lock().open -= bytes;
        self.changed.notify_all();
    }

    /// Stops all threads when the guard is dropped. At the regular end no chunks are left, so it
    /// has no effect.
    pub(super) fn stop_when_dropped(&self) -> impl Drop {
        struct Leaving<'q, 'p>(&'q Queue<'p>);
        impl Drop for Leaving<'_, '_> {
            fn drop(&mut self) {
                self.0.lock().stopped = true;
                self.0.changed.notify_all();
            }
        }
        Leaving(self)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
