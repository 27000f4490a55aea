//! The registers of one warp: one plane of 32 lanes per register, two planes for a 64-bit register.
//!
//! An 8-bit or 16-bit register is in the low bits of its lanes; the other bits are zero. For each
//! register, the fully defined lanes are tracked; [`super::undefined`] has the rest.

use std::collections::BTreeMap;
use std::ops::Range;

use super::undefined::{Origin, Undefined};
use bytemuck::{Pod, Zeroable, cast_mut, cast_ref};

/// Threads per warp.
pub(crate) const LANES: usize = 32;

/// All lanes of a warp.
pub(crate) const ALL: u32 = u32::MAX;

/// One register of up to 32 bits in all lanes.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Hash, PartialEq, Pod, Zeroable)]
pub(crate) struct Plane(pub(crate) [u32; LANES]);

impl Plane {
    pub(crate) const ZERO: Plane = Plane([0; LANES]);
}

/// The location of a register: the index of its first plane.
pub(crate) type Slot = u32;

/// The registers and predicates of a warp.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct Registers {
    planes: Vec<Plane>,
    /// Fully defined lanes, by slot. A 64-bit register uses the entry of its first plane.
    defined: Vec<u32>,
    /// The undefined bits of registers that were written with an undefined value.
    pub(super) undefined: BTreeMap<Slot, Box<Undefined>>,
    /// One bit per lane.
    predicates: Vec<u32>,
    pub(super) predicates_defined: Vec<u32>,
    /// The origins of predicates that were written with an undefined value.
    pub(super) predicate_origins: BTreeMap<Slot, [Origin; LANES]>,
}

impl Registers {
    pub(crate) fn new(planes: usize, predicates: usize) -> Registers {
        Registers {
            planes: vec![Plane::ZERO; planes],
            defined: vec![0; planes],
            predicates: vec![0; predicates],
            predicates_defined: vec![0; predicates],
            ..Registers::default()
        }
    }

    /// Becomes a copy of `other` without freeing memory.
    pub(crate) fn reset(&mut self, other: &Registers) {
        self.planes.clone_from(&other.planes);
        self.forget(other);
    }

    /// Copies the predicates of `other`, and which of its registers are defined, but no register
    /// values.
    pub(crate) fn forget(&mut self, other: &Registers) {
        self.defined.clone_from(&other.defined);
        self.predicates.clone_from(&other.predicates);
        self.predicates_defined.clone_from(&other.predicates_defined);
        self.undefined.clear();
        self.predicate_origins.clear();
    }

    #[inline(always)]
    pub(crate) fn narrow(&self, slot: Slot) -> &[u32; LANES] {
        &self.planes[slot as usize].0
    }

    #[inline(always)]
    pub(crate) fn wide(&self, slot: Slot) -> &[u64; LANES] {
        let pair = &self.planes[slot as usize..slot as usize + 2];
        let pair: &[Plane; 2] = pair.try_into().expect("two planes");
        cast_ref(pair)
    }

    /// Writes the lanes of `mask`.
    #[inline(always)]
    pub(crate) fn set_narrow(&mut self, slot: Slot, mask: u32, value: &[u32; LANES]) {
        let plane = &mut self.planes[slot as usize].0;
        if mask == ALL {
            *plane = *value;
        } else {
            for lane in 0..LANES {
                // Branch-free, so that it compiles to a masked vector store.
                let is_active = mask >> lane & 1 != 0;
                plane[lane] = if is_active { value[lane] } else { plane[lane] };
            }
        }
        self.defined[slot as usize] |= mask;
    }

    /// Writes the lanes of `mask`.
    #[inline(always)]
    pub(crate) fn set_wide(&mut self, slot: Slot, mask: u32, value: &[u64; LANES]) {
        let pair = &mut self.planes[slot as usize..slot as usize + 2];
        let pair: &mut [Plane; 2] = pair.try_into().expect("two planes");
        let lanes: &mut [u64; LANES] = cast_mut(pair);
        if mask == ALL {
            *lanes = *value;
        } else {
            for lane in 0..LANES {
                // Branch-free, so that it compiles to a masked vector store.
                let is_active = mask >> lane & 1 != 0;
                lanes[lane] = if is_active { value[lane] } else { lanes[lane] };
            }
        }
        self.defined[slot as usize] |= mask;
    }

    /// Marks a register of up to 32 bits as written in all lanes and returns it for writing, two
    /// lanes per word.
    #[inline(always)]
    pub(crate) fn overwrite(&mut self, slot: Slot) -> &mut [u64; LANES / 2] {
        self.defined[slot as usize] = ALL;
        cast_mut(&mut self.planes[slot as usize])
    }

