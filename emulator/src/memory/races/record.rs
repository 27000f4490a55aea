//! The last accesses of one place.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use bytemuck::Zeroable;

use super::Earlier;
use super::mark::Mark;

/// The last write of a place, its last read, and the last read by somebody else than that.
#[derive(Zeroable)]
pub(super) struct Record {
    write: AtomicU64,
    read: AtomicU64,
    other_read: AtomicU64,
    write_pc: AtomicU32,
    read_pc: AtomicU32,
}

impl Record {
    /// Forgets every mark.
    pub(super) fn clear(&self) {
        for mark in [&self.write, &self.read, &self.other_read] {
            mark.store(0, Relaxed);
        }
    }

    /// Leaves the mark of a read.
    #[inline(always)]
    pub(super) fn leave_read(&self, me: Mark, pc: u32) {
        let last = Mark(self.read.load(Relaxed));
        if last == me {
            return;
        }
        if last.stamp() == me.stamp() && !last.same_party(me) {
            self.other_read.store(last.0, Relaxed);
        }
        self.read.store(me.0, Relaxed);
        self.read_pc.store(pc, Relaxed);
    }

    /// Leaves the mark of a write; that which was there. No two threads do so at a time.
    #[inline(always)]
    pub(super) fn leave_write(&self, me: Mark, pc: u32) -> Earlier {
        let before = self.written();
        self.write.store(me.0, Relaxed);
        self.write_pc.store(pc, Relaxed);
        before
    }

    /// The last write.
    #[inline(always)]
    pub(super) fn written(&self) -> Earlier {
        Earlier {
            mark: Mark(self.write.load(Relaxed)),
            wrote: true,
            pc: Some(self.write_pc.load(Relaxed)),
        }
    }

    /// The last reads.
    #[inline(always)]
    pub(super) fn reads(&self) -> [Earlier; 2] {
        [
            Earlier {
                mark: Mark(self.read.load(Relaxed)),
                wrote: false,
                pc: Some(self.read_pc.load(Relaxed)),
            },
            Earlier {
                mark: Mark(self.other_read.load(Relaxed)),
                wrote: false,
                pc: None,
            },
        ]
    }
}
