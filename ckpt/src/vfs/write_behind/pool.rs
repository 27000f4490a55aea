//! The threads that write, and their blocks: 8 MiB in total for all files of the process. The
//! threads start with the first file that needs them and end with the last.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{Builder, JoinHandle};

use crate::source::Aligned;

use super::{Descriptors, InFlight};

/// Two threads keep a disk busy: while one fetches its next block, the disk writes the other's.
const THREADS: usize = 2;

/// Some blocks are being written, one is being filled, and the rest absorb delays.
const BLOCKS: usize = 8;

/// The size of a block in bytes.
const BLOCK_BYTES: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Pool {
    shared: Arc<Shared>,
    block_bytes: usize,
    threads: Vec<JoinHandle<()>>,
}

/// The first bytes of a block, to be written to a range of a file.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) block: Aligned,
    pub(super) range: Range<u64>,
    pub(super) to: Arc<Descriptors>,
    pub(super) in_flight: Arc<InFlight>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Signals a job, or the end.
    queued: Condvar,
    /// Signals a free block.
    freed: Condvar,
}

#[derive(Debug)]
struct State {
    jobs: VecDeque<Job>,
    /// Free blocks.
    spare: Vec<Aligned>,
    /// Blocks that may still be allocated.
    unallocated: usize,
    is_over: bool,
}

impl Pool {
    /// The pool of this process; `None` if threads cannot be created.
    pub(super) fn of_process() -> Option<Arc<Pool>> {
        static POOL: Mutex<Weak<Pool>> = Mutex::new(Weak::new());

        let mut running = POOL.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = running.upgrade() {
            return Some(pool);
        }
        let pool = Arc::new(Pool::new(THREADS, BLOCKS, BLOCK_BYTES).ok()?);
        *running = Arc::downgrade(&pool);
        Some(pool)
    }

    pub(super) fn new(threads: usize, blocks: usize, block_bytes: usize) -> io::Result<Pool> {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                jobs: VecDeque::new(),
                spare: Vec::new(),
                unallocated: blocks,
                is_over: false,
            }),
            queued: Condvar::new(),
            freed: Condvar::new(),
        });
        let mut pool = Pool { shared, block_bytes, threads: Vec::new() };
        for _ in 0..threads {
            let shared = Arc::clone(&pool.shared);
            let thread = Builder::new().name("checkpoint writer".to_owned());
            pool.threads.push(thread.spawn(move || shared.work())?);
        }
        Ok(pool)
    }

    pub(super) fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Returns a free block, waiting for one if necessary.
    pub(super) fn block(&self) -> Aligned {
        let mut state = self.shared.lock();
        loop {
            if let Some(block) = state.spare.pop() {
                return block;
            }
            if state.unallocated > 0 {
                state.unallocated -= 1;
                drop(state);
                return Aligned::new(self.block_bytes);
            }
            let waited = self.shared.freed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(super) fn submit(&self, job: Job) {
        self.shared.lock().jobs.push_back(job);
        self.shared.queued.notify_one();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.queued.notify_all();
        for thread in self.threads.drain(..) {
            // They do not panic.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn work(&self) {
        while let Some(job) = self.next() {
            let block = job.run();
            self.lock().spare.push(block);
            self.freed.notify_one();
        }
    }

    /// The next job in order of submission; `None` at the end.
    fn next(&self) -> Option<Job> {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            if state.is_over {
                return None;
            }
            let waited = self.queued.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Job {
    /// Writes the job and returns its block.
    fn run(mut self) -> Aligned {
        let len = (self.range.end - self.range.start) as usize;
        let written = self.to.write_all(&self.block.bytes()[..len], self.range.start);
        // Release the descriptors first: once no write is pending, the writer may be dropped, and
        // that must close the file.
        drop(self.to);
        self.in_flight.end(&self.range, written);
        self.block
    }
}
