//! A thread pool whose workers spin between parallel loops.
//!
//! Waking a thread takes tens of microseconds, and a training step of a small model runs hundreds
//! of loops of about a hundred microseconds each. So workers spin for [`SPIN_TIME`] before they
//! park.
//!
//! Each worker starts every loop with the same share of the indices, because the previous loop left
//! that data in the caches of its core. It then takes indices that other workers have not started.

use std::any::Any;
use std::cell::{Cell, RefCell, UnsafeCell};
use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::workers::{self, Request};

/// How long a worker spins before it parks: longer than the host code between two ops.
const SPIN_TIME: Duration = Duration::from_micros(200);

/// Spins before a thread reads the clock and yields its core.
const SPINS_PER_YIELD: u32 = 64;

/// Bits of [`Pool::state`]: the number of active workers, whether the epoch accepts workers, and
/// the epoch. Each parallel loop is one epoch.
const ACTIVE: u64 = OPEN - 1;
const OPEN: u64 = 1 << 16;
const EPOCH: u64 = OPEN << 1;

type Task<'t> = dyn Fn(usize) + Sync + 't;

/// The calling thread, which is worker 0, and its other workers.
pub(super) struct Pool {
    state: AtomicU64,
    /// The loop body. Written by the caller while no worker is active, read by active workers.
    task: UnsafeCell<Option<*const Task<'static>>>,
    workers: Box<[Worker]>,
    /// The first panic of a worker.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// A worker's share of the indices, on its own cache line.
#[derive(Default)]
#[repr(align(64))]
struct Worker {
    /// The first index of the share that no thread has taken.
    next: AtomicUsize,
    /// The end of the share.
    end: AtomicUsize,
    /// Whether a thread was requested for this worker and has not left the pool since.
    requested: AtomicBool,
}

// SAFETY: only `task` is not `Sync`. The caller writes it only while the epoch is closed and no
// worker is active, and only active workers read it; the orderings on `state` separate the two.
// The loop body is `Sync`.
unsafe impl Sync for Pool {}

// SAFETY: as above; the pointer is not tied to a thread.
unsafe impl Send for Pool {}

thread_local! {
    static POOL: RefCell<Arc<Pool>> = RefCell::new(Arc::new(Pool::new(1)));
    /// Whether this thread runs a loop body. Nested loops run serially.
    static IS_IN_LOOP: Cell<bool> = const { Cell::new(false) };
    /// The number of threads set by [`with_threads`].
    static THREADS: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The number of threads that run this thread's parallel loops: as set by [`with_threads`], else
/// the machine's available parallelism.
pub(crate) fn threads() -> usize {
    static OF_MACHINE: LazyLock<usize> =
        LazyLock::new(|| thread::available_parallelism().map_or(1, usize::from));

    THREADS.get().unwrap_or(*OF_MACHINE).clamp(1, ACTIVE as usize)
}

/// Runs `f` with `threads` threads for its parallel loops.
pub(crate) fn with_threads<R>(threads: usize, f: impl FnOnce() -> R) -> R {
    struct Before(Option<usize>);

    impl Drop for Before {
        fn drop(&mut self) {
            THREADS.set(self.0);
        }
    }

    let _before = Before(THREADS.replace(Some(threads)));
    f()
}

/// Calls `task` once with each of `0..count`, on this thread and the workers of its pool.
pub(super) fn parallel_for(count: usize, task: &Task<'_>) {
    let threads = threads();
    if threads <= 1 || count <= 1 || IS_IN_LOOP.get() {
        return (0..count).for_each(task);
    }
    let pool = POOL.with_borrow_mut(|pool| {
        if pool.workers.len() != threads {
            *pool = Arc::new(Pool::new(threads));
        }
        pool.clone()
    });
    pool.parallel_for(count, task);
}

impl Pool {
    fn new(workers: usize) -> Pool {
        Pool {
            state: AtomicU64::new(0),
            task: UnsafeCell::new(None),
            workers: (0..workers).map(|_| Worker::default()).collect(),
            panic: Mutex::default(),
        }
    }

    fn parallel_for(self: &Arc<Pool>, count: usize, task: &Task<'_>) {
        // SAFETY: only the lifetime changes. `OpenEpoch` closes the epoch and waits for the active
        // workers before `task` is dropped, even if this thread panics.
        let task: *const Task<'static> = unsafe { std::mem::transmute(std::ptr::from_ref(task)) };
        // SAFETY: only this thread opens epochs; this one is closed and no worker is active.
        unsafe { *self.task.get() = Some(task) };
        self.first_panic().take(); // left by a loop whose caller panicked as well
        let shares = self.workers.len().min(count);
        for (at, worker) in self.workers.iter().enumerate() {
            let start = |at: usize| count * at.min(shares) / shares;
            worker.next.store(start(at), Ordering::Relaxed);
            worker.end.store(start(at + 1), Ordering::Relaxed);
        }
        let epoch = self.state.load(Ordering::Relaxed) / EPOCH;
        let open = epoch.wrapping_add(1).wrapping_mul(EPOCH) | OPEN;
        self.state.store(open, Ordering::SeqCst);
        let open_epoch = OpenEpoch(self);

        for at in 1..shares {
            self.request(at);
        }
        self.run_task(0);
        drop(open_epoch);
        let panic = self.first_panic().take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// Requests a thread for a worker that has none.
    fn request(self: &Arc<Pool>, worker: usize) {
        let requested = &self.workers[worker].requested;
        if !requested.swap(true, Ordering::SeqCst) {
            let pool = self.clone();
            if !workers::send(Request { pool, worker }) {
                requested.store(false, Ordering::Relaxed);
            }
        }
    }

    fn first_panic(&self) -> MutexGuard<'_, Option<Box<dyn Any + Send>>> {
        self.panic.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the share of a worker, then what is left of the other shares. The calling thread must
    /// have opened or entered the epoch.
    fn run_task(&self, worker: usize) {
        // SAFETY: the task is written only while the epoch is closed and no worker is active.
        let Some(task) = (unsafe { *self.task.get() }) else {
            return;
        };
        // SAFETY: the loop body lives until the epoch is closed and no worker is active.
        let task = unsafe { &*task };
        let _in_loop = InLoop::enter();
        let (before, from) = self.workers.split_at(worker);
        for share in from.iter().chain(before) {
            let end = share.end.load(Ordering::Relaxed);
            loop {
                let at = share.next.fetch_add(1, Ordering::Relaxed);
                if at >= end {
                    break;
                }
                task(at);
            }
        }
    }

    /// The loop of a worker thread: enters each epoch once and spins between epochs.
    pub(super) fn run_worker(&self, worker: usize) {
        let (mut until, mut spins, mut done) = (Instant::now() + SPIN_TIME, 0u32, 0);
        loop {
            if let Some(epoch) = self.enter(done) {
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.run_task(worker))) {
                    self.first_panic().get_or_insert(panic);
                }
                self.state.fetch_sub(1, Ordering::Release);
                (until, done) = (Instant::now() + SPIN_TIME, epoch);
            }
            spins = spins.wrapping_add(1);
            if !spins.is_multiple_of(SPINS_PER_YIELD) {
                spin_loop();
                continue;
            }
            if Instant::now() > until {
                if self.leave(worker, done) {
                    return;
                }
                until = Instant::now() + SPIN_TIME;
            }
            thread::yield_now(); // there may be more threads than cores
        }
    }

    /// Whether a worker may leave: not if an open epoch still expects it. `parallel_for` opens the
    /// epoch and then reads `requested`; this clears `requested` and then reads the epoch. Both are
    /// sequentially consistent, so at least one reads the other's write.
    fn leave(&self, worker: usize, done: u64) -> bool {
        let requested = &self.workers[worker].requested;
        requested.store(false, Ordering::SeqCst);
        let state = self.state.load(Ordering::SeqCst);
        let is_expected = state & OPEN != 0 && state / EPOCH != done;
        // If the worker was requested again meanwhile, another thread takes its place.
        !is_expected || requested.swap(true, Ordering::SeqCst)
    }

    /// Enters the open epoch and returns it, if it is not `done`.
    fn enter(&self, done: u64) -> Option<u64> {
        let state = self.state.load(Ordering::Relaxed);
        let is_new = state & OPEN != 0 && state / EPOCH != done;
        let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
        let entered = is_new && {
            let exchange = (self.state).compare_exchange(state, state + 1, success, failure);
            exchange.is_ok()
        };
        entered.then_some(state / EPOCH)
    }
}

/// An open epoch. Dropping it closes the epoch and waits until no worker is active.
struct OpenEpoch<'t>(&'t Pool);

