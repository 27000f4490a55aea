//! Instructions that split, join and compare values. They carry undefined values along.

use super::cta::Cta;
use super::lanes::{each_lane, narrowed, widened};
use super::registers::{LANES, Registers, Slot};
use super::shadow::undecided;
use super::step::truth;
use super::undefined::{Origin, Undefined, low_bits};
use super::warp::Warp;
use crate::program::op::{Combine, PredicateSource, Set, SetPredicate};

impl Cta<'_> {
    pub(super) fn split_value(
        &self,
        warp: &mut Warp,
        to: &[Option<Slot>],
        from: Slot,
        bits: u32,
        mask: u32,
    ) {
        let value: [u64; LANES] = match to.len() as u32 * bits {
            64 => *warp.registers.wide(from),
            _ => widened(warp.registers.narrow(from)),
        };
        let undefined = self.undefined_of(&warp.registers, from, mask);
        let part = low_bits(bits);
        for (index, to) in to.iter().enumerate() {
            let Some(to) = *to else {
                continue;
            };
            let shift = index as u32 * bits;
            let value = each_lane(|lane| (value[lane] >> shift & part) as u32);
            warp.registers.set_narrow(to, mask, &value);
            if let Some(undefined) = &undefined {
                let undefined = undefined.with_bits(|all| all >> shift & part);
                warp.registers.set_undefined(to, mask, &undefined);
            }
        }
    }

    pub(super) fn join_value(
        &self,
        warp: &mut Warp,
        to: Slot,
        from: &[Slot],
        bits: u32,
        mask: u32,
    ) {
        let (mut value, mut undefined) = ([0u64; LANES], Undefined::default());
        let part = low_bits(bits);
        for (index, from) in from.iter().enumerate() {
            let shift = index as u32 * bits;
            let source = warp.registers.narrow(*from);
            for lane in 0..LANES {
                value[lane] |= (u64::from(source[lane]) & part) << shift;
            }
            if let Some(source) = self.undefined_of(&warp.registers, *from, mask) {
                for lane in 0..LANES {
                    let bits = (source.bits[lane] & part) << shift;
                    undefined.add(lane, bits, source.origins[lane]);
                }
            }
        }
        match from.len() as u32 * bits {
            64 => warp.registers.set_wide(to, mask, &value),
            _ => {
                let value = narrowed(&value);
                warp.registers.set_narrow(to, mask, &value);
            }
        }
        if undefined.lanes() & mask != 0 {
            warp.registers.set_undefined(to, mask, &undefined);
        }
    }

    /// The undefined bits of a register, if it has any in the lanes of `mask`.
    fn undefined_of(&self, registers: &Registers, slot: Slot, mask: u32) -> Option<Undefined> {
        let missing = registers.missing(&[slot], mask) != 0 && self.grid.options.sanitize;
        missing.then(|| registers.undefined(slot, 64))
    }

    #[inline(always)]
    pub(super) fn set_predicate(&self, warp: &mut Warp, set: &SetPredicate, mask: u32) {
        let undefined = self.undefined_comparison(warp, set.sources, set.combine, mask);
        let compared = (set.compare)(&warp.registers, set.sources);
        let second = match set.second {
            Some(compare) => compare(&warp.registers, set.sources),
            None => !compared,
        };
        let value = combined(warp, compared, set.combine);
        let second_value = combined(warp, second, set.combine);
        let lost = undefined.as_ref().map(|it| {
            (it.depends(warp, compared, set.combine), it.depends(warp, second, set.combine))
        });
        if let Some(to) = set.to {
            warp.registers.set_predicate(to, mask, value);
        }
        if let Some(to) = set.second_to {
            warp.registers.set_predicate(to, mask, second_value);
        }
        let (Some(undefined), Some((first, second))) = (undefined, lost) else {
            return;
        };
        let origin = |lane: usize| undefined.origins[lane];
        for (to, lanes) in [(set.to, first), (set.second_to, second)] {
            if let Some(to) = to {
                warp.registers.forget_predicate(to, lanes & mask, origin);
            }
        }
    }

    pub(super) fn set(&self, warp: &mut Warp, set: &Set, mask: u32) {
        let undefined = self.undefined_comparison(warp, set.sources, set.combine, mask);
        let (mut value, mut missing) = ([0; LANES], Undefined::default());
        for (compare, truth) in &set.compares {
            let compared = compare(&warp.registers, set.sources);
            let lanes = combined(warp, compared, set.combine);
            for (lane, value) in value.iter_mut().enumerate() {
                *value |= (lanes >> lane & 1) * truth;
            }
            if let Some(undefined) = &undefined {
                let depends = undefined.depends(warp, compared, set.combine) & mask;
                for lane in super::registers::lanes_of(depends) {
                    missing.add(lane, u64::from(*truth), undefined.origins[lane]);
                }
            }
        }
        warp.registers.set_narrow(set.to, mask, &value);
        if missing.lanes() != 0 {
            warp.registers.set_undefined(set.to, mask, &missing);
        }
    }

    /// The lanes in which a comparison or the predicate that it is combined with is undefined; `None`
    /// if there are none.
    #[inline(always)]
    fn undefined_comparison(
        &self,
        warp: &Warp,
        sources: [Slot; 2],
        combine: Option<(Combine, PredicateSource)>,
        mask: u32,
    ) -> Option<Comparison> {
        let registers = &warp.registers;
        let compared = registers.missing(&sources, mask);
        let index = combine.and_then(|(_, with)| with.index);
        let combined = index.map_or(0, |index| mask & !registers.predicate_defined(index));
        if compared | combined == 0 || !self.grid.options.sanitize {
            return None;
        }
        let origins = each_lane(|lane| {
            let of_source = |slot: &Slot| {
                let (bits, origin) = registers.undefined_lane(*slot, lane);
                (bits != 0).then_some(origin)
            };
            let of_predicate = || index.map(|index| registers.predicate_origin(index, lane));
            let found = sources.iter().find_map(of_source);
            found.or_else(of_predicate).unwrap_or_default()
        });
        Some(Comparison { compared, combined, origins })
    }

    pub(super) fn predicates(
        &self,
        warp: &mut Warp,
        to: Slot,
        from: [PredicateSource; 2],
        table: u8,
        mask: u32,
    ) {
        let (a, b) = (truth(warp, from[0]), truth(warp, from[1]));
        let entry = |bit: u8, lanes: u32| if table >> bit & 1 != 0 { lanes } else { 0 };
        let combine = |a: u32, b: u32| {
            entry(0, !a & !b) | entry(1, a & !b) | entry(2, !a & b) | entry(3, a & b)
        };
        let undefined = from.map(|from| undefined_truth(warp, from) & mask);
        let mut lost = 0;
        let mut origins = [Origin::Register; LANES];
        if undefined != [0, 0] && self.grid.options.sanitize {
            lost = undecided(combine, [(a, undefined[0]), (b, undefined[1])]);
            origins = each_lane(|lane| {
                let first = undefined[0] >> lane & 1 != 0;
                let index = if first { from[0].index } else { from[1].index };
                index.map_or(Origin::Register, |it| warp.registers.predicate_origin(it, lane))
            });
        }
        warp.registers.set_predicate(to, mask, combine(a, b));
        warp.registers.forget_predicate(to, lost & mask, |lane| origins[lane]);
    }
}

