//! Host threads that write the same bytes do so one after the other.
//!
//! A write that changes nothing races with nobody. To know that, a writer needs what the one before
//! it stored, not only its mark: marking, comparing and storing are one step.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::{hint, thread};

use super::{GRANULE, LINE};

/// More than host threads write at a time, and few enough for the bits of a word.
const LOCKS: usize = 64;

/// A thread that waits longer than this gives its core to others.
const SPINS: usize = 100;

/// Locks of lines, each for many of them.
pub(crate) struct LineLocks([Lock; LOCKS]);

/// Alone in its cache line, so that only those who want the same lock meet.
#[derive(Default)]
#[repr(align(64))]
struct Lock(AtomicBool);

impl Lock {
    fn take(&self) {
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
    /// Waits until nobody else writes the lines of the block number `block` in which these bytes
    /// lie, and keeps others from them.
    pub(crate) fn lock(&self, block: usize, offsets: impl Iterator<Item = usize>) -> Locked<'_> {
        let wanted = offsets.fold(0, |all, offset| {
            all | 1 << ((offset / (GRANULE * LINE) + block) % LOCKS)
        });
        // Everybody takes them in the same order, so that nobody waits in a circle.
        for lock in self.chosen(wanted) {
            lock.take();
        }
        Locked {
            locks: self,
            taken: wanted,
        }
    }

    fn chosen(&self, bits: u64) -> impl Iterator<Item = &Lock> {
        let mut rest = bits;
        std::iter::from_fn(move || {
            let first = rest.trailing_zeros() as usize;
            rest &= rest.wrapping_sub(1);
            self.0.get(first)
        })
    }
}

/// Lines that only one thread writes until this is dropped.
pub(crate) struct Locked<'l> {
    locks: &'l LineLocks,
    /// A bit a lock.
    taken: u64,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        for lock in self.locks.chosen(self.taken) {
            lock.0.store(false, Release);
        }
    }
}
