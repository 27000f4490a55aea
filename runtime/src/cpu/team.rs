//! Threads that stay awake from one parallel loop of a caller to the next, and keep their part of
//! it.
//!
//! To wake a thread takes tens of microseconds, and a step of a small model is hundreds of loops of
//! some hundred. So helpers wait for the caller's next loop for [`LINGER`] before they go to sleep.
//! Each begins with the same part of every loop, which the last loop has left in the caches of its
//! core, and then takes what others have not come to.

use std::any::Any;
use std::cell::{Cell, RefCell, UnsafeCell};
use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::helpers::{self, Request};

/// How long a helper waits for the next loop: longer than the code between two ops takes, shorter
/// than anyone notices.
const LINGER: Duration = Duration::from_micros(200);

/// Looks at the clock, and leaves the core to others, after so many looks at the door.
const LOOKS: u32 = 64;

/// The door's bits: how many helpers are inside, whether more may come in, and the loop's number.
const INSIDE: u64 = OPEN - 1;
const OPEN: u64 = 1 << 16;
const LOOP: u64 = OPEN << 1;

type Task<'t> = dyn Fn(usize) + Sync + 't;

/// A caller, who is member 0, and those who help it.
pub(super) struct Team {
    door: AtomicU64,
    /// The loop. Written by the caller while nobody is inside, read by those inside.
    task: UnsafeCell<Option<*const Task<'static>>>,
    members: Box<[Member]>,
    /// The first panic of a helper.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// A member and its part of the loop, on a cache line of its own.
#[derive(Default)]
#[repr(align(64))]
struct Member {
    /// The first number of its part that nobody has taken.
    next: AtomicUsize,
    /// Where its part ends.
    end: AtomicUsize,
    /// Whether it was asked to help and has not yet gone home.
    asked: AtomicBool,
}

// SAFETY: `task` is all that is not `Sync`. The caller writes it only while the door is shut and
// nobody is inside, and whoever reads it has come in; the door's orderings put each before the
// other. What it points to is `Sync`.
unsafe impl Sync for Team {}

// SAFETY: as above; the pointer is of no thread.
unsafe impl Send for Team {}

thread_local! {
    static TEAM: RefCell<Arc<Team>> = RefCell::new(Arc::new(Team::of(1)));
    /// Whether this thread runs a loop's task: a loop inside of one is not shared again.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
    /// How many threads share this thread's loops, where that was said.
    static THREADS: Cell<Option<usize>> = const { Cell::new(None) };
}

/// How many threads share a loop of this thread: as [`with_threads`] says, or as many as the
/// machine runs at a time.
pub(crate) fn threads() -> usize {
    static OF_MACHINE: LazyLock<usize> =
        LazyLock::new(|| thread::available_parallelism().map_or(1, usize::from));

    THREADS
        .get()
        .unwrap_or(*OF_MACHINE)
        .clamp(1, INSIDE as usize)
}

/// Runs `f`, whose loops so many threads share.
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

/// Calls `task` with each of `0..count`, each once, on this thread and its helpers.
pub(super) fn share(count: usize, task: &Task<'_>) {
    let threads = threads();
    if threads <= 1 || count <= 1 || IS_INSIDE.get() {
        return (0..count).for_each(task);
    }
    let team = TEAM.with_borrow_mut(|team| {
        if team.members.len() != threads {
            *team = Arc::new(Team::of(threads));
        }
        team.clone()
    });
    team.share(count, task);
}

impl Team {
    fn of(members: usize) -> Team {
        Team {
            door: AtomicU64::new(0),
            task: UnsafeCell::new(None),
            members: (0..members).map(|_| Member::default()).collect(),
            panic: Mutex::default(),
        }
    }

    fn share(self: &Arc<Team>, count: usize, task: &Task<'_>) {
        // SAFETY: only the lifetime changes. `Opened` shuts the door and waits for those inside
        // before `task` ends, also when this thread panics.
        let task: *const Task<'static> = unsafe { std::mem::transmute(std::ptr::from_ref(task)) };
        // SAFETY: this thread alone opens the door, which is shut, and nobody is inside.
        unsafe { *self.task.get() = Some(task) };
        self.first_panic().take(); // of a loop that ended by a panic of its caller
        let parts = self.members.len().min(count);
        for (at, member) in self.members.iter().enumerate() {
            let start = |at: usize| count * at.min(parts) / parts;
            member.next.store(start(at), Ordering::Relaxed);
            member.end.store(start(at + 1), Ordering::Relaxed);
        }
        let number = self.door.load(Ordering::Relaxed) / LOOP;
        let open = number.wrapping_add(1).wrapping_mul(LOOP) | OPEN;
        self.door.store(open, Ordering::SeqCst);
        let opened = Opened(self);

        for at in 1..parts {
            self.ask(at);
        }
        self.work(0);
        drop(opened);
        let panic = self.first_panic().take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// Sees to it that a member helps, now or soon.
    fn ask(self: &Arc<Team>, member: usize) {
        let asked = &self.members[member].asked;
        if !asked.swap(true, Ordering::SeqCst) {
            let team = self.clone();
            if !helpers::send(Request { team, member }) {
                asked.store(false, Ordering::Relaxed);
            }
        }
    }

    fn first_panic(&self) -> MutexGuard<'_, Option<Box<dyn Any + Send>>> {
        self.panic.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does the part of a member, and what is left of the others'. The door is open to this thread:
    /// it opened it, or is inside.
    fn work(&self, member: usize) {
        // SAFETY: see above; nobody writes while the door is open or somebody inside.
        let Some(task) = (unsafe { *self.task.get() }) else {
            return;
        };
        // SAFETY: the caller's loop lives until the door is shut and nobody inside.
        let task = unsafe { &*task };
        let _inside = Inside::enter();
        let (before, from) = self.members.split_at(member);
        for part in from.iter().chain(before) {
            let end = part.end.load(Ordering::Relaxed);
            loop {
                let at = part.next.fetch_add(1, Ordering::Relaxed);
                if at >= end {
                    break;
                }
                task(at);
            }
        }
    }

    /// What a helper does: it comes in to each loop once, and waits between.
    pub(super) fn help(&self, member: usize) {
        let (mut until, mut looks, mut done) = (Instant::now() + LINGER, 0u32, 0);
        loop {
            if let Some(number) = self.come_in(done) {
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.work(member))) {
                    self.first_panic().get_or_insert(panic);
                }
                self.door.fetch_sub(1, Ordering::Release);
                (until, done) = (Instant::now() + LINGER, number);
            }
            looks = looks.wrapping_add(1);
            if !looks.is_multiple_of(LOOKS) {
                spin_loop();
                continue;
            }
            if Instant::now() > until {
                if self.leave(member, done) {
                    return;
                }
                until = Instant::now() + LINGER;
            }
            thread::yield_now(); // there may be more threads than cores
        }
    }

