//! The race detector's shadow memory.
//!
//! Two accesses race if they overlap, at least one is a write, not both are atomic, and no chain of
//! barriers or release-acquire pairs orders them (vector clocks, as in FastTrack, Flanagan & Freund
//! 2009).
//!
//! There are two levels of shadow memory. Every granule of 4 bytes has a [`Record`] of accesses by
//! single lanes. Every line of 128 bytes has one for coalesced accesses by whole warps. Most
//! accesses of kernels are coalesced, and one mark then stands for 32. A line also tracks whether
//! its granules have marks.
//!
//! Marks carry a stamp. Marks of an earlier launch, or of an earlier CTA in shared memory, have
//! another stamp and need not be cleared.

mod locks;
mod mark;
mod record;

use std::ops::Range;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, fence};

use bytemuck::{Zeroable, zeroed_slice_box};

pub(crate) use locks::{LineGuard, LineLocks};
use mark::{GRANULE, LINE};
pub(crate) use mark::{LAST_CLOCK, LAST_STAMP, Mark};
pub(crate) use record::PriorAccess;
use record::Record;

use crate::simd::vectorized;

/// The happens-before order, as seen by one warp.
pub(crate) trait HappensBefore {
    /// Whether `mark`, of another thread, happened before the current access `me`.
    fn happened_before(&self, mark: Mark, me: Mark) -> bool;
}

/// The warp that makes an access.
pub(crate) struct Accessor<'o, O> {
    pub(crate) order: &'o O,
    pub(crate) pc: u32,
    /// Whether other host threads may access the same memory concurrently.
    pub(crate) contended: bool,
}

impl<O: HappensBefore> Accessor<'_, O> {
    /// Separates storing a mark from loading the marks of others. Of two concurrent threads, at
    /// least one then finds the other's mark.
    #[inline(always)]
    fn fence(&self) {
        if self.contended {
            fence(SeqCst);
        }
    }

    /// Whether an earlier access of a granule races with `me`.
    #[inline(always)]
    fn races(&self, earlier: &PriorAccess, me: Mark) -> bool {
        let mark = earlier.mark;
        mark.stamp() == me.stamp()
            && !mark.same_thread(me)
            && mark.bytes() & me.bytes() != 0
            && !(mark.atomic() && me.atomic())
            && mark.clock() < LAST_CLOCK
            && !self.order.happened_before(mark, me)
    }

    /// Whether an earlier access of a line may race with `me`, an access of the same line, in some
    /// granule. Checking one pair of different lanes is enough: only asynchronous copies are
    /// ordered per lane, and they never mark lines.
    #[inline(always)]
    fn may_race(&self, earlier: &PriorAccess, me: Mark) -> bool {
        let mark = earlier.mark;
        mark.stamp() == me.stamp()
            && !mark.same_threads(me)
            && !self.order.happened_before(mark.by_lane(0), me.by_lane(1))
    }
}

/// The bytes that the lanes of a warp access.
#[derive(Clone, Copy)]
pub(crate) struct LaneRanges<'r> {
    pub(crate) lanes: u32,
    /// The first byte of each lane.
    pub(crate) offsets: &'r [u64; 32],
    /// Bytes per lane.
    pub(crate) bytes: usize,
}

/// Consecutive granules that one lane accesses in the same way.
#[derive(Clone, Copy)]
struct GranuleRange {
    first: usize,
    count: usize,
    /// The access of each granule.
    me: Mark,
}

impl GranuleRange {
    fn granules(self) -> Range<usize> {
        self.first..self.first + self.count
    }
}

impl LaneRanges<'_> {
    /// Calls `f` with each range; `me` is the access without lane and bytes.
    #[inline(always)]
    fn for_granule_ranges(&self, me: Mark, mut f: impl FnMut(u32, GranuleRange)) {
        let mut rest = self.lanes;
        while rest != 0 {
            let lane = rest.trailing_zeros();
            rest &= rest - 1;
            let (offset, me) = (self.offsets[lane as usize & 31] as usize, me.by_lane(lane));
            if (offset | self.bytes).is_multiple_of(GRANULE) {
                let range = GranuleRange {
                    first: offset / GRANULE,
                    count: self.bytes / GRANULE,
                    me: me.of_bytes(0xf),
                };
                f(lane, range);
                continue;
            }
            for_granules(offset, self.bytes, |first, bytes| {
                let me = me.of_bytes(bytes);
                f(lane, GranuleRange { first, count: 1, me });
            });
        }
    }

    /// Drops lanes that access the same bytes as the lane 1, 2, 4, 8 or 16 after them: a record
    /// holds only one of several lanes of a warp that read the same bytes.
    #[inline(always)]
    fn without_duplicates(self) -> Self {
        let duplicates = vectorized(
            #[inline(always)]
            || {
                duplicates::<1>(&self)
                    | duplicates::<2>(&self)
                    | duplicates::<4>(&self)
                    | duplicates::<8>(&self)
                    | duplicates::<16>(&self)
            },
        );
        LaneRanges { lanes: self.lanes & !duplicates, ..self }
    }
}

