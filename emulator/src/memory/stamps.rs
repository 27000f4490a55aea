//! Stamps: numbers that distinguish the marks of one launch from those of others.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use super::races::LAST_STAMP;

/// The source of stamps. When they are used up, they start again.
#[derive(Default)]
pub(super) struct Stamps {
    /// Locked for reading by every launch that runs.
    launches: RwLock<()>,
    last: AtomicU32,
}

/// The stamp of a launch that runs.
pub(crate) struct Stamp<'s> {
    number: u32,
    _running: RwLockReadGuard<'s, ()>,
}

impl Stamps {
    /// A stamp that no mark has. `clear` removes all marks before stamps start again. No launch runs
    /// then, because it could leave marks with a stamp that is used again before they are cleared.
    pub(super) fn next(&self, clear: impl Fn()) -> Stamp<'_> {
        loop {
            let running = self.launches.read().unwrap_or_else(PoisonError::into_inner);
            let number = self.last.fetch_add(1, Relaxed) + 1;
            if number <= LAST_STAMP {
                return Stamp { number, _running: running };
            }
            drop(running);
            let _alone = self.launches.write().unwrap_or_else(PoisonError::into_inner);
            // Another launch may have cleared the marks in the meantime.
            if self.last.load(Relaxed) >= LAST_STAMP {
                clear();
                self.last.store(0, Relaxed);
            }
        }
    }
}

impl Stamp<'_> {
    pub(crate) fn number(&self) -> u32 {
        self.number
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
    use std::thread;

    use super::*;

    /// Marks are not cleared while a launch runs, and each stamp is used once until they are.
    #[test]
    fn stamps_start_again_when_no_launch_runs() {
        let (stamps, cleared, taken) = (Stamps::default(), AtomicU32::new(0), AtomicU32::new(0));
        let clear = || {
            cleared.fetch_add(1, SeqCst);
        };
        let running = stamps.next(clear);
        assert_eq!(running.number(), 1);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..LAST_STAMP {
                        stamps.next(clear);
                        taken.fetch_add(1, SeqCst);
                    }
                });
            }
            while taken.load(SeqCst) < LAST_STAMP - 1 {
                thread::yield_now();
            }
            for _ in 0..1000 {
                thread::yield_now();
            }
            assert_eq!(taken.load(SeqCst), LAST_STAMP - 1);
            assert_eq!(cleared.load(SeqCst), 0);
            drop(running);
        });
        assert_eq!(taken.load(SeqCst), 3 * LAST_STAMP);
        assert_eq!(cleared.load(SeqCst), 3);
    }
}
