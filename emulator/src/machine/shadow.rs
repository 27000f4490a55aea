//! How arithmetic carries undefined bits from its sources to its result.

use super::lanes::{Compute, Operands, each_lane, widened};
use super::registers::{ALL, LANES, Registers, Slot, lanes_of};
use super::undefined::{Undefined, low_bits};

/// Which bits of a result are undefined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Those that depend on an undefined bit of the first `data` sources. The other sources, such as
    /// shift amounts, select bits; if one of them is undefined, so is the whole result.
    Bits { data: u8 },
    /// The lowest undefined bit of any source and all above it, as in sums and products.
    Upward,
    /// The elements of this many bits in which a source has an undefined bit.
    Elements(u32),
    /// The upper half from the first source, the lower half from the second.
    Pack,
    /// All, if any source has an undefined bit.
    Whole,
}

/// A rule, and the bits of the result and of each source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shadow {
    pub(crate) rule: Rule,
    pub(crate) bits: [u8; 5],
}

impl Shadow {
    pub(crate) fn new(rule: Rule, bits: impl IntoIterator<Item = u32>) -> Shadow {
        let mut all = [0; 5];
        for (to, from) in all.iter_mut().zip(bits) {
            *to = from as u8;
        }
        Shadow { rule, bits: all }
    }

    fn source_bits(&self, index: usize) -> u32 {
        u32::from(self.bits[index + 1])
    }

    /// The undefined bits of the result, in all lanes.
    fn of_result(
        &self,
        registers: &Registers,
        compute: &Compute,
        operands: &Operands,
    ) -> Undefined {
        let slots = &operands.sources[..operands.count as usize];
        let of_source =
            |(index, slot): (usize, &Slot)| registers.undefined(*slot, self.source_bits(index));
        let sources: Vec<Undefined> = slots.iter().enumerate().map(of_source).collect();
        let dependent = match self.rule {
            Rule::Bits { data } => {
                self.dependent_bits(registers, compute, operands, &sources[..usize::from(data)])
            }
            _ => [0; LANES],
        };
        let whole = low_bits(u32::from(self.bits[0]));
        let lower_half = low_bits(u32::from(self.bits[0]) / 2);
        let mut result = Undefined::default();
        for (index, source) in sources.iter().enumerate() {
            for lane in lanes_of(source.lanes()) {
                let missing = source.bits[lane];
                let bits = match self.rule {
                    Rule::Bits { data } if index < usize::from(data) => dependent[lane],
                    Rule::Bits { .. } | Rule::Whole => whole,
                    Rule::Upward => u64::MAX << missing.trailing_zeros(),
                    Rule::Elements(bits) => elements(missing, bits),
                    Rule::Pack if index == 0 => whole & !lower_half,
                    Rule::Pack => lower_half,
                };
                result.add(lane, bits & whole, source.origins[lane]);
            }
        }
        result
    }

    /// The bits of the result that change when undefined bits of the sources change. Each source's
    /// undefined bits are all zero or all one, in every combination. That is exhaustive, because a
    /// bit of the result depends on at most one bit of each source.
    fn dependent_bits(
        &self,
        registers: &Registers,
        compute: &Compute,
        operands: &Operands,
        data: &[Undefined],
    ) -> [u64; LANES] {
        let slots = &operands.sources[..operands.count as usize];
        let mut trial = Registers::new(10, 0);
        let trial_operands = Operands { destination: 8, sources: [0, 2, 4, 6], ..*operands };
        let (mut ever_one, mut ever_zero) = ([0; LANES], [0; LANES]);
        for ones in 0..1u32 << data.len() {
            for (index, slot) in slots.iter().enumerate() {
                let mut value = value(registers, *slot, self.source_bits(index));
                // A register that is used twice has the same bits both times.
                let first = slots.iter().position(|it| it == slot).unwrap_or(index);
                if let Some(undefined) = data.get(index) {
                    let filled = if ones >> first & 1 != 0 { u64::MAX } else { 0 };
                    for (value, bits) in value.iter_mut().zip(&undefined.bits) {
                        *value = *value & !bits | filled & bits;
                    }
                }
                let to = trial_operands.sources[index];
                match self.source_bits(index) {
                    64 => trial.set_wide(to, ALL, &value),
                    _ => trial.set_narrow(to, ALL, &value.map(|value| value as u32)),
                }
            }
            (compute.run)(&mut trial, &trial_operands, ALL);
            let result = value(&trial, 8, u32::from(self.bits[0]));
            for lane in 0..LANES {
                ever_one[lane] |= result[lane];
                ever_zero[lane] |= !result[lane];
            }
        }
        each_lane(|lane| ever_one[lane] & ever_zero[lane])
    }
}

/// Executes arithmetic on sources with undefined bits.
#[inline(never)]
pub(super) fn compute(
    registers: &mut Registers,
    compute: &Compute,
    operands: &Operands,
    shadow: &Shadow,
    mask: u32,
) {
    let undefined = shadow.of_result(registers, compute, operands);
    (compute.run)(registers, operands, mask);
    registers.set_undefined(operands.destination, mask, &undefined);
}

/// The lanes in which a function of two predicates depends on an undefined one.
pub(super) fn undecided(
    f: impl Fn(u32, u32) -> u32,
    [(a, a_undefined), (b, b_undefined)]: [(u32, u32); 2],
) -> u32 {
    let [low, high] = [a & !a_undefined, a | a_undefined];
    let [left, right] = [b & !b_undefined, b | b_undefined];
    let first = f(low, left);
    (first ^ f(low, right)) | (first ^ f(high, left)) | (first ^ f(high, right))
}

fn value(registers: &Registers, slot: Slot, bits: u32) -> [u64; LANES] {
    match bits {
        64 => *registers.wide(slot),
        _ => widened(registers.narrow(slot)),
    }
}

/// Whole elements in which some bit is set.
fn elements(bits: u64, width: u32) -> u64 {
    let element = low_bits(width);
    let marked = (0..64).step_by(width as usize).filter(|at| bits >> at & element != 0);
    marked.fold(0, |all, at| all | element << at)
}
