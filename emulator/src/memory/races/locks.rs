//! Locks that serialize host threads writing the same bytes.
//!
//! A write that does not change memory races with no other write. To decide that, a writer needs
//! the value that the previous writer stored. Marking, comparing and storing are therefore one
//! atomic step.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::{hint, thread};

use super::mark::{GRANULE, LINE};

/// One per bit of a `u64`. Threads whose lines share a lock only wait for each other.
const LOCKS: usize = 64;

/// Spins before the thread yields.
const SPINS: usize = 100;

/// Locks for lines; each lock covers many lines.
pub(crate) struct LineLocks([Lock; LOCKS]);

/// A lock on its own cache line, to avoid false sharing.
#[derive(Default)]
#[repr(align(64))]
struct Lock(AtomicBool);

impl Lock {
    fn acquire(&self) {
        let mut spins = 0;
        while self.0.swap(true, Acquire) {
            while self.0.load(Relaxed) {
                spins += 1;
                match spins < SPINS {
                    true => hint::spin_loop(),
                    false => thread::yield_now(),
                }
            }
        }
    }
}

impl Default for LineLocks {
    fn default() -> LineLocks {
        LineLocks(std::array::from_fn(|_| Lock::default()))
    }
}

impl LineLocks {
    /// Locks the lines of block number `block` that contain these bytes.
    pub(crate) fn lock(&self, block: usize, offsets: impl Iterator<Item = usize>) -> LineGuard<'_> {
        let wanted =
            offsets.fold(0, |all, offset| all | 1 << ((offset / (GRANULE * LINE) + block) % LOCKS));
        // All threads acquire the locks in the same order, which avoids deadlock.
        for lock in self.selected(wanted) {
            lock.acquire();
        }
        LineGuard { locks: self, held: wanted }
    }

    fn selected(&self, bits: u64) -> impl Iterator<Item = &Lock> {
        let mut rest = bits;
        std::iter::from_fn(move || {
            let first = rest.trailing_zeros() as usize;
            rest &= rest.wrapping_sub(1);
            self.0.get(first)
        })
    }
}

/// Exclusive access to some lines until it is dropped.
pub(crate) struct LineGuard<'l> {
    locks: &'l LineLocks,
    /// One bit per lock.
    held: u64,
}

impl Drop for LineGuard<'_> {
    fn drop(&mut self) {
        for lock in self.locks.selected(self.held) {
            lock.0.store(false, Release);
        }
    }
}
