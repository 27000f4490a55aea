//! The last accesses of one granule or line.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use bytemuck::Zeroable;

use super::mark::{LINE, Mark};

/// An earlier access that an access races with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PriorAccess {
    /// The earlier access.
    pub(crate) mark: Mark,
    /// Whether that was a write.
    pub(crate) wrote: bool,
    /// Its instruction, if known.
    pub(crate) pc: Option<u32>,
}

impl PriorAccess {
    /// No access: no launch has this stamp.
    pub(super) const NONE: PriorAccess = PriorAccess { mark: Mark::NONE, wrote: false, pc: None };

    /// The access of one granule, derived from the access of its line.
    #[inline(always)]
    pub(super) fn in_line(self, granule: usize) -> PriorAccess {
        let mark = self.mark.in_line(granule % LINE);
        PriorAccess { mark, ..self }
    }
}

/// The last write, the last read, and the last read by a different agent.
#[derive(Zeroable)]
pub(super) struct Record {
    write: AtomicU64,
    read: AtomicU64,
    other_read: AtomicU64,
    write_pc: AtomicU32,
    read_pc: AtomicU32,
}

impl Record {
    /// Clears all marks.
    pub(super) fn clear(&self) {
        for mark in [&self.write, &self.read, &self.other_read] {
            mark.store(0, Relaxed);
        }
    }

    /// Stores the mark of a read.
    #[inline(always)]
    pub(super) fn record_read(&self, me: Mark, pc: u32) {
        let last = Mark(self.read.load(Relaxed));
        if last == me {
            return;
        }
        if last.stamp() == me.stamp() && !last.same_agent(me) {
            self.other_read.store(last.0, Relaxed);
        }
        self.read.store(me.0, Relaxed);
        self.read_pc.store(pc, Relaxed);
    }

    /// Stores the mark of a write and returns the previous write. The caller excludes concurrent
    /// writers.
    #[inline(always)]
    pub(super) fn record_write(&self, me: Mark, pc: u32) -> PriorAccess {
        let before = self.last_write();
        self.write.store(me.0, Relaxed);
        self.write_pc.store(pc, Relaxed);
        before
    }

    /// The last write.
    #[inline(always)]
    pub(super) fn last_write(&self) -> PriorAccess {
        PriorAccess {
            mark: Mark(self.write.load(Relaxed)),
            wrote: true,
            pc: Some(self.write_pc.load(Relaxed)),
        }
    }

    /// The last two reads.
    #[inline(always)]
    pub(super) fn last_reads(&self) -> [PriorAccess; 2] {
        [
            PriorAccess {
                mark: Mark(self.read.load(Relaxed)),
                wrote: false,
                pc: Some(self.read_pc.load(Relaxed)),
            },
            PriorAccess { mark: Mark(self.other_read.load(Relaxed)), wrote: false, pc: None },
        ]
    }
}
