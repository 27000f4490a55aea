//! Checks of memory accesses: bounds, alignment and races.

use super::addresses::{Addresses, Region, ResolvedAddresses};
use super::cta::Cta;
use super::fault::Fault;
use super::happens_before::WarpClock;
use super::lanes::{each_bit, each_lane};
use super::registers::{ALL, LANES, lanes_of};
use super::vector_clock::copies_of;
use super::warp::Warp;
use super::windows::MemoryId;
use crate::memory::races::{Accessor, LaneRanges, LineGuard, Mark, PriorAccess};
use crate::memory::{Block, MemoryKind};
use crate::report::FindingKind;
use crate::simd::vectorized;

/// The properties of an access that the checks need.
#[derive(Clone, Copy)]
pub(super) struct AccessInfo {
    pub(super) bytes: usize,
    /// The required alignment of its address.
    pub(super) align: usize,
    pub(super) reads: bool,
    pub(super) writes: bool,
    /// Whether it is strong: atomic, volatile or relaxed.
    pub(super) strong: bool,
    pub(super) pc: u32,
    /// The epoch, if an asynchronous copy or its arrival performs the access.
    pub(super) copy: Option<u32>,
}

impl AccessInfo {
    /// A weak access of `bytes` bytes by the thread itself.
    pub(super) fn new(bytes: usize, reads: bool, writes: bool, pc: u32) -> AccessInfo {
        AccessInfo { bytes, align: bytes, reads, writes, strong: false, pc, copy: None }
    }
}

/// Whether a lane's write changes memory, given the access that it conflicts with.
pub(super) type Changes<'c> = &'c dyn Fn(&Block, usize, &PriorAccess) -> bool;

/// Every write counts as a change.
pub(super) const ALWAYS: Changes<'_> = &|_, _, _| true;

impl<'g> Cta<'g> {
    /// Checks bounds, alignment and races of an access, and that an atomic reads defined bytes. A
    /// writer holds the returned lock until it has stored its bytes, which count as defined.
    pub(super) fn check(
        &self,
        warp: &Warp,
        resolved: &ResolvedAddresses,
        info: AccessInfo,
        changes: Changes<'_>,
    ) -> Result<Option<LineGuard<'g>>, Box<Fault>> {
        self.check_place(warp, resolved, info)?;
        if info.writes {
            self.check_writable(warp, resolved, info.bytes)?;
        }
        let region = self.region(resolved.memory);
        let sanitize = self.grid.options.sanitize;
        if info.reads
            && info.writes
            && let Some(undefined) = self.undefined_bytes(warp, resolved, info.bytes, info.pc)
        {
            let origin = |lane: usize| undefined.origins[lane];
            return Err(self.undefined_use(undefined.lanes(), "an undefined value", origin));
        }
        if info.writes
            && let Some(initialized) = region.initialized
        {
            for_ranges(resolved, info.bytes, |at, count| {
                initialized.set(at, count);
                true
            });
        }
        let offsets = || lanes_of(resolved.lanes).map(|lane| resolved.offsets[lane] as usize);
        let locked = match info.writes {
            true => self.lock(resolved.memory, offsets),
            false => None,
        };
        if sanitize {
            self.check_races(warp, resolved, &region, info, changes)?;
        }
        Ok(locked)
    }

    /// Locks the lines of these bytes against other host threads, if the launch is concurrent and
    /// sanitized.
    #[inline(always)]
    pub(super) fn lock<I: Iterator<Item = usize>>(
        &self,
        memory: MemoryId,
        offsets: impl FnOnce() -> I,
    ) -> Option<LineGuard<'g>> {
        match memory {
            MemoryId::Global(index) if self.grid.contended && self.grid.options.sanitize => {
                Some(self.grid.space.locks().lock(index, offsets()))
            }
            _ => None,
        }
    }

    fn check_place(
        &self,
        warp: &Warp,
        resolved: &ResolvedAddresses,
        info: AccessInfo,
    ) -> Result<(), Box<Fault>> {
        let AccessInfo { bytes, align, .. } = info;
        let ResolvedAddresses { memory, lanes, ref offsets } = *resolved;
        let (low, size) = (align as u64 - 1, self.size(memory));
        let in_thread = |lane: usize| {
            let start = self.thread_start(memory, warp.index, lane);
            offsets[lane].wrapping_sub(start)
        };
        let own;
        let places = match memory {
            MemoryId::Local => {
                own = each_lane(in_thread);
                &own
            }
            _ => offsets,
        };
        let last = (size as u64).checked_sub(bytes as u64);
        let end = last.map_or(0, |last| last + 1);
        let wrong = lanes
            & vectorized(
                #[inline(always)]
                move || each_bit(|lane| (places[lane] >= end) | (places[lane] & low != 0)),
            );
        if wrong == 0 {
            return Ok(());
        }
        let lane = wrong.trailing_zeros() as usize;
        let place = self.place(memory, warp.index, lane, offsets[lane]);
        let inside = in_thread(lane) < end;
        let (kind, message) = match inside {
            true => (
                FindingKind::Misaligned,
                format!(
                    "access of {bytes} bytes at {place}: the address must be a multiple of {align}"
                ),
            ),
            false => (
                FindingKind::OutOfBounds,
                format!("access of {bytes} bytes at {place}, which has a size of {size} bytes"),
            ),
        };
        Err(Fault::new(kind, lane, message))
    }

    fn check_writable(
        &self,
        warp: &Warp,
        resolved: &ResolvedAddresses,
        bytes: usize,
    ) -> Result<(), Box<Fault>> {
        let constant = match resolved.memory {
            MemoryId::Param => true,
            MemoryId::Global(index) => {
                let place = self.grid.allocations[index].info.kind;
                matches!(place, MemoryKind::Constant(_))
            }
            MemoryId::Shared | MemoryId::Local => false,
        };
        if !constant {
            return Ok(());
        }
        let lane = resolved.lanes.trailing_zeros() as usize & 31;
        let place = self.place(resolved.memory, warp.index, lane, resolved.offsets[lane]);
        let message = format!("write of {bytes} bytes at {place}");
        Err(Fault::new(FindingKind::WriteToConstant, lane, message))
    }

    fn check_races(
        &self,
        warp: &Warp,
        resolved: &ResolvedAddresses,
        region: &Region<'_>,
        info: AccessInfo,
        changes: Changes<'_>,
    ) -> Result<(), Box<Fault>> {
        let Some(races) = region.races else {
            return Ok(());
        };
        let mark = mark_of(warp, region.stamp, info);
        let by = self.accessor(warp, resolved.memory);
        let ranges =
            LaneRanges { lanes: resolved.lanes, offsets: &resolved.offsets, bytes: info.bytes };
        let found = match info.writes {
            true => races.write(&by, mark, ranges, |lane, earlier| {
                changes(region.data, lane as usize, earlier)
            }),
            false => races.read(&by, mark, ranges),
        };
        match found {
            None => Ok(()),
            Some((lane, earlier)) => {
                let lane = lane as usize & 31;
                let place = self.place(resolved.memory, warp.index, lane, resolved.offsets[lane]);
                Err(race(region.race, lane, &place, info, earlier))
            }
        }
    }

    /// The warp, for the race detector. Only global memory is shared with other host threads.
    #[inline(always)]
    pub(super) fn accessor<'w>(&self, warp: &'w Warp, memory: MemoryId) -> Accessor<'w, WarpClock> {
        Accessor {
            order: &warp.clock,
            pc: self.pc,
            contended: self.grid.contended && matches!(memory, MemoryId::Global(_)),
        }
    }
}

