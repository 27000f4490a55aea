//! Who accessed which bytes: the memory of the race detector.
//!
//! An access races with an earlier one when both touch a common byte, at least one is a write, not
//! both are atomic, and no chain of barriers, or of a release and an acquire, leads from one to the
//! other (vector clocks, as in FastTrack, Flanagan & Freund 2009).
//!
//! Memory is remembered twice. Every four bytes (a granule) have the [`Record`] of accesses by
//! single lanes; every 128 (a line) have one of accesses by whole warps, lane beside lane, which are
//! most of what kernels do: one mark then stands for 32. A line also knows whether its granules
//! have marks at all.
//!
//! Marks are stamped, so that those of an earlier launch, or of an earlier CTA in shared memory,
//! count for nothing and need not be erased.

mod locks;
mod mark;
mod record;

use std::ops::Range;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, fence};

use bytemuck::{Zeroable, zeroed_slice_box};

pub(crate) use locks::{LineLocks, Locked};
pub(crate) use mark::{LAST_CLOCK, LAST_STAMP, Mark};
use record::Record;

use crate::vectors::vectorised;

/// Bytes a granule.
pub(crate) const GRANULE: usize = 4;

/// Granules a line.
const LINE: usize = 32;

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

impl Earlier {
    /// No access at all: no launch has its stamp.
    const NOTHING: Earlier = Earlier {
        mark: Mark::NONE,
        wrote: false,
        pc: None,
    };

    /// What an access of a whole line was to one granule of it.
    #[inline(always)]
    fn in_line(self, granule: usize) -> Earlier {
        let mark = self.mark.in_line(granule % LINE);
        Earlier { mark, ..self }
    }
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

impl<O: Order> Visitor<'_, O> {
    /// Between leaving a mark and looking at others': of two threads, one sees the other.
    #[inline(always)]
    fn fence(&self) {
        if self.contended {
            fence(SeqCst);
        }
    }

    /// Whether an earlier access of a granule and `me` race.
    #[inline(always)]
    fn races(&self, earlier: &Earlier, me: Mark) -> bool {
        let mark = earlier.mark;
        mark.stamp() == me.stamp()
            && !mark.same_thread(me)
            && mark.bytes() & me.bytes() != 0
            && !(mark.atomic() && me.atomic())
            && mark.clock() < LAST_CLOCK
            && !self.order.is_after(mark, me)
    }

    /// Whether an earlier access of a line and `me`, of the same line, may race in some granule.
    /// Two lanes that differ stand for all: only asynchronous copies are ordered lane by lane, and
    /// those never leave the mark of a line.
    #[inline(always)]
    fn may_race(&self, earlier: &Earlier, me: Mark) -> bool {
        let mark = earlier.mark;
        mark.stamp() == me.stamp()
            && !mark.same_threads(me)
            && !self.order.is_after(mark.by_lane(0), me.by_lane(1))
    }
}

/// Which bytes the lanes of a warp access.
#[derive(Clone, Copy)]
pub(crate) struct Reach<'r> {
    pub(crate) lanes: u32,
    /// The first byte of each lane.
    pub(crate) offsets: &'r [u64; 32],
    /// Bytes a lane.
    pub(crate) bytes: usize,
}

/// Granules side by side that one lane accesses in the same way.
#[derive(Clone, Copy)]
struct Piece {
    first: usize,
    count: usize,
    /// Its access of each of them.
    me: Mark,
}

impl Piece {
    fn granules(self) -> Range<usize> {
        self.first..self.first + self.count
    }
}

impl Reach<'_> {
    /// Calls `f` with each piece, `me` being the access but for lane and bytes.
    #[inline(always)]
    fn for_pieces(&self, me: Mark, mut f: impl FnMut(u32, Piece)) {
        let mut rest = self.lanes;
        while rest != 0 {
            let lane = rest.trailing_zeros();
            rest &= rest - 1;
            let (offset, me) = (self.offsets[lane as usize & 31] as usize, me.by_lane(lane));
            if (offset | self.bytes).is_multiple_of(GRANULE) {
                let piece = Piece {
                    first: offset / GRANULE,
                    count: self.bytes / GRANULE,
                    me: me.of_bytes(0xf),
                };
                f(lane, piece);
                continue;
            }
            for_granules(offset, self.bytes, |first, bytes| {
                let me = me.of_bytes(bytes);
                f(
                    lane,
                    Piece {
                        first,
                        count: 1,
                        me,
                    },
                );
            });
        }
    }

    /// The same without lanes whose bytes a later lane accesses too, as far as a few comparisons
    /// find them. Of lanes that read the same bytes, one is remembered anyway.
    #[inline(always)]
    fn without_repeats(self) -> Self {
        let repeats = vectorised(
            #[inline(always)]
            || {
                repeats::<1>(&self)
                    | repeats::<2>(&self)
                    | repeats::<4>(&self)
                    | repeats::<8>(&self)
                    | repeats::<16>(&self)
            },
        );
        Reach {
            lanes: self.lanes & !repeats,
            ..self
        }
    }
}

