//! Who accessed which bytes: the memory of the race detector.
//!
//! Every four bytes (a granule) remember their last write, their last read, and the last read by
//! somebody else than that, each as one [`Mark`]. An access races with a mark when both touch a
//! common byte, at least one is a write, not both are atomic, and no chain of barriers, or of a
//! release and an acquire, leads from the mark to the access (vector clocks, as in FastTrack,
//! Flanagan & Freund 2009).
//!
//! Marks are stamped, so that those of an earlier launch, or of an earlier CTA in shared memory,
//! count for nothing and need not be erased.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};

/// Bytes a granule.
pub(crate) const GRANULE: usize = 4;

/// Stamps run from 1 to this; 0 is no mark at all.
pub(crate) const LAST_STAMP: u32 = (1 << 12) - 1;

/// An access as a granule remembers it: stamp 12 bits, CTA 20, agent 6, lane 5, clock 16, bytes 4,
/// atomic 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark(u64);

/// Clocks beyond this are not told apart; an access that late is never accused.
pub(crate) const LAST_CLOCK: u32 = (1 << 16) - 1;

impl Mark {
    /// A mark that touches no byte yet.
    pub(crate) fn new(stamp: u32, cta: u32, agent: u8, lane: u8, clock: u32, atomic: bool) -> Mark {
        Mark(
            (u64::from(stamp) << 52)
                | (u64::from(cta & 0xf_ffff) << 32)
                | (u64::from(agent) << 26)
                | (u64::from(lane) << 21)
                | (u64::from(clock.min(LAST_CLOCK)) << 5)
                | u64::from(atomic),
        )
    }

    /// The same access by another lane.
    #[inline(always)]
    pub(crate) fn by_lane(self, lane: u32) -> Mark {
        Mark(self.0 & !(0x1f << 21) | u64::from(lane) << 21)
    }

    #[inline(always)]
    fn of_bytes(self, bytes: u32) -> Mark {
        Mark(self.0 & !(0xf << 1) | u64::from(bytes) << 1)
    }

    #[inline(always)]
    fn stamp(self) -> u64 {
        self.0 >> 52
    }

    /// The linear index of the CTA, modulo 2^20.
    pub(crate) fn cta(self) -> u32 {
        (self.0 >> 32) as u32 & 0xf_ffff
    }

    /// The warp, or 32 plus the warp for its asynchronous copies.
    pub(crate) fn agent(self) -> u8 {
        (self.0 >> 26) as u8 & 0x3f
    }

    pub(crate) fn lane(self) -> u8 {
        (self.0 >> 21) as u8 & 0x1f
    }

    pub(crate) fn clock(self) -> u32 {
        (self.0 >> 5) as u32 & 0xffff
    }

    fn bytes(self) -> u64 {
        self.0 >> 1 & 0xf
    }

    fn atomic(self) -> bool {
        self.0 & 1 == 1
    }

    /// Whether both are accesses of one thread at the same clock, of the same bytes and kind.
    #[inline(always)]
    fn same_party(self, other: Mark) -> bool {
        (self.0 ^ other.0) >> 26 == 0
    }
}

/// What a race was found with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Earlier {
    /// The access before.
    pub(crate) mark: Mark,
    /// Whether that was a write.
    pub(crate) wrote: bool,
    /// Its instruction, where it is known.
    pub(crate) pc: Option<u32>,
}

/// Says which accesses come before those of one warp.
pub(crate) trait Order {
    /// Whether `mark`, of another thread, happened before the access `me` that is made now.
    fn is_after(&self, mark: Mark, me: Mark) -> bool;
}

/// Who makes an access: what it knows, at which instruction it is.
pub(crate) struct Visitor<'o, O> {
    pub(crate) order: &'o O,
    pub(crate) pc: u32,
    /// Whether other host threads may access the same memory now.
    pub(crate) contended: bool,
}

impl<O> Visitor<'_, O> {
    /// Between leaving a mark and looking at others': of a reader and a writer, one sees the other.
    #[inline(always)]
    fn fence(&self) {
        if self.contended {
            fence(SeqCst);
        }
    }
}

/// The marks of one block of memory.
pub(crate) struct RaceShadow {
    writes: Box<[AtomicU64]>,
    reads: Box<[AtomicU64]>,
    other_reads: Box<[AtomicU64]>,
    write_pcs: Box<[AtomicU32]>,
    read_pcs: Box<[AtomicU32]>,
}

impl RaceShadow {
    /// For a block of `bytes` bytes.
    pub(crate) fn new(bytes: usize) -> RaceShadow {
        let granules = bytes.div_ceil(GRANULE);
        let marks = || (0..granules).map(|_| AtomicU64::new(0)).collect();
        let pcs = || (0..granules).map(|_| AtomicU32::new(0)).collect();
        RaceShadow {
            writes: marks(),
            reads: marks(),
            other_reads: marks(),
            write_pcs: pcs(),
            read_pcs: pcs(),
        }
    }

    /// Forgets every mark: stamps may start anew.
    pub(crate) fn clear(&self) {
        for marks in [&self.writes, &self.reads, &self.other_reads] {
            for mark in marks {
                mark.store(0, Relaxed);
            }
        }
    }