/// A comparison with undefined lanes.
struct Comparison {
    compared: u32,
    combined: u32,
    origins: [Origin; LANES],
}

impl Comparison {
    /// The lanes of the combined result that depend on an undefined value.
    fn depends(
        &self,
        warp: &Warp,
        compared: u32,
        combine: Option<(Combine, PredicateSource)>,
    ) -> u32 {
        let Some((combine, with)) = combine else {
            return self.compared;
        };
        let operands = [(compared, self.compared), (truth(warp, with), self.combined)];
        undecided(|a, b| combined_lanes(a, combine, b), operands)
    }
}

/// The lanes in which a predicate is undefined.
fn undefined_truth(warp: &Warp, source: PredicateSource) -> u32 {
    source.index.map_or(0, |index| !warp.registers.predicate_defined(index))
}

/// The lanes of a comparison, combined with a predicate.
#[inline(always)]
fn combined(warp: &Warp, lanes: u32, combine: Option<(Combine, PredicateSource)>) -> u32 {
    match combine {
        None => lanes,
        Some((combine, with)) => combined_lanes(lanes, combine, truth(warp, with)),
    }
}

#[inline(always)]
fn combined_lanes(lanes: u32, combine: Combine, with: u32) -> u32 {
    match combine {
        Combine::And => lanes & with,
        Combine::Or => lanes | with,
        Combine::Xor => lanes ^ with,
    }
}