/// Lanes whose bytes the lane so far behind them accesses too.
#[inline(always)]
fn repeats<const DISTANCE: usize>(reach: &Reach<'_>) -> u32 {
    let (these, those) = (&reach.offsets[..32 - DISTANCE], &reach.offsets[DISTANCE..]);
    let mut same = 0;
    for (lane, (this, that)) in these.iter().zip(those).enumerate() {
        same |= u32::from(this == that) << lane;
    }
    same & reach.lanes >> DISTANCE
}

/// The accesses of a line by whole warps.
#[derive(Zeroable)]
struct Line {
    record: Record,
    /// The last stamp with which one of its granules got a mark of its own.
    parts: AtomicU32,
}

impl Line {
    #[inline(always)]
    fn has_parts(&self, me: Mark) -> bool {
        u64::from(self.parts.load(Relaxed)) == me.stamp()
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
        RaceShadow {
            granules: zeroed_slice_box(lines * LINE),
            lines: zeroed_slice_box(lines),
        }
    }

    /// Forgets every mark: stamps may start anew.
    pub(crate) fn clear(&self) {
        self.granules.iter().for_each(Record::clear);
        for line in &self.lines {
            line.record.clear();
            line.parts.store(0, Relaxed);
        }
    }

    /// Notes reads by single lanes; the lane and the race of one, if there is any.
    pub(crate) fn read(
        &self,
        by: &Visitor<'_, impl Order>,
        me: Mark,
        reach: Reach<'_>,
    ) -> Option<(u32, Earlier)> {
        let reach = reach.without_repeats();
        let leave = |piece: Piece| {
            self.note_parts(piece);
            for record in &self.granules[piece.granules()] {
                record.leave_read(piece.me, by.pc);
            }
        };
        let mut found = None;
        let mut look = |lane, piece: Piece| {
            let race = self.race_with_write(by, piece);
            found = found.or(race.map(|earlier| (lane, earlier)));
        };
        if by.contended {
            reach.for_pieces(me, |_, piece| leave(piece));
            by.fence();
            reach.for_pieces(me, look);
        } else {
            reach.for_pieces(me, |lane, piece| {
                leave(piece);
                look(lane, piece);
            });
        }
        found
    }

    /// The write that a piece that is read races with.
    #[inline(always)]
    fn race_with_write(&self, by: &Visitor<'_, impl Order>, piece: Piece) -> Option<Earlier> {
        let written = self.lines[piece.first / LINE].record.written();
        if written.mark.stamp() == piece.me.stamp() {
            let each = piece.granules().map(|at| written.in_line(at));
            let race = each.into_iter().find(|it| by.races(it, piece.me));
            if race.is_some() {
                return race;
            }
        }
        // Neighbors were mostly written together.
        let mut ordered = Mark::NONE;
        for record in &self.granules[piece.granules()] {
            let written = record.written();
            if written.mark == ordered {
                continue;
            }
            if by.races(&written, piece.me) {
                return Some(written);
            }
            ordered = written.mark;
        }
        None
    }

    /// Notes writes by single lanes; the lane and the race of one, if there is any. A write that
    /// changes nothing, as `changes` says of a lane and what it conflicts with, races with nobody.
    /// Where others may write too, the lines are locked until the bytes are stored.
    pub(crate) fn write(
        &self,
        by: &Visitor<'_, impl Order>,
        me: Mark,
        reach: Reach<'_>,
        changes: impl Fn(u32, &Earlier) -> bool,
    ) -> Option<(u32, Earlier)> {
        let mut found = None;
        let mut look = |lane, me, earlier: Earlier| {
            if found.is_none() && by.races(&earlier, me) && changes(lane, &earlier) {
                found = Some((lane, earlier));
            }
        };
        reach.for_pieces(me, |lane, piece| {
            self.note_parts(piece);
            for record in &self.granules[piece.granules()] {
                look(lane, piece.me, record.leave_write(piece.me, by.pc));
            }
        });
        by.fence();
        reach.for_pieces(me, |lane, piece| {
            for record in &self.granules[piece.granules()] {
                for earlier in record.reads() {
                    look(lane, piece.me, earlier);
                }
            }
            let whole = &self.lines[piece.first / LINE].record;
            let [read, other] = whole.reads();
            for earlier in [whole.written(), read, other] {
                if earlier.mark.stamp() == piece.me.stamp() {
                    let each = piece.granules().map(|at| earlier.in_line(at));
                    each.for_each(|earlier| look(lane, piece.me, earlier));
                }
            }
        });
        found
    }