    /// Notes a read of `count` bytes from `offset` on; the race, if it is one.
    #[inline(always)]
    pub(crate) fn read(
        &self,
        by: &Visitor<'_, impl Order>,
        me: Mark,
        (offset, count): (usize, usize),
    ) -> Option<Earlier> {
        for_granules(offset, count, |at, bytes| {
            self.remember_read(me.of_bytes(bytes), by.pc, at);
        });
        by.fence();
        let mut found = None;
        for_granules(offset, count, |at, bytes| {
            found = found.or_else(|| self.written_before(by, me.of_bytes(bytes), at));
        });
        found
    }

    /// Notes a write of `count` bytes from `offset` on; the race, if it is one. A write that
    /// changes nothing, as `changes` says of what it conflicts with, races with nobody.
    #[inline(always)]
    pub(crate) fn write(
        &self,
        by: &Visitor<'_, impl Order>,
        me: Mark,
        (offset, count): (usize, usize),
        changes: impl Fn(&Earlier) -> bool,
    ) -> Option<Earlier> {
        let mut found = None;
        for_granules(offset, count, |at, bytes| {
            let earlier = self.replace_write(by, me.of_bytes(bytes), at);
            if let Some(earlier) = earlier
                && found.is_none()
                && changes(&earlier)
            {
                found = Some(earlier);
            }
        });
        found
    }

    /// As [`RaceShadow::read`] for a whole warp whose lanes read `granules` whole granules each,
    /// side by side from granule `first` on; with the lane of the race.
    #[inline(always)]
    pub(crate) fn read_run(
        &self,
        by: &Visitor<'_, impl Order>,
        me: Mark,
        (first, granules): (usize, usize),
    ) -> Option<(u32, Earlier)> {
        let range = first..first + 32 * granules;
        let (writes, reads) = (&self.writes[range.clone()], &self.reads[range.clone()]);
        let (others, pcs) = (&self.other_reads[range.clone()], &self.read_pcs[range]);
        let me = me.of_bytes(0xf);
        for lane in 0..32 {
            let me = me.by_lane(lane as u32);
            for at in lane * granules..(lane + 1) * granules {
                let last = Mark(reads[at].load(Relaxed));
                if last != me {
                    if last.stamp() == me.stamp() && !last.same_party(me) {
                        others[at].store(last.0, Relaxed);
                    }
                    reads[at].store(me.0, Relaxed);
                    pcs[at].store(by.pc, Relaxed);
                }
            }
        }
        by.fence();
        let stamp = me.stamp();
        let known = |cell: &AtomicU64| Mark(cell.load(Relaxed)).stamp() == stamp;
        if !writes.iter().any(known) {
            return None;
        }
        (0..32).find_map(|lane| {
            let me = me.by_lane(lane as u32);
            let granules = lane * granules..(lane + 1) * granules;
            granules.into_iter().find_map(|at| {
                let earlier = self.written_before(by, me, first + at)?;
                Some((lane as u32, earlier))
            })
        })
    }

    /// As [`RaceShadow::write`] for a whole warp whose lanes write `granules` whole granules each,
    /// side by side from granule `first` on; with the lane of the race.
    #[inline(always)]
    pub(crate) fn write_run(
        &self,
        by: &Visitor<'_, impl Order>,
        me: Mark,
        (first, granules): (usize, usize),
        changes: impl Fn(u32) -> bool,
    ) -> Option<(u32, Earlier)> {
        let me = me.of_bytes(0xf);
        let mut found = None;
        for lane in 0..32 {
            let me = me.by_lane(lane);
            for at in 0..granules {
                let at = first + lane as usize * granules + at;
                if let Some(earlier) = self.replace_write(by, me, at)
                    && found.is_none()
                    && changes(lane)
                {
                    found = Some((lane, earlier));
                }
            }
        }
        found
    }

    /// The race of a read with the last write.
    #[inline(always)]
    fn written_before(&self, by: &Visitor<'_, impl Order>, me: Mark, at: usize) -> Option<Earlier> {
        let write = Mark(self.writes[at].load(Relaxed));
        let conflict = write.stamp() == me.stamp() && races(write, me, by.order);
        conflict.then(|| self.earlier_write(write, at))
    }

    /// Leaves a write's mark; its race with the last write or with a read.
    #[inline(always)]
    fn replace_write(&self, by: &Visitor<'_, impl Order>, me: Mark, at: usize) -> Option<Earlier> {
        let cell = &self.writes[at];
        let write = match by.contended {
            // In one step, or neither of two writers would see the other.
            true => Mark(cell.swap(me.0, SeqCst)),
            false => {
                let before = cell.load(Relaxed);
                cell.store(me.0, Relaxed);
                Mark(before)
            }
        };
        let earlier = self.conflict_of_write(by, me, write, at);
        self.write_pcs[at].store(by.pc, Relaxed);
        earlier
    }