    /// The lanes of a register of up to 32 bits, two per word.
    #[inline(always)]
    pub(crate) fn pairs(&self, slot: Slot) -> &[u64; LANES / 2] {
        cast_ref(&self.planes[slot as usize])
    }

    /// The number of planes.
    pub(crate) fn planes(&self) -> usize {
        self.planes.len()
    }

    /// Writes the same bits to every lane.
    pub(crate) fn broadcast(&mut self, slot: Slot, bits: u64, wide: bool) {
        match wide {
            true => self.set_wide(slot, ALL, &[bits; LANES]),
            false => self.set_narrow(slot, ALL, &[bits as u32; LANES]),
        }
    }

    /// The lanes in which a register is defined.
    #[inline(always)]
    pub(crate) fn defined(&self, slot: Slot) -> u32 {
        self.defined[slot as usize]
    }

    /// Sets in which lanes of `mask` a register is fully defined.
    pub(super) fn set_defined(&mut self, slot: Slot, mask: u32, defined: u32) {
        let known = &mut self.defined[slot as usize];
        *known = *known & !mask | defined & mask;
    }

    #[inline(always)]
    pub(crate) fn predicate(&self, index: Slot) -> u32 {
        self.predicates[index as usize]
    }

    #[inline(always)]
    pub(crate) fn predicate_defined(&self, index: Slot) -> u32 {
        self.predicates_defined[index as usize]
    }

    #[inline(always)]
    pub(crate) fn set_predicate(&mut self, index: Slot, mask: u32, value: u32) {
        let bits = &mut self.predicates[index as usize];
        *bits = *bits & !mask | value & mask;
        self.predicates_defined[index as usize] |= mask;
    }

    /// Copies a register and its undefined bits in the lanes of `mask`.
    pub(crate) fn copy(&mut self, to: Slot, from: Slot, wide: bool, mask: u32) {
        let undefined = match self.missing(&[from], mask) {
            0 => None,
            _ => Some(self.undefined(from, 64)),
        };
        match wide {
            true => {
                let value = *self.wide(from);
                self.set_wide(to, mask, &value);
            }
            false => {
                let value = *self.narrow(from);
                self.set_narrow(to, mask, &value);
            }
        }
        if let Some(undefined) = undefined {
            self.set_undefined(to, mask, &undefined);
        }
    }

    /// Copies a predicate, which may be undefined.
    pub(crate) fn copy_predicate(&mut self, to: Slot, from: Slot, mask: u32) {
        let undefined = mask & !self.predicate_defined(from);
        self.set_predicate(to, mask, self.predicate(from));
        let origins = self.predicate_origins.get(&from).copied();
        self.forget_predicate(to, undefined, |lane| origins.unwrap_or_default()[lane]);
    }
}

/// Saved registers and predicates of one lane, with their undefined bits.
#[derive(Clone, Debug)]
pub(crate) struct SavedLane {
    registers: Vec<(u64, u64, Origin)>,
    predicates: Vec<(bool, bool, Origin)>,
}

impl Registers {
    /// Saves registers, each wide or narrow, and predicates of a lane.
    pub(crate) fn save(
        &self,
        registers: &[(Slot, bool)],
        predicates: Range<u32>,
        lane: usize,
    ) -> SavedLane {
        let bit = |lanes: u32| lanes >> lane & 1 != 0;
        let register = |&(slot, wide): &(Slot, bool)| {
            let value = match wide {
                true => self.wide(slot)[lane],
                false => u64::from(self.narrow(slot)[lane]),
            };
            let (undefined, origin) = self.undefined_lane(slot, lane);
            (value, undefined, origin)
        };
        let predicate = |slot| {
            let (value, defined) = (self.predicate(slot), self.predicate_defined(slot));
            let origin = self.predicate_origin(slot, lane);
            (bit(value), bit(defined), origin)
        };
        SavedLane {
            registers: registers.iter().map(register).collect(),
            predicates: predicates.map(predicate).collect(),
        }
    }

    /// Restores what [`Registers::save`] saved for the same registers.
    pub(crate) fn restore(
        &mut self,
        registers: &[(Slot, bool)],
        predicates: Range<u32>,
        lane: usize,
        saved: &SavedLane,
    ) {
        let (mask, lanes) = (1 << lane, |is_set: bool| u32::from(is_set) << lane);
        for ((slot, wide), (value, missing, origin)) in registers.iter().zip(&saved.registers) {
            self.set_lane(*slot, *wide, lane, *value);
            if *missing != 0 {
                let mut undefined = Undefined::default();
                undefined.add(lane, *missing, *origin);
                self.set_undefined(*slot, mask, &undefined);
            }
        }
        for (slot, (value, defined, origin)) in predicates.zip(&saved.predicates) {
            self.set_predicate(slot, mask, lanes(*value));
            self.forget_predicate(slot, lanes(!*defined), |_| *origin);
        }
    }

