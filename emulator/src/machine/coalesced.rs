//! The fast path for the common access: a whole warp loads or stores consecutive words that start
//! at a multiple of 128 bytes. Everything else, and every error, is left to [`super::access`].

use std::num::Wrapping;
use std::ops::{Add, BitOr, BitXor};

use super::check::{AccessInfo, mark_of, race};
use super::cta::Cta;
use super::fault::Fault;
use super::lanes::each_lane;
use super::registers::{ALL, LANES};
use super::warp::Warp;
use super::windows::{self, MemoryId};
use crate::memory::MemoryKind;
use crate::memory::races::LineRange;
use crate::program::op::{Access, Address, Space};
use crate::simd::vectorized;

/// Bytes that a warp moves when each lane moves one word.
const LINE: usize = 128;

impl Cta<'_> {
    /// Performs an access if it qualifies for the fast path. Returns whether it did.
    #[inline(always)]
    pub(super) fn access_coalesced(
        &mut self,
        warp: &mut Warp,
        access: &Access,
        mask: u32,
    ) -> Result<bool, Box<Fault>> {
        if mask != ALL || !self.counts.is_empty() {
            return Ok(false);
        }
        match access.plain_words {
            1 => self.move_coalesced::<1>(warp, access),
            2 => self.move_coalesced::<2>(warp, access),
            4 => self.move_coalesced::<4>(warp, access),
            _ => Ok(false),
        }
    }

    #[inline(always)]
    fn move_coalesced<const WORDS: usize>(
        &mut self,
        warp: &mut Warp,
        access: &Access,
    ) -> Result<bool, Box<Fault>> {
        let Some(start) = start::<WORDS>(warp, &access.address) else {
            return Ok(false);
        };
        let Some((memory, at)) = self.lines(access.space, start, WORDS) else {
            return Ok(false);
        };
        match access.store {
            true => self.store_coalesced::<WORDS>(warp, access, memory, at),
            false => self.load_coalesced::<WORDS>(warp, access, memory, at),
        }
    }

    /// The memory and offset of `count` lines starting at `start`, if they are in one memory.
    #[inline(always)]
    fn lines(&mut self, space: Space, start: u64, count: usize) -> Option<(MemoryId, usize)> {
        let bytes = (LINE * count) as u64;
        let (memory, at, size) = match space {
            Space::Shared => self.shared_at(start & (windows::BYTES - 1)),
            Space::Generic if windows::is_in(start, windows::SHARED) => {
                self.shared_at(start - windows::SHARED)
            }
            Space::Generic if windows::is_in(start, windows::LOCAL) => return None,
            Space::Generic | Space::Global => {
                let index = self.grid.find(start, self.hint)?;
                let allocation = &self.grid.allocations[index];
                let constant = matches!(allocation.info.kind, MemoryKind::Constant(_));
                if allocation.is_freed() || constant {
                    return None;
                }
                self.hint = index;
                let info = &allocation.info;
                (MemoryId::Global(index), start - info.base, info.bytes)
            }
            Space::Local | Space::Param => return None,
        };
        let inside = at <= size as u64 && bytes <= size as u64 - at;
        (inside && at.is_multiple_of(LINE as u64)).then_some((memory, at as usize))
    }

    /// The offset of an address in the shared window; too large if the address is below the window.
    #[inline(always)]
    fn shared_at(&self, address: u64) -> (MemoryId, u64, usize) {
        let at = address.wrapping_sub(u64::from(self.grid.options.shared_base));
        (MemoryId::Shared, at, self.shared.bytes)
    }

    #[inline(always)]
    fn load_coalesced<const WORDS: usize>(
        &mut self,
        warp: &mut Warp,
        access: &Access,
        memory: MemoryId,
        at: usize,
    ) -> Result<bool, Box<Fault>> {
        let region = self.region(memory);
        if self.grid.options.sanitize {
            if !region.initialized.is_none_or(|it| it.all_lines(at, WORDS)) {
                return Ok(false);
            }
            if let Some(races) = region.races {
                let info = AccessInfo::new(WORDS * 4, true, false, self.pc);
                let mark = mark_of(warp, region.stamp, info);
                let lines = LineRange::new(at, WORDS);
                let accessor = self.accessor(warp, memory);
                if let Some((lane, earlier)) = races.read_lines(&accessor, mark, lines) {
                    let (lane, at) = (lane as usize, at + lane as usize * WORDS * 4);
                    let place = self.place(memory, warp.index, lane, at as u64);
                    return Err(race(region.race, lane, &place, info, earlier));
                }
            }
        }
        if WORDS == 1 {
            if let Some(slot) = access.registers[0].slot {
                region.data.load_pairs(at, warp.registers.overwrite(slot));
            }
            return Ok(true);
        }
        let mut pairs = [[0; WORDS]; LANES / 2];
        region.data.load_pairs(at, pairs.as_flattened_mut());
        let words: &[u32] = bytemuck::cast_slice(pairs.as_flattened());
        for (index, target) in access.registers.iter().enumerate().take(WORDS) {
            if let Some(slot) = target.slot {
                let value = each_lane(|lane| words[lane * WORDS + index]);
                warp.registers.set_narrow(slot, ALL, &value);
            }
        }
        Ok(true)
    }

    #[inline(always)]
    fn store_coalesced<const WORDS: usize>(
        &mut self,
        warp: &mut Warp,
        access: &Access,
        memory: MemoryId,
        at: usize,
    ) -> Result<bool, Box<Fault>> {
        let mut pairs = [[0; WORDS]; LANES / 2];
        for (index, target) in access.registers.iter().enumerate().take(WORDS) {
            let Some(slot) = target.slot else {
                return Ok(false);
            };
            if warp.registers.defined(slot) != ALL && self.grid.options.sanitize {
                return Ok(false);
            }
            if WORDS == 1 {
                pairs.as_flattened_mut().copy_from_slice(warp.registers.pairs(slot));
                continue;
            }
            let value = warp.registers.narrow(slot);
            let words: &mut [u32] = bytemuck::cast_slice_mut(pairs.as_flattened_mut());
            for lane in 0..LANES {
                words[lane * WORDS + index] = value[lane];
            }
        }
        let region = self.region(memory);
        let _locked = self.lock(memory, || (0..WORDS).map(|index| at + index * LINE));
        if let Some(races) = region.races.filter(|_| self.grid.options.sanitize) {
            let info = AccessInfo::new(WORDS * 4, false, true, self.pc);
            let mark = mark_of(warp, region.stamp, info);
            let changes = |lane: u32| {
                let words: &[u32] = bytemuck::cast_slice(pairs.as_flattened());
                (0..WORDS).any(|index| {
                    let word = lane as usize * WORDS + index;
                    region.data.load_u32(at + word * 4) != words[word]
                })
            };
            let accessor = self.accessor(warp, memory);
            let lines = LineRange::new(at, WORDS);
            if let Some((lane, earlier)) = races.write_lines(&accessor, mark, lines, changes) {
                let (lane, at) = (lane as usize, at + lane as usize * WORDS * 4);
                let place = self.place(memory, warp.index, lane, at as u64);
                return Err(race(region.race, lane, &place, info, earlier));
            }
        }
        if let Some(initialized) = region.initialized {
            initialized.set_lines(at, WORDS);
        }
        region.data.store_pairs(at, pairs.as_flattened());
        self.progress();
        Ok(true)
    }
}