/// Lanes that access the same bytes as the lane `DISTANCE` after them.
#[inline(always)]
fn duplicates<const DISTANCE: usize>(ranges: &LaneRanges<'_>) -> u32 {
    let (these, those) = (&ranges.offsets[..32 - DISTANCE], &ranges.offsets[DISTANCE..]);
    let mut same = 0;
    for (lane, (this, that)) in these.iter().zip(those).enumerate() {
        same |= u32::from(this == that) << lane;
    }
    same & ranges.lanes >> DISTANCE
}

/// Coalesced accesses of one line.
#[derive(Zeroable)]
struct Line {
    record: Record,
    /// The last stamp with which a granule of the line was marked.
    granule_stamp: AtomicU32,
}

impl Line {
    #[inline(always)]
    fn has_granule_marks(&self, me: Mark) -> bool {
        u64::from(self.granule_stamp.load(Relaxed)) == me.stamp()
    }
}

/// The marks of one block of memory.
pub(crate) struct RaceShadow {
    granules: Box<[Record]>,
    lines: Box<[Line]>,
}

impl RaceShadow {
    /// For a block of `bytes` bytes.
    pub(crate) fn new(bytes: usize) -> RaceShadow {
        let lines = bytes.div_ceil(GRANULE * LINE);
        RaceShadow { granules: zeroed_slice_box(lines * LINE), lines: zeroed_slice_box(lines) }
    }

    /// Clears all marks, so that stamps can restart.
    pub(crate) fn clear(&self) {
        self.granules.iter().for_each(Record::clear);
        for line in &self.lines {
            line.record.clear();
            line.granule_stamp.store(0, Relaxed);
        }
    }

    /// Records reads by single lanes. Returns the lane and the prior access of the first race.
    pub(crate) fn read(
        &self,
        by: &Accessor<'_, impl HappensBefore>,
        me: Mark,
        ranges: LaneRanges<'_>,
    ) -> Option<(u32, PriorAccess)> {
        let ranges = ranges.without_duplicates();
        let record = |range: GranuleRange| {
            self.note_granule_marks(range);
            for record in &self.granules[range.granules()] {
                record.record_read(range.me, by.pc);
            }
        };
        let mut found = None;
        let mut check = |lane, range: GranuleRange| {
            let race = self.race_with_write(by, range);
            found = found.or(race.map(|earlier| (lane, earlier)));
        };
        if by.contended {
            ranges.for_granule_ranges(me, |_, range| record(range));
            by.fence();
            ranges.for_granule_ranges(me, check);
        } else {
            ranges.for_granule_ranges(me, |lane, range| {
                record(range);
                check(lane, range);
            });
        }
        found
    }

    /// The write that a read of a range races with.
    #[inline(always)]
    fn race_with_write(
        &self,
        by: &Accessor<'_, impl HappensBefore>,
        range: GranuleRange,
    ) -> Option<PriorAccess> {
        let last_write = self.lines[range.first / LINE].record.last_write();
        if last_write.mark.stamp() == range.me.stamp() {
            let each = range.granules().map(|at| last_write.in_line(at));
            let race = each.into_iter().find(|it| by.races(it, range.me));
            if race.is_some() {
                return race;
            }
        }
        // Adjacent granules usually have the same last write.
        let mut ordered = Mark::NONE;
        for record in &self.granules[range.granules()] {
            let last_write = record.last_write();
            if last_write.mark == ordered {
                continue;
            }
            if by.races(&last_write, range.me) {
                return Some(last_write);
            }
            ordered = last_write.mark;
        }
        None
    }

    /// Records writes by single lanes. Returns the lane and the prior access of the first race. A
    /// write that does not change memory, as reported by `changes`, does not race. If other host
    /// threads may write too, the caller holds the lines' locks until the bytes are stored.
    pub(crate) fn write(
        &self,
        by: &Accessor<'_, impl HappensBefore>,
        me: Mark,
        ranges: LaneRanges<'_>,
        changes: impl Fn(u32, &PriorAccess) -> bool,
    ) -> Option<(u32, PriorAccess)> {
        let mut found = None;
        let mut check = |lane, me, earlier: PriorAccess| {
            if found.is_none() && by.races(&earlier, me) && changes(lane, &earlier) {
                found = Some((lane, earlier));
            }
        };
        ranges.for_granule_ranges(me, |lane, range| {
            self.note_granule_marks(range);
            for record in &self.granules[range.granules()] {
                check(lane, range.me, record.record_write(range.me, by.pc));
            }
        });
        by.fence();
        ranges.for_granule_ranges(me, |lane, range| {
            for record in &self.granules[range.granules()] {
                for earlier in record.last_reads() {
                    check(lane, range.me, earlier);
                }
            }
            let whole = &self.lines[range.first / LINE].record;
            let [read, other] = whole.last_reads();
            for earlier in [whole.last_write(), read, other] {
                if earlier.mark.stamp() == range.me.stamp() {
                    let each = range.granules().map(|at| earlier.in_line(at));
                    each.for_each(|earlier| check(lane, range.me, earlier));
                }
            }
        });
        found
    }