    #[inline(always)]
    fn conflict_of_write(
        &self,
        by: &Visitor<'_, impl Order>,
        me: Mark,
        write: Mark,
        at: usize,
    ) -> Option<Earlier> {
        if write.stamp() == me.stamp() && races(write, me, by.order) {
            return Some(self.earlier_write(write, at));
        }
        let read = Mark(self.reads[at].load(Relaxed));
        if read.stamp() != me.stamp() {
            return None;
        }
        if races(read, me, by.order) {
            let pc = Some(self.read_pcs[at].load(Relaxed));
            return Some(Earlier {
                mark: read,
                wrote: false,
                pc,
            });
        }
        let read = Mark(self.other_reads[at].load(Relaxed));
        let conflict = read.stamp() == me.stamp() && races(read, me, by.order);
        conflict.then_some(Earlier {
            mark: read,
            wrote: false,
            pc: None,
        })
    }

    fn earlier_write(&self, mark: Mark, at: usize) -> Earlier {
        let pc = Some(self.write_pcs[at].load(Relaxed));
        Earlier {
            mark,
            wrote: true,
            pc,
        }
    }

    #[inline(always)]
    fn remember_read(&self, me: Mark, pc: u32, at: usize) {
        let last = Mark(self.reads[at].load(Relaxed));
        if last == me {
            return;
        }
        if last.stamp() == me.stamp() && !last.same_party(me) {
            self.other_reads[at].store(last.0, Relaxed);
        }
        self.reads[at].store(me.0, Relaxed);
        self.read_pcs[at].store(pc, Relaxed);
    }
}

/// Whether `earlier` and `me`, of one launch, touch a common byte without being ordered.
#[inline(always)]
fn races(earlier: Mark, me: Mark, order: &impl Order) -> bool {
    let same_thread = (earlier.0 ^ me.0) >> 21 == 0;
    if same_thread || earlier.bytes() & me.bytes() == 0 || (earlier.atomic() && me.atomic()) {
        return false;
    }
    earlier.clock() < LAST_CLOCK && !order.is_after(earlier, me)
}

/// Calls `f` with each granule of a range and the bits of the bytes that it has in it.
#[inline(always)]
fn for_granules(offset: usize, count: usize, mut f: impl FnMut(usize, u32)) {
    let (mut at, end) = (offset, offset + count);
    while at < end {
        let inside = (GRANULE - at % GRANULE).min(end - at);
        f(at / GRANULE, ((1 << inside) - 1) << (at % GRANULE));
        at += inside;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything of other warps with a smaller clock came before.
    struct After(u32);

    impl Order for After {
        fn is_after(&self, mark: Mark, _: Mark) -> bool {
            mark.clock() < self.0
        }
    }

    fn at(order: &After, pc: u32) -> Visitor<'_, After> {
        Visitor {
            order,
            pc,
            contended: false,
        }
    }

    fn by(warp: u8, clock: u32) -> Mark {
        Mark::new(1, 0, warp, 0, clock, false)
    }

    #[test]
    fn reads_do_not_race_with_reads() {
        let shadow = RaceShadow::new(16);
        assert_eq!(shadow.read(&at(&After(0), 7), by(0, 1), (0, 16)), None);
        assert_eq!(shadow.read(&at(&After(0), 7), by(1, 1), (0, 16)), None);
    }

    #[test]
    fn a_barrier_orders() {
        let shadow = RaceShadow::new(16);
        shadow.write(&at(&After(0), 7), by(0, 1), (4, 4), |_| true);
        let race = shadow.read(&at(&After(0), 8), by(1, 1), (0, 16)).unwrap();
        assert_eq!((race.wrote, race.pc, race.mark.agent()), (true, Some(7), 0));
        assert_eq!(shadow.read(&at(&After(2), 8), by(1, 2), (0, 16)), None);
        assert_eq!(shadow.read(&at(&After(0), 8), by(1, 1), (8, 8)), None);
    }

    /// Whoever of many readers is not ordered is found, however many read after it.
    #[test]
    fn a_write_races_with_any_reader_but_itself() {
        let shadow = RaceShadow::new(4);
        for warp in [3, 0, 1, 2, 2, 2] {
            shadow.read(&at(&After(0), 5), by(warp, 1), (0, 4));
        }
        for warp in 0..4 {
            let race = shadow.write(&at(&After(0), 6), by(warp, 1), (0, 4), |_| true);
            assert!(race.is_some_and(|race| race.mark.agent() != warp));
        }
    }

    #[test]
    fn neighbours_in_a_granule_do_not_race() {
        let shadow = RaceShadow::new(4);
        shadow.write(&at(&After(0), 5), by(0, 1), (0, 2), |_| true);
        assert_eq!(
            shadow.write(&at(&After(0), 5), by(1, 1), (2, 2), |_| true),
            None
        );
    }

    #[test]
    fn earlier_launches_and_equal_values_are_forgiven() {
        let shadow = RaceShadow::new(4);
        shadow.write(&at(&After(0), 5), by(0, 1), (0, 4), |_| true);
        let next_launch = Mark::new(2, 0, 1, 0, 1, false);
        assert_eq!(shadow.read(&at(&After(0), 5), next_launch, (0, 4)), None);
        assert_eq!(
            shadow.write(&at(&After(0), 5), by(1, 1), (0, 4), |_| false),
            None
        );
    }
}
