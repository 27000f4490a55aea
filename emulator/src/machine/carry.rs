//! Extended-precision arithmetic: sums and products with a carry in and out.

use super::cta::Cta;
use super::lanes::narrowed;
use super::registers::{LANES, Slot, lanes_of};
use super::undefined::{Undefined, low_bits};
use super::warp::Warp;
use crate::numerics::integer;
use crate::program::op::{Carry, CarryOperation};

impl Cta<'_> {
    pub(super) fn carry(&self, warp: &mut Warp, carry: &Carry, mask: u32) {
        let undefined = self.undefined_sum(warp, carry, mask);
        let incoming = carry.reads.map_or(0, |predicate| warp.registers.predicate(predicate));
        let (mut value, mut outgoing) = ([0; LANES], 0);
        for lane in lanes_of(mask) {
            let source = |index: usize| lane_value(warp, carry.sources[index], carry.wide, lane);
            let carry_in = incoming >> lane & 1 != 0;
            let (result, carry_out) = compute(carry, source, carry_in);
            value[lane] = result;
            outgoing |= u32::from(carry_out) << lane;
        }
        match carry.wide {
            true => warp.registers.set_wide(carry.to, mask, &value),
            false => {
                let value = narrowed(&value);
                warp.registers.set_narrow(carry.to, mask, &value);
            }
        }
        if let Some(predicate) = carry.sets {
            warp.registers.set_predicate(predicate, mask, outgoing);
        }
        if let Some(undefined) = undefined {
            warp.registers.set_undefined(carry.to, mask, &undefined);
            if let Some(predicate) = carry.sets {
                let origin = |lane: usize| undefined.origins[lane];
                warp.registers.forget_predicate(predicate, undefined.lanes(), origin);
            }
        }
    }

    /// All bits of the lanes in which a source or the carry in is undefined.
    fn undefined_sum(&self, warp: &Warp, carry: &Carry, mask: u32) -> Option<Undefined> {
        let registers = &warp.registers;
        let sources = registers.missing(&carry.sources, mask);
        let carries = carry.reads.map_or(0, |it| mask & !registers.predicate_defined(it));
        if sources | carries == 0 || !self.grid.options.sanitize {
            return None;
        }
        let bits = low_bits(if carry.wide { 64 } else { 32 });
        let mut undefined = Undefined::default();
        for lane in lanes_of(sources | carries) {
            for slot in &carry.sources {
                let (missing, origin) = registers.undefined_lane(*slot, lane);
                undefined.add(lane, if missing == 0 { 0 } else { bits }, origin);
            }
            if let Some(predicate) = carry.reads.filter(|_| carries >> lane & 1 != 0) {
                undefined.add(lane, bits, registers.predicate_origin(predicate, lane));
            }
        }
        Some(undefined)
    }
}

fn lane_value(warp: &Warp, slot: Slot, wide: bool, lane: usize) -> u64 {
    match wide {
        true => warp.registers.wide(slot)[lane],
        false => u64::from(warp.registers.narrow(slot)[lane]),
    }
}

fn compute(carry: &Carry, source: impl Fn(usize) -> u64, carry_in: bool) -> (u64, bool) {
    let (a, b) = (source(0), source(1));
    let (a, b) = match carry.operation {
        CarryOperation::Add | CarryOperation::Subtract => (a, b),
        CarryOperation::MultiplyLow | CarryOperation::MultiplyHigh => {
            (product(carry, a, b), source(2))
        }
    };
    match (carry.operation, carry.wide) {
        (CarryOperation::Subtract, true) => integer::sub_borrow_u64(a, b, carry_in),
        (CarryOperation::Subtract, false) => {
            let (value, out) = integer::sub_borrow_u32(a as u32, b as u32, carry_in);
            (u64::from(value), out)
        }
        (_, true) => integer::add_carry_u64(a, b, carry_in),
        (_, false) => {
            let (value, out) = integer::add_carry_u32(a as u32, b as u32, carry_in);
            (u64::from(value), out)
        }
    }
}

/// The requested half of a product.
fn product(carry: &Carry, a: u64, b: u64) -> u64 {
    let high = carry.operation == CarryOperation::MultiplyHigh;
    match (high, carry.wide, carry.signed) {
        (false, ..) => a.wrapping_mul(b),
        (true, true, true) => integer::mul_hi_s64(a as i64, b as i64) as u64,
        (true, true, false) => integer::mul_hi_u64(a, b),
        (true, false, true) => integer::mul_hi_s32(a as i32, b as i32) as u32 as u64,
        (true, false, false) => u64::from(integer::mul_hi_u32(a as u32, b as u32)),
    }
}
