//! Which bits of registers and predicates are defined.

use super::registers::{Registers, Slot, lanes_of};
use super::undefined::{Origin, Undefined, low_bits};

impl Registers {
    /// The lanes of `mask` in which some register is not fully defined.
    #[inline(always)]
    pub(crate) fn missing(&self, slots: &[Slot], mask: u32) -> u32 {
        let missing = |lanes, slot: &Slot| lanes | !self.defined(*slot);
        mask & slots.iter().fold(0, missing)
    }

    /// The undefined bits of a lane: all of them if the register was never written.
    pub(crate) fn undefined_lane(&self, slot: Slot, lane: usize) -> (u64, Origin) {
        if self.defined(slot) >> lane & 1 != 0 {
            return (0, Origin::Register);
        }
        match self.undefined.get(&slot) {
            Some(known) if known.bits[lane] != 0 => (known.bits[lane], known.origins[lane]),
            _ => (u64::MAX, Origin::Register),
        }
    }

    /// The undefined bits of a register of `bits` bits.
    pub(crate) fn undefined(&self, slot: Slot, bits: u32) -> Undefined {
        let mut undefined = Undefined::default();
        for lane in lanes_of(!self.defined(slot)) {
            let (missing, origin) = self.undefined_lane(slot, lane);
            undefined.add(lane, missing & low_bits(bits), origin);
        }
        undefined
    }

    /// Sets which bits are undefined in the lanes of `mask`.
    #[inline(never)]
    pub(crate) fn set_undefined(&mut self, slot: Slot, mask: u32, undefined: &Undefined) {
        self.set_defined(slot, mask, !undefined.lanes());
        if undefined.lanes() & mask == 0 {
            return;
        }
        let known = self.undefined.entry(slot).or_default();
        for lane in lanes_of(mask) {
            known.bits[lane] = undefined.bits[lane];
            known.origins[lane] = undefined.origins[lane];
        }
    }

    /// The origin of an undefined predicate.
    pub(crate) fn predicate_origin(&self, index: Slot, lane: usize) -> Origin {
        let origins = self.predicate_origins.get(&index);
        origins.map_or(Origin::Register, |origins| origins[lane])
    }

    /// Marks a predicate as undefined in the lanes of `undefined`.
    pub(crate) fn forget_predicate(
        &mut self,
        index: Slot,
        undefined: u32,
        origin: impl Fn(usize) -> Origin,
    ) {
        if undefined == 0 {
            return;
        }
        self.predicates_defined[index as usize] &= !undefined;
        let origins = self.predicate_origins.entry(index).or_default();
        for lane in lanes_of(undefined) {
            origins[lane] = origin(lane);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::registers::{ALL, LANES};
    use crate::machine::undefined::Load;
    use crate::machine::windows::MemoryId;

    #[test]
    fn a_register_that_was_never_written_is_undefined_in_all_bits() {
        let mut registers = Registers::new(1, 0);
        registers.set_narrow(0, 0b01, &[7; LANES]);
        assert_eq!(registers.undefined_lane(0, 0).0, 0);
        assert_eq!(registers.undefined_lane(0, 1), (u64::MAX, Origin::Register));
        assert_eq!(registers.undefined(0, 16).bits[1], 0xffff);
        assert_eq!(registers.missing(&[0], 0b11), 0b10);
    }

    #[test]
    fn undefined_bits_follow_a_copy_and_end_with_a_write() {
        let mut registers = Registers::new(2, 0);
        registers.set_narrow(0, ALL, &[0; LANES]);
        let mut undefined = Undefined::default();
        let load =
            Load { memory: MemoryId::Shared, offset: 8, stored: false, pc: 3, warp: 0, lane: 5 };
        undefined.add(5, 0xf0, Origin::Memory(load));
        registers.set_undefined(0, ALL, &undefined);
        registers.copy(1, 0, false, ALL);
        assert_eq!(registers.undefined_lane(1, 5), (0xf0, Origin::Memory(load)));
        assert_eq!(registers.defined(1), !(1 << 5));

        registers.set_narrow(1, ALL, &[1; LANES]);
        assert_eq!(registers.undefined_lane(1, 5).0, 0);
        assert_eq!(registers.undefined_lane(0, 5).0, 0xf0);
    }
}