    /// Sends a helper home, unless a loop was opened that still counts on it. The caller opens the
    /// door and then looks whether to ask; this says that it may be asked and then looks at the
    /// door. All in one order, so one of both sees the other.
    fn leave(&self, member: usize, done: u64) -> bool {
        let asked = &self.members[member].asked;
        asked.store(false, Ordering::SeqCst);
        let door = self.door.load(Ordering::SeqCst);
        let counts_on_it = door & OPEN != 0 && door / LOOP != done;
        // Where it was asked again meanwhile, another helper comes.
        !counts_on_it || asked.swap(true, Ordering::SeqCst)
    }

    /// Goes through the door if it is open to a loop other than `done`: its number.
    fn come_in(&self, done: u64) -> Option<u64> {
        let door = self.door.load(Ordering::Relaxed);
        let is_new = door & OPEN != 0 && door / LOOP != done;
        let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
        let came = is_new && {
            let come = (self.door).compare_exchange(door, door + 1, success, failure);
            come.is_ok()
        };
        came.then_some(door / LOOP)
    }
}

/// An open door, which is shut when this ends: then nobody is inside.
struct Opened<'t>(&'t Team);

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            for part in &self.0.members {
                // Nobody begins anything new.
                let end = part.end.load(Ordering::Relaxed);
                part.next.fetch_max(end, Ordering::Relaxed);
            }
        }
        let door = &self.0.door;
        let mut looks = 0u32;
        let mut inside = door.fetch_and(!OPEN, Ordering::AcqRel) & INSIDE;
        while inside != 0 {
            looks = looks.wrapping_add(1);
            match looks.is_multiple_of(LOOKS) {
                true => thread::yield_now(), // they may need this core
                false => spin_loop(),
            }
            inside = door.load(Ordering::Acquire) & INSIDE;
        }
    }
}

/// Marks this thread as inside of a loop.
struct Inside;

impl Inside {
    fn enter() -> Inside {
        IS_INSIDE.set(true);
        Inside
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        IS_INSIDE.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times_seen(count: usize) -> Vec<usize> {
        let seen: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
        share(count, &|at| {
            seen[at].fetch_add(1, Ordering::Relaxed);
        });
        seen.into_iter().map(AtomicUsize::into_inner).collect()
    }

    #[test]
    fn every_number_comes_once() {
        for threads in [1, 2, 5] {
            with_threads(threads, || {
                for repeat in 0..300 {
                    for count in [0, 1, 2, 3, 64] {
                        let seen = times_seen(count);
                        assert!(
                            seen.iter().all(|n| *n == 1),
                            "{threads}, {repeat}: {seen:?}"
                        );
                    }
                    if repeat % 100 == 99 {
                        thread::sleep(2 * LINGER); // helpers go home, and are asked for again
                    }
                }
            });
        }
    }

    /// Two threads at least take part: each waits for the other.
    #[test]
    fn helpers_help() {
        with_threads(2, || {
            let barrier = std::sync::Barrier::new(2);
            share(2, &|_| {
                barrier.wait();
            });
        });
    }

    /// Whatever the time between loops, before and after helpers have gone home: none is lost.
    #[test]
    fn helpers_come_back() {
        with_threads(2, || {
            let barrier = std::sync::Barrier::new(2);
            for loops in 0..2000u32 {
                let until = Instant::now() + LINGER * (loops % 50) / 25;
                while Instant::now() < until {
                    spin_loop();
                }
                share(2, &|_| {
                    barrier.wait();
                });
            }
        });
    }

    #[test]
    fn a_loop_inside_of_a_loop_is_done() {
        with_threads(3, || {
            let sum = AtomicUsize::new(0);
            share(4, &|outer| {
                share(5, &|inner| {
                    sum.fetch_add(10 * outer + inner, Ordering::Relaxed);
                });
            });
            assert_eq!(sum.into_inner(), 10 * 6 * 5 + 10 * 4);
        });
    }

    /// Whoever panics, the caller does, once nobody works any more; the next loop is whole again.
    #[test]
    fn panics_reach_the_caller() {
        with_threads(3, || {
            for bad in 0..6 {
                let failed = catch_unwind(AssertUnwindSafe(|| {
                    share(6, &|at| assert!(at != bad, "number {at}"));
                }));
                let panic = failed.unwrap_err();
                let message = panic.downcast_ref::<String>().unwrap();
                assert_eq!(*message, format!("number {bad}"));
                assert!(times_seen(9).iter().all(|n| *n == 1));
            }
        });
    }

    /// Threads that are no workers, several at once, as in tests.
    #[test]
    fn callers_do_not_mix() {
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
