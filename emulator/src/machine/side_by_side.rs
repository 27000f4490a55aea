//! The common access, made fast: a whole warp loads or stores whole words, lane beside lane.
//! Whatever is unusual or wrong is left to [`super::access`], which tells it in full.

use super::access::{Home, Touch, mark_of, race};
use super::cta::Cta;
use super::lanes::vectorised;
use super::registers::{ALL, LANES};
use super::warp::Warp;
use super::windows;
use crate::memory::Place;
use crate::program::op::{Access, Address, Space, Strength};
use crate::report::Fault;

impl Cta<'_> {
    /// Carries an access out if it is of the common kind; whether it did.
    #[inline(always)]
    pub(super) fn access_side_by_side(
        &mut self,
        warp: &mut Warp,
        access: &Access,
        mask: u32,
    ) -> Result<bool, Box<Fault>> {
        let words = access.registers.len();
        let whole = |target: &crate::program::op::Target| target.bits == 32;
        let common = mask == ALL
            && access.strength == Strength::Weak
            && access.bytes == 4
            && matches!(words, 1 | 2 | 4)
            && self.counts.is_empty()
            && access.registers.iter().all(whole);
        if !common {
            return Ok(false);
        }
        let Some(start) = start(warp, &access.address, words * 4) else {
            return Ok(false);
        };
        let Some((home, at)) = self.range(access.space, start, words * 4) else {
            return Ok(false);
        };
        match (access.store, words) {
            (false, 1) => self.load_side_by_side::<1>(warp, access, home, at),
            (false, 2) => self.load_side_by_side::<2>(warp, access, home, at),
            (false, _) => self.load_side_by_side::<4>(warp, access, home, at),
            (true, 1) => self.store_side_by_side::<1>(warp, access, home, at),
            (true, 2) => self.store_side_by_side::<2>(warp, access, home, at),
            (true, _) => self.store_side_by_side::<4>(warp, access, home, at),
        }
    }

    /// Where the bytes of a warp from address `start` on lie, if in one place, aligned.
    #[inline(always)]
    fn range(&mut self, space: Space, start: u64, bytes: usize) -> Option<(Home, usize)> {
        let end = |at: u64| at.checked_add((LANES * bytes) as u64);
        if !start.is_multiple_of(bytes as u64) {
            return None;
        }
        let shared = |address: u64| {
            let at = address.checked_sub(u64::from(self.grid.options.shared_base))?;
            (end(at)? <= self.shared.bytes as u64).then_some((Home::Shared, at as usize))
        };
        match space {
            Space::Shared => return shared(start & (windows::BYTES - 1)),
            Space::Generic if windows::is_in(start, windows::SHARED) => {
                return shared(start - windows::SHARED);
            }
            Space::Generic if windows::is_in(start, windows::LOCAL) => return None,
            Space::Generic | Space::Global => {}
            Space::Local | Space::Param => return None,
        }
        let index = self.grid.find(start, self.hint)?;
        let allocation = &self.grid.allocations[index];
        let constant = matches!(allocation.info.place, Place::Constant(_));
        if allocation.is_freed() || constant || end(start)? > allocation.end() {
            return None;
        }
        self.hint = index;
        let at = (start - allocation.info.base) as usize;
        Some((Home::Global(index), at))
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
            let known = region
                .initialised
                .is_none_or(|it| it.all(at, LANES * WORDS * 4));
            if !known {
                return Ok(false);
            }
            if let Some(races) = region.races {
                let touch = Touch::new(WORDS * 4, true, false, self.pc);
                let mark = mark_of(warp, region.stamp, touch);
                let run = (at / 4, WORDS);
                if let Some((lane, earlier)) = races.read_run(&self.visitor(warp, home), mark, run)
                {
                    let place = self.place(home, (at + lane as usize * WORDS * 4) as u64);
                    return Err(race(region.race, lane as usize, &place, touch, earlier));
                }
            }
        }
        let mut data = [[0; WORDS]; LANES];
        region.data.load_words(at, data.as_flattened_mut());
        for (index, target) in access.registers.iter().enumerate().take(WORDS) {
            if let Some(slot) = target.slot {
                let value = std::array::from_fn(|lane| data[lane][index]);
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
        let mut data = [[0; WORDS]; LANES];
        for (index, target) in access.registers.iter().enumerate() {
            let Some(slot) = target.slot else {
                return Ok(false);
            };
            self.need(warp, slot, ALL)?;
            let value = warp.registers.narrow(slot);
            for lane in 0..LANES {
                data[lane][index] = value[lane];
            }
        }
        self.progress();
        let region = self.region(home);
        if let Some(initialised) = region.initialised {
            initialised.set(at, LANES * WORDS * 4);
        }
        if let Some(races) = region.races.filter(|_| self.grid.options.sanitize) {
            let touch = Touch::new(WORDS * 4, false, true, self.pc);
            let mark = mark_of(warp, region.stamp, touch);
            let changes = |lane: u32| {
                let mut now = [0; WORDS];
                region
                    .data
                    .load_words(at + lane as usize * WORDS * 4, &mut now);
                now != data[lane as usize]
            };
            let run = (at / 4, WORDS);
            if let Some((lane, earlier)) =
                races.write_run(&self.visitor(warp, home), mark, run, changes)
            {
                let place = self.place(home, (at + lane as usize * WORDS * 4) as u64);
                return Err(race(region.race, lane as usize, &place, touch, earlier));
            }
        }
        region.data.store_words(at, data.as_flattened());
        Ok(true)
    }
}

/// The first lane's address, if the lanes follow each other by `bytes`.
#[inline(always)]
fn start(warp: &Warp, address: &Address, bytes: usize) -> Option<u64> {
    if warp.registers.defined(address.base) != ALL {
        return None;
    }
    let stride = bytes as u64;
    match address.wide {
        true => {
            let base = warp.registers.wide(address.base);
            let odd = vectorised(
                #[inline(always)]
                || {
                    let mut odd = 0;
                    for (lane, at) in base.iter().enumerate() {
                        odd |= at ^ base[0].wrapping_add(stride * lane as u64);
                    }
                    odd
                },
            );
            (odd == 0).then(|| base[0].wrapping_add_signed(address.offset))
        }
        false => {
            let base = warp.registers.narrow(address.base);
            let odd = vectorised(
                #[inline(always)]
                || {
                    let mut odd = 0;
                    for (lane, at) in base.iter().enumerate() {
                        odd |= at ^ base[0].wrapping_add(stride as u32 * lane as u32);
                    }
                    odd
                },
            );
            (odd == 0).then(|| u64::from(base[0].wrapping_add(address.offset as u32)))
        }
    }
}