    /// Notes a read by a whole warp, whose lanes read `granules` whole granules each, side by side
    /// from the beginning of a line on; the lane and the race of one, if there is any.
    #[inline(always)]
    pub(crate) fn read_lines(
        &self,
        by: &Visitor<'_, impl Order>,
        me: Mark,
        run: Run,
    ) -> Option<(u32, Earlier)> {
        let lines = &self.lines[run.lines()];
        for (index, line) in lines.iter().enumerate() {
            line.record.leave_read(run.mark(me, index), by.pc);
        }
        by.fence();
        for (index, line) in lines.iter().enumerate() {
            let me = run.mark(me, index);
            let written = line.record.written();
            if !line.has_parts(me) && !by.may_race(&written, me) {
                continue;
            }
            let found = find_in_line(run.line + index, me, |at, me| {
                let candidates = [written.in_line(at), self.granules[at].written()];
                candidates.into_iter().find(|it| by.races(it, me))
            });
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// As [`RaceShadow::read_lines`] for a write; `changes` as in [`RaceShadow::write`].
    #[inline(always)]
    pub(crate) fn write_lines(
        &self,
        by: &Visitor<'_, impl Order>,
        me: Mark,
        run: Run,
        changes: impl Fn(u32) -> bool,
    ) -> Option<(u32, Earlier)> {
        let lines = &self.lines[run.lines()];
        let mut written = [Earlier::NOTHING; 4];
        for (index, line) in lines.iter().enumerate() {
            written[index] = line.record.leave_write(run.mark(me, index), by.pc);
        }
        by.fence();
        for (index, line) in lines.iter().enumerate() {
            let me = run.mark(me, index);
            let [read, other] = line.record.reads();
            let whole = [written[index], read, other];
            if !line.has_parts(me) && !whole.iter().any(|it| by.may_race(it, me)) {
                continue;
            }
            let found = find_in_line(run.line + index, me, |at, me| {
                let [read, other] = self.granules[at].reads();
                let own = [self.granules[at].written(), read, other];
                let mut candidates = whole.map(|it| it.in_line(at)).into_iter().chain(own);
                candidates.find(|it| by.races(it, me) && changes(u32::from(me.lane())))
            });
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Granules get marks of their own. No access reaches over the end of a line: none is longer
    /// than what its address is a multiple of.
    #[inline(always)]
    fn note_parts(&self, piece: Piece) {
        debug_assert_eq!(piece.first / LINE, (piece.first + piece.count - 1) / LINE);
        let line = &self.lines[piece.first / LINE];
        if !line.has_parts(piece.me) {
            line.parts.store(piece.me.stamp() as u32, Relaxed);
        }
    }
}

/// Whole lines that a warp accesses, each lane as many granules as there are lines.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    line: usize,
    /// 1, 2 or 4.
    granules: usize,
}

impl Run {
    /// For lanes that access `granules` granules each from byte `offset`, where a line begins, on.
    #[inline(always)]
    pub(crate) fn new(offset: usize, granules: usize) -> Run {
        debug_assert!(offset.is_multiple_of(GRANULE * LINE) && matches!(granules, 1 | 2 | 4));
        Run {
            line: offset / (GRANULE * LINE),
            granules,
        }
    }

    #[inline(always)]
    fn lines(self) -> Range<usize> {
        self.line..self.line + self.granules
    }

    /// The mark of the line with this index in the run.
    #[inline(always)]
    fn mark(self, me: Mark, index: usize) -> Mark {
        me.of_line((index * LINE / self.granules) as u32, self.granules)
    }
}

/// The first granule of a line in which `f` finds something, and the lane that touches it.
#[cold]
fn find_in_line(
    line: usize,
    me: Mark,
    f: impl Fn(usize, Mark) -> Option<Earlier>,
) -> Option<(u32, Earlier)> {
    (0..LINE).find_map(|index| {
        let me = me.in_line(index);
        let earlier = f(line * LINE + index, me)?;
        Some((u32::from(me.lane()), earlier))
    })
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
mod tests;
