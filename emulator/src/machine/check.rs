//! Whether an access is sound: inside, aligned, of memory that was written, and ordered with the
//! accesses of others.

use super::cta::Cta;
use super::home::{Addresses, Home, Region, Spot};
use super::lanes::{each_bit, each_lane};
use super::order::{Knowledge, copies_of};
use super::registers::{ALL, LANES, lanes_of};
use super::warp::Warp;
use crate::memory::races::{Earlier, Locked, Mark, Reach, Visitor};
use crate::memory::{Block, MemoryKind};
use crate::report::{Fault, FindingKind};
use crate::vectors::vectorised;

/// An access as the checks see it.
#[derive(Clone, Copy)]
pub(super) struct Touch {
    pub(super) bytes: usize,
    /// What its address must be a multiple of.
    pub(super) align: usize,
    pub(super) reads: bool,
    pub(super) writes: bool,
    /// Whether it is strong: atomic, volatile or relaxed.
    pub(super) strong: bool,
    pub(super) pc: u32,
    /// The group of an asynchronous copy that does it instead of the thread.
    pub(super) copy: Option<u32>,
}

impl Touch {
    /// A weak access of `bytes` bytes by a thread itself.
    pub(super) fn new(bytes: usize, reads: bool, writes: bool, pc: u32) -> Touch {
        Touch {
            bytes,
            align: bytes,
            reads,
            writes,
            strong: false,
            pc,
            copy: None,
        }
    }
}

/// Whether a write of a lane changes anything, given whom it conflicts with.
pub(super) type Changes<'c> = &'c dyn Fn(&Block, usize, &Earlier) -> bool;

/// Of accesses that need not say.
pub(super) const ALWAYS: Changes<'_> = &|_, _, _| true;

impl<'g> Cta<'g> {
    /// Bounds, alignment, initialization and races of an access. Who writes holds what comes back
    /// until the bytes are stored.
    pub(super) fn check(
        &self,
        warp: &Warp,
        spot: &Spot,
        touch: Touch,
        changes: Changes<'_>,
    ) -> Result<Option<Locked<'g>>, Box<Fault>> {
        self.check_place(warp, spot, touch)?;
        if touch.writes {
            self.check_writable(warp, spot, touch.bytes)?;
        }
        let region = self.region(spot.home);
        let sanitize = self.grid.options.sanitize;
        if touch.reads && sanitize {
            self.check_initialized(warp, spot, &region, touch.bytes)?;
        }
        if touch.writes
            && let Some(initialized) = region.initialized
        {
            for_ranges(spot, touch.bytes, |at, count| {
                initialized.set(at, count);
                true
            });
        }
        let offsets = || lanes_of(spot.lanes).map(|lane| spot.offsets[lane] as usize);
        let locked = match touch.writes {
            true => self.lock(spot.home, offsets),
            false => None,
        };
        if sanitize {
            self.check_races(warp, spot, &region, touch, changes)?;
        }
        Ok(locked)
    }

    /// Keeps other host threads from writing the lines of these bytes, if they might and it
    /// matters.
    #[inline(always)]
    pub(super) fn lock<I: Iterator<Item = usize>>(
        &self,
        home: Home,
        offsets: impl FnOnce() -> I,
    ) -> Option<Locked<'g>> {
        match home {
            Home::Global(index) if self.grid.contended && self.grid.options.sanitize => {
                Some(self.grid.space.locks().lock(index, offsets()))
            }
            _ => None,
        }
    }

    fn check_place(&self, warp: &Warp, spot: &Spot, touch: Touch) -> Result<(), Box<Fault>> {
        let Touch { bytes, align, .. } = touch;
        let Spot {
            home,
            lanes,
            ref offsets,
        } = *spot;
        let (low, size) = (align as u64 - 1, self.size(home));
        let in_thread = |lane: usize| {
            let start = self.thread_start(home, warp.index, lane);
            offsets[lane].wrapping_sub(start)
        };
        let own;
        let places = match home {
            Home::Local => {
                own = each_lane(in_thread);
                &own
            }
            _ => offsets,
        };
        let last = (size as u64).checked_sub(bytes as u64);
        let end = last.map_or(0, |last| last + 1);
        let wrong = lanes
            & vectorised(
                #[inline(always)]
                move || each_bit(|lane| (places[lane] >= end) | (places[lane] & low != 0)),
            );
        if wrong == 0 {
            return Ok(());
        }
        let lane = wrong.trailing_zeros() as usize;
        let place = self.place(home, warp.index, lane, offsets[lane]);
        let inside = in_thread(lane) < end;
        let (kind, message) = match inside {
            true => (
                FindingKind::Misaligned,
                format!("{bytes} bytes at {place}: a multiple of {align} is needed"),
            ),
            false => (
                FindingKind::OutOfBounds,
                format!("{bytes} bytes at {place}, which has {size}"),
            ),
        };
        Err(Fault::new(kind, lane, message))
    }

    fn check_writable(&self, warp: &Warp, spot: &Spot, bytes: usize) -> Result<(), Box<Fault>> {
        let constant = match spot.home {
            Home::Param => true,
            Home::Global(index) => {
                let place = self.grid.allocations[index].info.kind;
                matches!(place, MemoryKind::Constant(_))
            }
            Home::Shared | Home::Local => false,
        };
        if !constant {
            return Ok(());
        }
        let lane = spot.lanes.trailing_zeros() as usize & 31;
        let place = self.place(spot.home, warp.index, lane, spot.offsets[lane]);
        let message = format!("{bytes} bytes at {place}");
        Err(Fault::new(FindingKind::WriteToConstant, lane, message))
    }

    fn check_initialized(
        &self,
        warp: &Warp,
        spot: &Spot,
        region: &Region<'_>,
        bytes: usize,
    ) -> Result<(), Box<Fault>> {
        let Some(initialized) = region.initialized else {
            return Ok(());
        };
        if for_ranges(spot, bytes, |at, count| initialized.all(at, count)) {
            return Ok(());
        }
        let first = lanes_of(spot.lanes).find_map(|lane| {
            let at = spot.offsets[lane] as usize;
            Some((lane, initialized.first_unset(at, bytes)?))
        });
        let Some((lane, unset)) = first else {
            return Ok(());
        };
        let (start, unset) = (spot.offsets[lane], unset as u64);
        let place = self.place(spot.home, warp.index, lane, start);
        let missing = unset - start;
        let message =
            format!("{bytes} bytes at {place} are read, of which byte {missing} was never written");
        Err(Fault::new(region.uninitialized, lane, message))
    }

    fn check_races(
        &self,
        warp: &Warp,
        spot: &Spot,
        region: &Region<'_>,
        touch: Touch,
        changes: Changes<'_>,
    ) -> Result<(), Box<Fault>> {
        let Some(races) = region.races else {
            return Ok(());
        };
        let mark = mark_of(warp, region.stamp, touch);
        let by = self.visitor(warp, spot.home);
        let reach = Reach {
            lanes: spot.lanes,
            offsets: &spot.offsets,
            bytes: touch.bytes,
        };
        let found = match touch.writes {
            true => races.write(&by, mark, reach, |lane, earlier| {
                changes(region.data, lane as usize, earlier)
            }),
            false => races.read(&by, mark, reach),
        };
        match found {
            None => Ok(()),
            Some((lane, earlier)) => {
                let lane = lane as usize & 31;
                let place = self.place(spot.home, warp.index, lane, spot.offsets[lane]);
                Err(race(region.race, lane, &place, touch, earlier))
            }
        }
    }

    /// The warp as the race detector sees it. Only global memory is seen by other host threads.
    #[inline(always)]
    pub(super) fn visitor<'w>(&self, warp: &'w Warp, home: Home) -> Visitor<'w, Knowledge> {
        Visitor {
            order: &warp.knowledge,
            pc: self.pc,
            contended: self.grid.contended && matches!(home, Home::Global(_)),
        }
    }
}

