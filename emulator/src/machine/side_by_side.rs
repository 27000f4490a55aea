//! The common access, made fast: a whole warp loads or stores whole words, lane beside lane, from
//! the beginning of a line of 128 bytes on. Whatever is unusual or wrong is left to
//! [`super::access`], which tells it in full.

use std::num::Wrapping;
use std::ops::{Add, BitOr, BitXor};

use super::check::{Touch, mark_of, race};
use super::cta::Cta;
use super::home::Home;
use super::lanes::each_lane;
use super::registers::{ALL, LANES};
use super::warp::Warp;
use super::windows;
use crate::memory::MemoryKind;
use crate::memory::races::Run;
use crate::program::op::{Access, Address, Space};
use crate::report::Fault;
use crate::vectors::vectorised;

/// Bytes that a warp moves when each lane moves a word.
const LINE: usize = 128;

impl Cta<'_> {
    /// Carries an access out if it is of the common kind; whether it did.
    #[inline(always)]
    pub(super) fn access_side_by_side(
        &mut self,
        warp: &mut Warp,
        access: &Access,
        mask: u32,
    ) -> Result<bool, Box<Fault>> {
        if mask != ALL || !self.counts.is_empty() {
            return Ok(false);
        }
        match access.plain_words {
            1 => self.move_side_by_side::<1>(warp, access),
            2 => self.move_side_by_side::<2>(warp, access),
            4 => self.move_side_by_side::<4>(warp, access),
            _ => Ok(false),
        }
    }

    #[inline(always)]
    fn move_side_by_side<const WORDS: usize>(
        &mut self,
        warp: &mut Warp,
        access: &Access,
    ) -> Result<bool, Box<Fault>> {
        let Some(start) = start::<WORDS>(warp, &access.address) else {
            return Ok(false);
        };
        let Some((home, at)) = self.lines(access.space, start, WORDS) else {
            return Ok(false);
        };
        match access.store {
            true => self.store_side_by_side::<WORDS>(warp, access, home, at),
            false => self.load_side_by_side::<WORDS>(warp, access, home, at),
        }
    }

    /// Where `count` lines from address `start` on lie, if in one place.
    #[inline(always)]
    fn lines(&mut self, space: Space, start: u64, count: usize) -> Option<(Home, usize)> {
        let bytes = (LINE * count) as u64;
        let (home, at, size) = match space {
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
                (Home::Global(index), start - info.base, info.bytes)
            }
            Space::Local | Space::Param => return None,
        };
        let inside = at <= size as u64 && bytes <= size as u64 - at;
        (inside && at.is_multiple_of(LINE as u64)).then_some((home, at as usize))
    }

    /// Where an address of the shared window lies: an offset beyond all memory if before it.
    #[inline(always)]
    fn shared_at(&self, address: u64) -> (Home, u64, usize) {
        let at = address.wrapping_sub(u64::from(self.grid.options.shared_base));
        (Home::Shared, at, self.shared.bytes)
    }

    #[inline(always)]
    fn load_side_by_side<const WORDS: usize>(
        &mut self,
        warp: &mut Warp,
        access: &Access,
        home: Home,
        at: usize,
    ) -> Result<bool, Box<Fault>> {
        let region = self.region(home);
        if self.grid.options.sanitize {
            if !region.initialized.is_none_or(|it| it.all_lines(at, WORDS)) {
                return Ok(false);
            }
            if let Some(races) = region.races {
                let touch = Touch::new(WORDS * 4, true, false, self.pc);
                let mark = mark_of(warp, region.stamp, touch);
                let run = Run::new(at, WORDS);
                let visitor = self.visitor(warp, home);
                if let Some((lane, earlier)) = races.read_lines(&visitor, mark, run) {
                    let (lane, at) = (lane as usize, at + lane as usize * WORDS * 4);
                    let place = self.place(home, warp.index, lane, at as u64);
                    return Err(race(region.race, lane, &place, touch, earlier));
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
    fn store_side_by_side<const WORDS: usize>(
        &mut self,
        warp: &mut Warp,
        access: &Access,
        home: Home,
        at: usize,
    ) -> Result<bool, Box<Fault>> {
        let mut pairs = [[0; WORDS]; LANES / 2];
        for (index, target) in access.registers.iter().enumerate().take(WORDS) {
            let Some(slot) = target.slot else {
                return Ok(false);
            };
            self.need(warp, slot, ALL)?;
            if WORDS == 1 {
                pairs
                    .as_flattened_mut()
                    .copy_from_slice(warp.registers.pairs(slot));
                continue;
            }
            let value = warp.registers.narrow(slot);
            let words: &mut [u32] = bytemuck::cast_slice_mut(pairs.as_flattened_mut());
            for lane in 0..LANES {
                words[lane * WORDS + index] = value[lane];
            }
        }
        let region = self.region(home);
        let _locked = self.lock(home, || (0..WORDS).map(|index| at + index * LINE));
        if let Some(races) = region.races.filter(|_| self.grid.options.sanitize) {
            let touch = Touch::new(WORDS * 4, false, true, self.pc);
            let mark = mark_of(warp, region.stamp, touch);
            let changes = |lane: u32| {
                let words: &[u32] = bytemuck::cast_slice(pairs.as_flattened());
                (0..WORDS).any(|index| {
                    let word = lane as usize * WORDS + index;
                    region.data.load_u32(at + word * 4) != words[word]
                })
            };
            let visitor = self.visitor(warp, home);
            let run = Run::new(at, WORDS);
            if let Some((lane, earlier)) = races.write_lines(&visitor, mark, run, changes) {
                let (lane, at) = (lane as usize, at + lane as usize * WORDS * 4);
                let place = self.place(home, warp.index, lane, at as u64);
                return Err(race(region.race, lane, &place, touch, earlier));
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

/// The first lane's address, if the lanes follow each other by `WORDS` words.
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

/// The first of addresses that follow each other by `WORDS` words.
#[inline(always)]
fn first_in_row<const WORDS: usize, A>(addresses: &[A; LANES]) -> Option<A>
where
    A: Copy + Default + PartialEq + From<u16> + BitXor<Output = A> + BitOr<Output = A>,
    Wrapping<A>: Add<Output = Wrapping<A>>,
{
    let first = addresses[0];
    let odd = vectorised(
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