/// The first lane's address, if the lanes' addresses are `WORDS` words apart.
#[inline(always)]
fn start<const WORDS: usize>(warp: &Warp, address: &Address) -> Option<u64> {
    let (registers, base, offset) = (&warp.registers, address.base, address.offset);
    if registers.defined(base) != ALL {
        return None;
    }
    match address.wide {
        true => {
            let first = first_in_row::<WORDS, _>(registers.wide(base))?;
            Some(first.wrapping_add_signed(offset))
        }
        false => {
            let first = first_in_row::<WORDS, _>(registers.narrow(base))?;
            Some(u64::from(first.wrapping_add(offset as u32)))
        }
    }
}

/// The first address, if the addresses are `WORDS` words apart.
#[inline(always)]
fn first_in_row<const WORDS: usize, A>(addresses: &[A; LANES]) -> Option<A>
where
    A: Copy + Default + PartialEq + From<u16> + BitXor<Output = A> + BitOr<Output = A>,
    Wrapping<A>: Add<Output = Wrapping<A>>,
{
    let first = addresses[0];
    let odd = vectorized(
        #[inline(always)]
        move || {
            let mut odd = A::default();
            for (lane, at) in addresses.iter().enumerate() {
                let step = A::from((lane * WORDS * 4) as u16);
                odd = odd | (*at ^ (Wrapping(first) + Wrapping(step)).0);
            }
            odd
        },
    );
    (odd == A::default()).then_some(first)
}