/// The mark that an access leaves, but for the lane.
#[inline(always)]
pub(super) fn mark_of(warp: &Warp, stamp: u32, touch: Touch) -> Mark {
    let (agent, clock) = match touch.copy {
        None => (warp.index as u8, warp.knowledge.clock),
        Some(group) => (copies_of(warp.index), group),
    };
    Mark::new(stamp, warp.knowledge.cta, agent, 0, clock, touch.strong)
}

/// The fault of a race.
pub(super) fn race(
    kind: FindingKind,
    lane: usize,
    place: &str,
    touch: Touch,
    earlier: Earlier,
) -> Box<Fault> {
    let verb = if touch.writes { "written" } else { "read" };
    let bytes = touch.bytes;
    let message = format!("{bytes} bytes at {place} are {verb} without waiting");
    Box::new(Fault {
        kind,
        lane: Some(lane),
        message,
        earlier: Some(earlier),
    })
}

/// Whether all lanes access one range without holes, in order.
#[inline(always)]
fn contiguous(offsets: &Addresses, lanes: u32, bytes: usize) -> bool {
    let stride = bytes as u64;
    let mut odd = 0;
    for lane in 0..LANES {
        odd |= offsets[lane] ^ offsets[0].wrapping_add(stride * lane as u64);
    }
    lanes == ALL && odd == 0
}

/// Calls `f` with the ranges that lanes access, joined where they can be, while it returns true.
#[inline(always)]
fn for_ranges(spot: &Spot, bytes: usize, mut f: impl FnMut(usize, usize) -> bool) -> bool {
    let offsets = &spot.offsets;
    if contiguous(offsets, spot.lanes, bytes) {
        return f(offsets[0] as usize, LANES * bytes);
    }
    lanes_of(spot.lanes).all(|lane| f(offsets[lane] as usize, bytes))
}