    /// Writes one lane.
    pub(crate) fn set_lane(&mut self, slot: Slot, wide: bool, lane: usize, value: u64) {
        match wide {
            true => self.set_wide(slot, 1 << lane, &[value; LANES]),
            false => self.set_narrow(slot, 1 << lane, &[value as u32; LANES]),
        }
    }
}

/// The element type of a register: u32 or u64.
pub(crate) trait Lane: Copy + Default {
    /// The lanes of a register.
    fn get(registers: &Registers, slot: Slot) -> &[Self; LANES];
    /// Writes the lanes of `mask`.
    fn set(registers: &mut Registers, slot: Slot, mask: u32, value: &[Self; LANES]);
}

impl Lane for u32 {
    #[inline(always)]
    fn get(registers: &Registers, slot: Slot) -> &[u32; LANES] {
        registers.narrow(slot)
    }

    #[inline(always)]
    fn set(registers: &mut Registers, slot: Slot, mask: u32, value: &[u32; LANES]) {
        registers.set_narrow(slot, mask, value);
    }
}

impl Lane for u64 {
    #[inline(always)]
    fn get(registers: &Registers, slot: Slot) -> &[u64; LANES] {
        registers.wide(slot)
    }

    #[inline(always)]
    fn set(registers: &mut Registers, slot: Slot, mask: u32, value: &[u64; LANES]) {
        registers.set_wide(slot, mask, value);
    }
}

/// The lanes of a mask.
pub(crate) fn lanes_of(mask: u32) -> impl Iterator<Item = usize> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        let lane = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
        rest &= rest - 1;
        Some(lane)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lanes_of_the_mask_are_written_and_defined() {
        let mut registers = Registers::new(4, 1);
        registers.set_narrow(0, 0b101, &[7; LANES]);
        assert_eq!(registers.narrow(0)[..4], [7, 0, 7, 0]);
        assert_eq!(registers.defined(0), 0b101);

        registers.set_wide(2, ALL << 31, &[u64::MAX; LANES]);
        assert_eq!(registers.wide(2)[30..], [0, u64::MAX]);
        registers.set_predicate(0, 0b11, 0b110);
        assert_eq!((registers.predicate(0), registers.predicate_defined(0)), (0b10, 0b11));
    }

    #[test]
    fn forgotten_registers_are_undefined() {
        let mut start = Registers::new(2, 1);
        start.broadcast(0, 9, false);
        let mut registers = start.clone();
        registers.set_narrow(1, ALL, &[5; LANES]);
        registers.set_predicate(0, ALL, ALL);
        registers.forget(&start);
        assert_eq!((registers.defined(0), registers.defined(1)), (ALL, 0));
        assert_eq!(registers.predicate_defined(0), 0);
        assert_eq!(registers.narrow(0), &[9; LANES]);

        registers.reset(&start);
        assert_eq!(registers.narrow(1), &[0; LANES]);
    }

    #[test]
    fn copies_preserve_definedness() {
        let mut registers = Registers::new(2, 0);
        registers.set_narrow(0, 0b1, &[3; LANES]);
        registers.broadcast(1, 9, false);
        registers.copy(1, 0, false, 0b11);
        assert_eq!(registers.narrow(1)[..3], [3, 0, 9]);
        assert_eq!(registers.defined(1), !0b10);
    }

    #[test]
    fn restoring_affects_only_the_saved_lane() {
        let mut registers = Registers::new(3, 1);
        let all = [(0, true), (2, false)];
        for lane in [1, 30] {
            registers.set_lane(0, true, lane, 1 << 40);
            registers.set_lane(2, false, lane, 7);
        }
        registers.set_predicate(0, 1 << 30, ALL);
        let saved = registers.save(&all, 0..1, 30);
        let before = registers.clone();

        registers.set_wide(0, ALL, &[5; LANES]);
        registers.set_narrow(2, ALL, &[5; LANES]);
        registers.set_predicate(0, ALL, 0);
        registers.restore(&all, 0..1, 30, &saved);
        for lane in [1, 30] {
            let value = (registers.wide(0)[lane], registers.narrow(2)[lane]);
            assert_eq!(value, if lane == 30 { (1 << 40, 7) } else { (5, 5) });
        }
        assert_eq!(registers.predicate(0), before.predicate(0));
        assert_eq!(registers.defined(0), ALL);
    }

    #[test]
    fn lanes_of_a_mask() {
        assert_eq!(lanes_of(0x8000_0005).collect::<Vec<_>>(), [0, 2, 31]);
    }
}
