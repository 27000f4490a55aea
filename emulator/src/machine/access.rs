//! Loads and stores: whose memory it is, whether the access is sound, and then the bytes.

use super::counters;
use super::cta::Cta;
use super::lanes::{each_bit, each_lane, vectorised};
use super::order::{Knowledge, Published, copies_of};
use super::registers::{ALL, LANES, lanes_of};
use super::warp::Warp;
use super::windows;
use crate::memory::races::{Earlier, Mark, RaceShadow, Reach, Visitor};
use crate::memory::{Block, ByteSet, Place};
use crate::program::op::{Access, Address, Scope, Space, Strength, Target};
use crate::report::{Fault, Kind};

/// Addresses, a lane each.
pub(super) type Addresses = [u64; LANES];

/// Memory that some lanes access, and where in it.
pub(super) struct Region<'r> {
    pub(super) data: &'r Block,
    pub(super) initialised: Option<&'r ByteSet>,
    pub(super) races: Option<&'r RaceShadow>,
    pub(super) stamp: u32,
    pub(super) uninitialised: Kind,
    pub(super) race: Kind,
}

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

/// Where the lanes of an access go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    Shared,
    Local,
    Param,
    /// The allocation with this index.
    Global(usize),
}

impl Cta<'_> {
    pub(super) fn access(
        &mut self,
        warp: &mut Warp,
        access: &Access,
        mask: u32,
    ) -> Result<(), Box<Fault>> {
        match self.access_side_by_side(warp, access, mask)? {
            true => Ok(()),
            false => self.access_anyhow(warp, access, mask),
        }
    }

    #[inline(never)]
    fn access_anyhow(
        &mut self,
        warp: &mut Warp,
        access: &Access,
        mask: u32,
    ) -> Result<(), Box<Fault>> {
        let addresses = self.addresses(warp, &access.address, mask)?;
        let bytes = access.bytes * access.registers.len();
        let touch = Touch {
            strong: access.strength != Strength::Weak,
            ..Touch::new(bytes, !access.store, access.store, self.pc)
        };
        if access.store {
            self.progress();
            for target in &access.registers {
                if let Some(slot) = target.slot {
                    self.need(warp, slot, mask)?;
                }
            }
        }
        let mut rest = mask;
        while rest != 0 {
            let (home, lanes) = self.home(access.space, &addresses, rest, touch.bytes)?;
            let offsets = self.offsets(home, &addresses, warp.index);
            self.check(
                warp,
                home,
                &offsets,
                lanes,
                touch,
                &|data, lane, earlier| {
                    !access.store || changes(data, &offsets, lane, access, warp, earlier)
                },
            )?;
            let strength = (access.strength, access.scope);
            self.order_access(warp, strength, touch, home, &addresses, lanes);
            let data = self.data(home);
            match access.store {
                true => store(data, &offsets, lanes, access, warp),
                false => load(data, &offsets, lanes, access, warp),
            }
            rest &= !lanes;
        }
        Ok(())
    }

    /// The addresses that an operand gives.
    #[inline(always)]
    pub(super) fn addresses(
        &self,
        warp: &Warp,
        address: &Address,
        mask: u32,
    ) -> Result<Addresses, Box<Fault>> {
        self.need(warp, address.base, mask)?;
        let offset = address.offset;
        Ok(match address.wide {
            true => {
                let base = warp.registers.wide(address.base);
                each_lane(|lane| base[lane].wrapping_add_signed(offset))
            }
            false => {
                let base = warp.registers.narrow(address.base);
                each_lane(|lane| u64::from(base[lane].wrapping_add(offset as u32)))
            }
        })
    }

    /// Whose memory the first of `lanes` accesses, and all lanes that access the same.
    pub(super) fn home(
        &mut self,
        space: Space,
        addresses: &Addresses,
        lanes: u32,
        bytes: usize,
    ) -> Result<(Home, u32), Box<Fault>> {
        let first = lanes.trailing_zeros() as usize & 31;
        let in_window = |window| {
            let inside = each_bit(|lane| windows::is_in(addresses[lane], window));
            inside & lanes
        };
        match space {
            Space::Shared => return Ok((Home::Shared, lanes)),
            Space::Local => return Ok((Home::Local, lanes)),
            Space::Param => return Ok((Home::Param, lanes)),
            Space::Generic if windows::is_in(addresses[first], windows::SHARED) => {
                return Ok((Home::Shared, in_window(windows::SHARED)));
            }
            Space::Generic if windows::is_in(addresses[first], windows::LOCAL) => {
                return Ok((Home::Local, in_window(windows::LOCAL)));
            }
            Space::Generic | Space::Global => {}
        }
        let Some(index) = self.grid.find(addresses[first], self.hint) else {
            return Err(self.nowhere(addresses[first], first, bytes));
        };
        let allocation = &self.grid.allocations[index];
        if allocation.is_freed() {
            let where_ = self.grid.space.describe(addresses[first]);
            let message = format!("{bytes} bytes at {where_}");
            return Err(Fault::new(Kind::UseAfterFree, first, message));
        }
        self.hint = index;
        let (base, size) = (allocation.info.base, allocation.info.bytes as u64);
        let inside = each_bit(|lane| addresses[lane].wrapping_sub(base) < size);
        Ok((Home::Global(index), inside & lanes))
    }

    fn nowhere(&self, address: u64, lane: usize, bytes: usize) -> Box<Fault> {
        let where_ = self.grid.space.describe(address);
        let message = format!("{bytes} bytes at {where_}");
        Fault::new(Kind::OutOfBounds, lane, message)
    }

    /// Addresses as offsets into their home's block.
    #[inline(always)]
    pub(super) fn offsets(&self, home: Home, addresses: &Addresses, warp: usize) -> Addresses {
        let base = u64::from(self.grid.options.shared_base);
        match home {
            Home::Shared => {
                each_lane(|lane| (addresses[lane] & (windows::BYTES - 1)).wrapping_sub(base))
            }
            Home::Local => each_lane(|lane| {
                let thread = (warp * LANES + lane) * self.local_stride;
                (addresses[lane] & (windows::BYTES - 1)).wrapping_add(thread as u64)
            }),
            Home::Param => *addresses,
            Home::Global(index) => {
                let base = self.grid.allocations[index].info.base;
                each_lane(|lane| addresses[lane].wrapping_sub(base))
            }
        }
    }

    pub(super) fn data(&self, home: Home) -> &Block {
        match home {
            Home::Shared => &self.shared.data,
            Home::Local => &self.local.data,
            Home::Param => &self.grid.parameters,
            Home::Global(index) => &self.grid.allocations[index].data,
        }
    }

    #[inline(always)]
    pub(super) fn region(&self, home: Home) -> Region<'_> {
        match home {
            Home::Shared => Region {
                data: &self.shared.data,
                initialised: Some(&self.shared.initialised),
                races: Some(&self.shared_races),
                stamp: self.shared_stamp,
                uninitialised: Kind::UninitialisedShared,
                race: Kind::SharedRace,
            },
            Home::Local => Region {
                data: &self.local.data,
                initialised: Some(&self.local.initialised),
                races: None,
                stamp: 0,
                uninitialised: Kind::UninitialisedLocal,
                race: Kind::SharedRace,
            },
            Home::Param => Region {
                data: &self.grid.parameters,
                initialised: None,
                races: None,
                stamp: 0,
                uninitialised: Kind::UninitialisedLocal,
                race: Kind::SharedRace,
            },
            Home::Global(index) => {
                let allocation = &self.grid.allocations[index];
                Region {
                    data: &allocation.data,
                    initialised: Some(allocation.initialised()),
                    races: self.grid.options.sanitize.then(|| allocation.races()),
                    stamp: self.grid.stamp,
                    uninitialised: Kind::UninitialisedGlobal,
                    race: Kind::GlobalRace,
                }
            }
        }
    }

    /// Bounds, alignment, initialisation and races of an access, and its counts.
    pub(super) fn check(
        &mut self,
        warp: &Warp,
        home: Home,
        offsets: &Addresses,
        lanes: u32,
        touch: Touch,
        changes: &dyn Fn(&Block, usize, &Earlier) -> bool,
    ) -> Result<(), Box<Fault>> {
        self.check_place(warp, home, offsets, lanes, touch)?;
        if touch.writes {
            self.check_writable(home, offsets, lanes, touch.bytes)?;
        }
        if !self.counts.is_empty() {
            self.count_access(home, offsets, lanes, touch);
        }
        let region = self.region(home);
        if touch.writes
            && let Some(initialised) = region.initialised
        {
            // Reads of what this writes are judged below, before they count as written.
            if touch.reads && self.grid.options.sanitize {
                self.check_initialised(&region, initialised, offsets, lanes, touch.bytes)?;
            }
            for_ranges(offsets, lanes, touch.bytes, |at, count| {
                initialised.set(at, count);
                true
            });
        }
        if !self.grid.options.sanitize {
            return Ok(());
        }
        if touch.reads
            && let Some(initialised) = region.initialised
        {
            self.check_initialised(&region, initialised, offsets, lanes, touch.bytes)?;
        }
        if let Some(races) = region.races {
            let mark = mark_of(warp, region.stamp, touch);
            self.check_races(
                warp, home, &region, races, mark, offsets, lanes, touch, changes,
            )?;
        }
        Ok(())
    }

    fn check_place(
        &self,
        warp: &Warp,
        home: Home,
        offsets: &Addresses,
        lanes: u32,
        Touch { bytes, align, .. }: Touch,
    ) -> Result<(), Box<Fault>> {
        let low = align as u64 - 1;
        let (start, size) = match home {
            Home::Shared => (0, self.shared.bytes),
            Home::Param => (0, self.grid.parameter_bytes),
            Home::Global(index) => (0, self.grid.allocations[index].info.bytes),
            Home::Local => {
                let start = warp.index * LANES * self.local_stride;
                (start as u64, self.grid.kernel.local_bytes as usize)
            }
        };
        let stride = if home == Home::Local {
            self.local_stride as u64
        } else {
            0
        };
        let wrong = vectorised(|| {
            each_bit(|lane| {
                let at = offsets[lane].wrapping_sub(start + stride * lane as u64);
                let outside = at > (size as u64).wrapping_sub(bytes as u64) || size < bytes;
                outside || offsets[lane] & low != 0
            })
        }) & lanes;
        if wrong == 0 {
            return Ok(());
        }
        let lane = wrong.trailing_zeros() as usize;
        let at = offsets[lane].wrapping_sub(start + stride * lane as u64);
        let inside = size >= bytes && at <= (size - bytes) as u64;
        if inside {
            let message = format!("{bytes} bytes at {}", self.place(home, at));
            return Err(Fault::new(Kind::Misaligned, lane, message));
        }
        let message = format!(
            "{bytes} bytes at {}, which has {size}",
            self.place(home, at)
        );
        Err(Fault::new(Kind::OutOfBounds, lane, message))
    }

    fn check_writable(
        &self,
        home: Home,
        offsets: &Addresses,
        lanes: u32,
        bytes: usize,
    ) -> Result<(), Box<Fault>> {
        let constant = match home {
            Home::Param => true,
            Home::Global(index) => {
                let place = self.grid.allocations[index].info.place;
                matches!(place, Place::Constant(_))
            }
            Home::Shared | Home::Local => false,
        };
        if !constant {
            return Ok(());
        }
        let lane = lanes.trailing_zeros() as usize & 31;
        let message = format!("{bytes} bytes at {}", self.place(home, offsets[lane]));
        Err(Fault::new(Kind::WriteToConstant, lane, message))
    }

    /// An offset in words.
    pub(super) fn place(&self, home: Home, at: u64) -> String {
        let at_signed = at as i64;
        match home {
            Home::Shared => format!("byte {at_signed} of shared memory"),
            Home::Local => format!("byte {at_signed} of the thread's local memory"),
            Home::Param => format!("byte {at_signed} of the parameters"),
            Home::Global(index) => {
                let base = self.grid.allocations[index].info.base;
                self.grid.space.describe(base.wrapping_add(at)).to_string()
            }
        }
    }

    fn check_initialised(
        &self,
        region: &Region<'_>,
        initialised: &ByteSet,
        offsets: &Addresses,
        lanes: u32,
        bytes: usize,
    ) -> Result<(), Box<Fault>> {
        if for_ranges(offsets, lanes, bytes, |at, count| {
            initialised.all(at, count)
        }) {
            return Ok(());
        }
        let first = lanes_of(lanes).find_map(|lane| {
            let at = offsets[lane] as usize;
            Some((lane, initialised.first_unset(at, bytes)?))
        });
        let Some((lane, at)) = first else {
            return Ok(());
        };
        let message = format!("{bytes} bytes are read, of which byte {at} was never written");
        Err(Fault::new(region.uninitialised, lane, message))
    }

    #[allow(clippy::too_many_arguments)]
    fn check_races(
        &self,
        warp: &Warp,
        home: Home,
        region: &Region<'_>,
        races: &RaceShadow,
        mark: Mark,
        offsets: &Addresses,
        lanes: u32,
        touch: Touch,
        changes: &dyn Fn(&Block, usize, &Earlier) -> bool,
    ) -> Result<(), Box<Fault>> {
        let by = self.visitor(warp, home);
        let reach = Reach {
            lanes,
            offsets,
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
                let place = self.place(home, offsets[lane]);
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

    fn count_access(&mut self, home: Home, offsets: &Addresses, lanes: u32, touch: Touch) {
        let counts = &mut self.counts[touch.pc as usize];
        let bytes = u64::from(lanes.count_ones()) * touch.bytes as u64;
        match home {
            Home::Shared => {
                let (passes, ideal) = counters::passes(offsets, lanes, touch.bytes);
                counts.passes += passes;
                counts.ideal_passes += ideal;
            }
            Home::Global(index) => {
                let (sectors, ideal) = counters::sectors(offsets, lanes, touch.bytes);
                counts.sectors += sectors;
                counts.ideal_sectors += ideal;
                counts.bytes_read += if touch.reads { bytes } else { 0 };
                counts.bytes_written += if touch.writes { bytes } else { 0 };
                if let Some(touched) = &self.grid.touched {
                    for lane in lanes_of(lanes) {
                        let at = offsets[lane] as usize;
                        for (set, wanted) in touched[index].iter().zip([touch.reads, touch.writes])
                        {
                            if wanted {
                                set.set(at, touch.bytes);
                            }
                        }
                    }
                }
            }
            Home::Local | Home::Param => {}
        }
    }

    /// What strong accesses tell of order.
    pub(super) fn order_access(
        &mut self,
        warp: &mut Warp,
        (strength, scope): (Strength, Scope),
        touch: Touch,
        home: Home,
        addresses: &Addresses,
        lanes: u32,
    ) {
        if strength == Strength::Weak || !self.grid.options.sanitize {
            return;
        }
        let acquire = matches!(strength, Strength::Acquire | Strength::AcquireRelease);
        let release = matches!(strength, Strength::Release | Strength::AcquireRelease);
        // The reading half of an atomic counts as acquiring: kernels that elect the last CTA by a
        // counter rely on it.
        let acquire = acquire || (touch.reads && touch.writes);
        let (acquire, release) = (acquire.then_some(scope), release.then_some(scope));
        let mut places: Vec<u64> = lanes_of(lanes).map(|lane| addresses[lane]).collect();
        places.sort_unstable();
        places.dedup();
        let by = &mut warp.knowledge;
        let mut order = |published: &mut std::collections::HashMap<u64, Published>| {
            for place in &places {
                let published = published.entry(*place).or_default();
                if touch.reads {
                    published.read(by, acquire);
                }
                if touch.writes {
                    published.write(by, release);
                }
            }
        };
        match home {
            Home::Shared => order(&mut self.published),
            Home::Global(_) => {
                let published = self.grid.published.lock();
                order(&mut published.unwrap_or_else(std::sync::PoisonError::into_inner));
            }
            Home::Local | Home::Param => {}
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
    kind: Kind,
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
fn for_ranges(
    offsets: &Addresses,
    lanes: u32,
    bytes: usize,
    mut f: impl FnMut(usize, usize) -> bool,
) -> bool {
    if contiguous(offsets, lanes, bytes) {
        return f(offsets[0] as usize, LANES * bytes);
    }
    lanes_of(lanes).all(|lane| f(offsets[lane] as usize, bytes))
}

fn load(data: &Block, offsets: &Addresses, lanes: u32, access: &Access, warp: &mut Warp) {
    for (index, target) in access.registers.iter().enumerate() {
        let Target {
            slot: Some(slot),
            bits,
        } = *target
        else {
            continue;
        };
        let skip = index * access.bytes;
        if access.bytes == 4 && bits == 32 {
            let mut value = [0; LANES];
            data.gather(offsets, skip, lanes, &mut value);
            warp.registers.set_narrow(slot, lanes, &value);
            continue;
        }
        let mut value = [0u64; LANES];
        for lane in lanes_of(lanes) {
            value[lane] = element(data, offsets[lane] as usize + skip, access);
        }
        match bits {
            64 => warp.registers.set_wide(slot, lanes, &value),
            _ => {
                let keep = (1u64 << bits) - 1;
                let value = each_lane(|lane| (value[lane] & keep) as u32);
                warp.registers.set_narrow(slot, lanes, &value);
            }
        }
    }
}

/// One element, extended to 64 bits.
#[inline(always)]
fn element(data: &Block, at: usize, access: &Access) -> u64 {
    match (access.bytes, access.signed) {
        (1, false) => u64::from(data.load_u8(at)),
        (1, true) => i64::from(data.load_u8(at) as i8) as u64,
        (2, false) => u64::from(data.load_u16(at)),
        (2, true) => i64::from(data.load_u16(at) as i16) as u64,
        (4, false) => u64::from(data.load_u32(at)),
        (4, true) => i64::from(data.load_u32(at) as i32) as u64,
        _ => data.load_u64(at),
    }
}

fn store(data: &Block, offsets: &Addresses, lanes: u32, access: &Access, warp: &Warp) {
    for (index, target) in access.registers.iter().enumerate() {
        let Target {
            slot: Some(slot),
            bits,
        } = *target
        else {
            continue;
        };
        let skip = index * access.bytes;
        for lane in lanes_of(lanes) {
            let value = register_value(warp, slot, bits, lane);
            let at = offsets[lane] as usize + skip;
            match access.bytes {
                1 => data.store_u8(at, value as u8),
                2 => data.store_u16(at, value as u16),
                4 => data.store_u32(at, value as u32),
                _ => data.store_u64(at, value),
            }
        }
    }
}

#[inline(always)]
fn register_value(warp: &Warp, slot: u32, bits: u32, lane: usize) -> u64 {
    match bits {
        64 => warp.registers.wide(slot)[lane],
        _ => u64::from(warp.registers.narrow(slot)[lane]),
    }
}

/// Whether a store changes what its lane's bytes are, or what another lane of the same instruction
/// makes of them.
fn changes(
    data: &Block,
    offsets: &Addresses,
    lane: usize,
    access: &Access,
    warp: &Warp,
    earlier: &Earlier,
) -> bool {
    let keep = u64::MAX >> (64 - access.bytes * 8);
    let mark = earlier.mark;
    let same_instruction = earlier.wrote
        && mark.cta() == warp.knowledge.cta
        && usize::from(mark.agent()) == warp.index
        && mark.clock() == warp.knowledge.clock;
    let other = usize::from(mark.lane());
    access.registers.iter().enumerate().any(|(index, target)| {
        let Some(slot) = target.slot else {
            return false;
        };
        let new = register_value(warp, slot, target.bits, lane);
        let at = offsets[lane] as usize + index * access.bytes;
        let differs = (element(data, at, access) ^ new) & keep != 0;
        let theirs = register_value(warp, slot, target.bits, other);
        let agree =
            same_instruction && offsets[other] == offsets[lane] && (theirs ^ new) & keep == 0;
        differs && !agree
    })
}