    /// Records a coalesced read of whole lines, `granules` granules per lane. Returns the lane and
    /// the prior access of the first race.
    #[inline(always)]
    pub(crate) fn read_lines(
        &self,
        by: &Accessor<'_, impl HappensBefore>,
        me: Mark,
        range: LineRange,
    ) -> Option<(u32, PriorAccess)> {
        let lines = &self.lines[range.lines()];
        for (index, line) in lines.iter().enumerate() {
            line.record.record_read(range.mark(me, index), by.pc);
        }
        by.fence();
        for (index, line) in lines.iter().enumerate() {
            let me = range.mark(me, index);
            let last_write = line.record.last_write();
            if !line.has_granule_marks(me) && !by.may_race(&last_write, me) {
                continue;
            }
            let found = find_in_line(range.line + index, me, |at, me| {
                let candidates = [last_write.in_line(at), self.granules[at].last_write()];
                candidates.into_iter().find(|it| by.races(it, me))
            });
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// [`RaceShadow::read_lines`] for a write; `changes` as in [`RaceShadow::write`].
    #[inline(always)]
    pub(crate) fn write_lines(
        &self,
        by: &Accessor<'_, impl HappensBefore>,
        me: Mark,
        range: LineRange,
        changes: impl Fn(u32) -> bool,
    ) -> Option<(u32, PriorAccess)> {
        let lines = &self.lines[range.lines()];
        let mut last_write = [PriorAccess::NONE; 4];
        for (index, line) in lines.iter().enumerate() {
            last_write[index] = line.record.record_write(range.mark(me, index), by.pc);
        }
        by.fence();
        for (index, line) in lines.iter().enumerate() {
            let me = range.mark(me, index);
            let [read, other] = line.record.last_reads();
            let whole = [last_write[index], read, other];
            if !line.has_granule_marks(me) && !whole.iter().any(|it| by.may_race(it, me)) {
                continue;
            }
            let found = find_in_line(range.line + index, me, |at, me| {
                let [read, other] = self.granules[at].last_reads();
                let own = [self.granules[at].last_write(), read, other];
                let mut candidates = whole.map(|it| it.in_line(at)).into_iter().chain(own);
                candidates.find(|it| by.races(it, me) && changes(u32::from(me.lane())))
            });
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// The last writes of the granule at a byte, with this stamp: by a coalesced access and by a
    /// single lane.
    pub(crate) fn last_writes(&self, offset: usize, stamp: u32) -> [Option<PriorAccess>; 2] {
        let granule = offset / GRANULE;
        let of_line = self.lines[granule / LINE].record.last_write();
        let writes = [of_line.in_line(granule), self.granules[granule].last_write()];
        writes.map(|write| Some(write).filter(|it| it.mark.stamp() == u64::from(stamp)))
    }

    /// Notes that granules of the line have marks. An access never crosses the end of a line,
    /// because it is aligned to its size.
    #[inline(always)]
    fn note_granule_marks(&self, range: GranuleRange) {
        debug_assert_eq!(range.first / LINE, (range.first + range.count - 1) / LINE);
        let line = &self.lines[range.first / LINE];
        if !line.has_granule_marks(range.me) {
            line.granule_stamp.store(range.me.stamp() as u32, Relaxed);
        }
    }
}

/// Whole lines of a coalesced access. The number of lines equals the granules per lane.
#[derive(Clone, Copy)]
pub(crate) struct LineRange {
    line: usize,
    /// 1, 2 or 4.
    granules: usize,
}

impl LineRange {
    /// For lanes that access `granules` granules each. `offset` is the first byte, at the start of
    /// a line.
    #[inline(always)]
    pub(crate) fn new(offset: usize, granules: usize) -> LineRange {
        debug_assert!(offset.is_multiple_of(GRANULE * LINE) && matches!(granules, 1 | 2 | 4));
        LineRange { line: offset / (GRANULE * LINE), granules }
    }

    #[inline(always)]
    fn lines(self) -> Range<usize> {
        self.line..self.line + self.granules
    }

    /// The mark of the line with this index in the range.
    #[inline(always)]
    fn mark(self, me: Mark, index: usize) -> Mark {
        me.of_line((index * LINE / self.granules) as u32, self.granules)
    }
}

/// The first granule of a line for which `f` returns something, with its lane.
#[cold]
fn find_in_line(
    line: usize,
    me: Mark,
    f: impl Fn(usize, Mark) -> Option<PriorAccess>,
) -> Option<(u32, PriorAccess)> {
    (0..LINE).find_map(|index| {
        let me = me.in_line(index);
        let earlier = f(line * LINE + index, me)?;
        Some((u32::from(me.lane()), earlier))
    })
}

/// Calls `f` with each granule of a byte range, and its bytes in the range as bits.
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
mod tests;
