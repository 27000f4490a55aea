//! Arithmetic on the bytes or halfwords of registers.
//!
//! Implements PTX ISA, "SIMD Video Instructions": `vadd2` to `vset4` on all parts of their operands
//! in order. Parts are extended to 32 bits, computed, and either packed again or, with `.add`,
//! added to the third operand.

/// The form of an instruction, as flags that fit into a 32-bit operand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Form(u32);

impl Form {
    /// Two halfwords rather than four bytes.
    pub(crate) const HALVES: Form = Form(1);
    /// The result's type is `.s32`.
    pub(crate) const SIGNED_RESULT: Form = Form(2);
    /// The type of `a` is `.s32`.
    pub(crate) const SIGNED_A: Form = Form(4);
    /// The type of `b` is `.s32`.
    pub(crate) const SIGNED_B: Form = Form(8);
    /// `.sat`: results are clamped to the range of the result's parts.
    pub(crate) const SATURATES: Form = Form(16);
    /// `.add`.
    pub(crate) const ACCUMULATES: Form = Form(32);

    /// Sets a flag if `is_set`.
    pub(crate) fn with(self, flag: Form, is_set: bool) -> Form {
        if is_set { Form(self.0 | flag.0) } else { self }
    }

    fn has(self, flag: Form) -> bool {
        self.0 & flag.0 != 0
    }

    /// The form as an operand.
    pub(crate) fn bits(self) -> u32 {
        self.0
    }

    /// The form that an operand encodes.
    pub(crate) fn from_bits(bits: u32) -> Form {
        Form(bits)
    }

    /// Bits of a part.
    fn width(self) -> u32 {
        if self.has(Form::HALVES) { 16 } else { 8 }
    }

    /// Part `index` of a register, extended.
    fn part(self, register: u32, index: u32, signed: Form) -> i32 {
        let unused = 32 - self.width();
        let top = register << (unused - index * self.width());
        match self.has(signed) {
            true => top as i32 >> unused,
            false => (top >> unused) as i32,
        }
    }

    fn saturated(self, value: i32) -> i32 {
        let (signed, width) = (self.has(Form::SIGNED_RESULT), self.width());
        let (low, high) = match signed {
            true => (-(1 << (width - 1)), (1 << (width - 1)) - 1),
            false => (0, (1 << width) - 1),
        };
        value.clamp(low, high)
    }

    /// Applies `operation` to each pair of parts of `a` and `b`.
    pub(crate) fn each_part(self, [a, b, c]: [u32; 3], operation: impl Fn(i32, i32) -> i32) -> u32 {
        let width = self.width();
        let parts = (0..32 / width).map(|index| {
            let a = self.part(a, index, Form::SIGNED_A);
            let b = self.part(b, index, Form::SIGNED_B);
            let part = operation(a, b);
            match self.has(Form::SATURATES) {
                true => self.saturated(part),
                false => part,
            }
        });
        if self.has(Form::ACCUMULATES) {
            return parts.fold(c, |sum, part| sum.wrapping_add(part as u32));
        }
        let keep = u32::MAX >> (32 - width);
        let placed = (0..).zip(parts);
        placed.fold(0, |all, (index, part)| all | (part as u32 & keep) << (index * width))
    }
}

/// The rounded mean of `vavrg`: a half rounds up if the sum is not negative, else down.
#[inline(always)]
pub(crate) fn average(a: i32, b: i32) -> i32 {
    let sum = a + b;
    (sum + i32::from(sum >= 0)) >> 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGNED: Form = Form(2 | 4 | 8);

    #[test]
    fn parts_do_not_carry_into_each_other() {
        let sum = |form: Form, a, b| form.each_part([a, b, 0], |a, b| a + b);
        assert_eq!(sum(Form::default(), 0x80ff_017f, 0x8001_ff01), 0x0000_0080);
        assert_eq!(sum(Form::HALVES, 0x80ff_017f, 0x8001_ff01), 0x0100_0080);
        let clamped = Form::SATURATES;
        assert_eq!(sum(clamped, 0x80ff_017f, 0x8001_ff01), 0xffff_ff80);
        let clamped = clamped.with(SIGNED, true);
        assert_eq!(sum(clamped, 0x80ff_017f, 0x8001_ff01), 0x8000_007f);
    }

    #[test]
    fn differences_and_their_sum() {
        let difference = |a: i32, b: i32| (a - b).abs();
        let (a, b) = (0xff00_7f80, 0x01ff_807f);
        let unsigned = Form::default();
        assert_eq!(unsigned.each_part([a, b, 7], difference), 0xfeff_0101);
        let summed = Form::ACCUMULATES;
        assert_eq!(summed.each_part([a, b, 7], difference), 0xfe + 0xff + 1 + 1 + 7);
        assert_eq!(SIGNED.each_part([a, b, 7], difference), 0x0201_ffff);
        let summed = summed.with(SIGNED, true);
        assert_eq!(summed.each_part([a, b, u32::MAX], difference), 2 + 1 + 255 + 255 - 1);
    }

    #[test]
    fn means_round_away_from_zero() {
        let pairs = [(1, 2), (-1, -2), (-1, 0), (0, 0), (-2, 3), (-3, 2)];
        let means = pairs.map(|(a, b)| average(a, b));
        assert_eq!(means, [2, -2, -1, 0, 1, -1]);
    }
}