/// The mark that an access leaves, without the lane.
#[inline(always)]
pub(super) fn mark_of(warp: &Warp, stamp: u32, info: AccessInfo) -> Mark {
    let (agent, clock) = match info.copy {
        None => (warp.index as u8, warp.clock.now),
        Some(epoch) => (copies_of(warp.index), epoch),
    };
    Mark::new(stamp, warp.clock.cta, agent, 0, clock, info.strong)
}

/// The fault of a race.
pub(super) fn race(
    kind: FindingKind,
    lane: usize,
    place: &str,
    info: AccessInfo,
    earlier: PriorAccess,
) -> Box<Fault> {
    let message = race_message(info.writes, info.bytes, place, earlier);
    Box::new(Fault { kind, lane: Some(lane), message, earlier: Some(earlier), origin: None })
}

pub(super) fn race_message(
    writes: bool,
    bytes: usize,
    place: &str,
    earlier: PriorAccess,
) -> String {
    let verb = |writes| if writes { "write" } else { "read" };
    format!(
        "{} of {bytes} bytes at {place} is not ordered after an earlier {}; add a barrier, fence \
         or wait between them",
        verb(writes),
        verb(earlier.wrote),
    )
}

/// Whether all lanes access one contiguous range, in order.
#[inline(always)]
fn contiguous(offsets: &Addresses, lanes: u32, bytes: usize) -> bool {
    let stride = bytes as u64;
    let mut odd = 0;
    for lane in 0..LANES {
        odd |= offsets[lane] ^ offsets[0].wrapping_add(stride * lane as u64);
    }
    lanes == ALL && odd == 0
}

/// Calls `f` with the byte ranges that the lanes access, merged if contiguous, until it returns
/// false.
#[inline(always)]
pub(super) fn for_ranges(
    resolved: &ResolvedAddresses,
    bytes: usize,
    mut f: impl FnMut(usize, usize) -> bool,
) -> bool {
    let offsets = &resolved.offsets;
    if contiguous(offsets, resolved.lanes, bytes) {
        return f(offsets[0] as usize, LANES * bytes);
    }
    lanes_of(resolved.lanes).all(|lane| f(offsets[lane] as usize, bytes))
}