impl Drop for OpenEpoch<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            for share in &self.0.workers {
                // Workers take no further index.
                let end = share.end.load(Ordering::Relaxed);
                share.next.fetch_max(end, Ordering::Relaxed);
            }
        }
        let state = &self.0.state;
        let mut spins = 0u32;
        let mut active = state.fetch_and(!OPEN, Ordering::AcqRel) & ACTIVE;
        while active != 0 {
            spins = spins.wrapping_add(1);
            match spins.is_multiple_of(SPINS_PER_YIELD) {
                true => thread::yield_now(), // the workers may need this core
                false => spin_loop(),
            }
            active = state.load(Ordering::Acquire) & ACTIVE;
        }
    }
}

/// Marks this thread as running a loop body.
struct InLoop;

impl InLoop {
    fn enter() -> InLoop {
        IS_IN_LOOP.set(true);
        InLoop
    }
}

impl Drop for InLoop {
    fn drop(&mut self) {
        IS_IN_LOOP.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times_seen(count: usize) -> Vec<usize> {
        let seen: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
        parallel_for(count, &|at| {
            seen[at].fetch_add(1, Ordering::Relaxed);
        });
        seen.into_iter().map(AtomicUsize::into_inner).collect()
    }

    #[test]
    fn each_index_runs_once() {
        for threads in [1, 2, 5] {
            with_threads(threads, || {
                for repeat in 0..300 {
                    for count in [0, 1, 2, 3, 64] {
                        let seen = times_seen(count);
                        assert!(seen.iter().all(|n| *n == 1), "{threads}, {repeat}: {seen:?}");
                    }
                    if repeat % 100 == 99 {
                        thread::sleep(2 * SPIN_TIME); // workers park, and are requested again
                    }
                }
            });
        }
    }

    /// The loop ends only if two threads run it, because each task waits for the other.
    #[test]
    fn workers_take_part() {
        with_threads(2, || {
            let barrier = std::sync::Barrier::new(2);
            parallel_for(2, &|_| {
                barrier.wait();
            });
        });
    }

    /// No wakeup is lost, whether the worker still spins, parks or is parked when a loop starts.
    #[test]
    fn parked_workers_wake_up() {
        with_threads(2, || {
            let barrier = std::sync::Barrier::new(2);
            for loops in 0..2000u32 {
                let until = Instant::now() + SPIN_TIME * (loops % 50) / 25;
                while Instant::now() < until {
                    spin_loop();
                }
                parallel_for(2, &|_| {
                    barrier.wait();
                });
            }
        });
    }

    #[test]
    fn nested_loops_run() {
        with_threads(3, || {
            let sum = AtomicUsize::new(0);
            parallel_for(4, &|outer| {
                parallel_for(5, &|inner| {
                    sum.fetch_add(10 * outer + inner, Ordering::Relaxed);
                });
            });
            assert_eq!(sum.into_inner(), 10 * 6 * 5 + 10 * 4);
        });
    }

    /// A panic on any thread reaches the caller after all workers have left the epoch. The next
    /// loop runs every index again.
    #[test]
    fn panics_reach_the_caller() {
        with_threads(3, || {
            for bad in 0..6 {
                let failed = catch_unwind(AssertUnwindSafe(|| {
                    parallel_for(6, &|at| assert!(at != bad, "number {at}"));
                }));
                let panic = failed.unwrap_err();
                let message = panic.downcast_ref::<String>().unwrap();
                assert_eq!(*message, format!("number {bad}"));
                assert!(times_seen(9).iter().all(|n| *n == 1));
            }
        });
    }

    /// Each calling thread has its own pool.
    #[test]
    fn concurrent_callers_do_not_mix() {
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        assert!(times_seen(17).iter().all(|n| *n == 1));
                    }
                });
            }
        });
    }
}
