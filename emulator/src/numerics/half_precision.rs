//! f16 and bf16: widening, narrowing and arithmetic, scalar and packed in pairs.
//!
//! Implements PTX ISA, "Half Precision Floating-Point Instructions": add, sub, mul, fma, neg, abs,
//! min, max of `.f16`, `.bf16` and of pairs of them, with `.ftz`, `.sat` and `.relu`. The only
//! rounding mode is nearest even.
//!
//! Sums and products are computed in f32 and rounded again. This double rounding is exact, because
//! f32 has at least 2p + 2 significant bits for both formats (Figueroa, "When is double rounding
//! innocuous?", 1995). That does not hold for a fused multiply-add, which uses rounding to odd.
//!
//! NaN: results are `0x7fff` in both formats. neg and abs only change the sign bit.

use super::compare::{NanOperand, max_f32, min_f32, with_product_of_signs};
use super::rounding::{self, narrow_to_odd, sum_to_odd};

/// The NaN of all f16 and bf16 results.
pub(crate) const NAN_HALF: u16 = 0x7fff;

/// A 16-bit format; a number is given by its bits.
pub(crate) trait Half {
    /// Bits of the smallest normal number, the lowest bit of the exponent field.
    const SMALLEST_NORMAL: u16;

    /// The same number in f32.
    fn widen(bits: u16) -> f32;

    /// The nearest number, ties to even; NaN becomes [`NAN_HALF`].
    fn narrow(x: f32) -> u16;
}

/// IEEE 754 binary16.
pub(crate) struct F16;

/// The upper half of an f32.
pub(crate) struct Bf16;

impl Half for F16 {
    const SMALLEST_NORMAL: u16 = 1 << 10;

    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        // Moving the fields to their places in an f32 makes the value too small by 2^112, because
        // the exponent biases differ by 112. The product is exact, even for subnormals.
        const BIAS: f32 = f32::from_bits((127 + 112) << 23);
        let magnitude = u32::from(bits & 0x7fff);
        let number = (f32::from_bits(magnitude << 13) * BIAS).to_bits();
        let special = 0x7f80_0000 | magnitude << 13;
        let magnitude = if magnitude >= 0x7c00 { special } else { number };
        rounding::canonical(f32::from_bits(magnitude | u32::from(bits & 0x8000) << 16))
    }

    #[inline(always)]
    fn narrow(x: f32) -> u16 {
        const SMALLEST_NORMAL: u32 = (127 - 14) << 23;
        const OVERFLOW: u32 = 0x477f_f000;
        let bits = x.to_bits();
        let magnitude = bits & 0x7fff_ffff;

        // Near 0.5, the ulp of an f32 is 2^-24, the unit of f16 subnormals: the sum rounds.
        let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
        let is_odd = magnitude >> 13 & 1;
        let rebiased = magnitude.wrapping_sub(112 << 23);
        let normal = rebiased.wrapping_add(0xfff + is_odd) >> 13;

        let number = if magnitude < SMALLEST_NORMAL { subnormal } else { normal };
        let finite = if magnitude >= OVERFLOW { 0x7c00 } else { number };
        let signed = finite | (bits >> 16 & 0x8000);
        let is_nan = magnitude > 0x7f80_0000;
        if is_nan { NAN_HALF } else { signed as u16 }
    }
}

impl Half for Bf16 {
    const SMALLEST_NORMAL: u16 = 1 << 7;

    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        f32::from_bits(u32::from(bits) << 16)
    }

    #[inline(always)]
    fn narrow(x: f32) -> u16 {
        let bits = x.to_bits();
        let is_odd = bits >> 16 & 1;
        let rounded = bits.wrapping_add(0x7fff + is_odd) >> 16;
        let is_nan = bits & 0x7fff_ffff > 0x7f80_0000;
        if is_nan { NAN_HALF } else { rounded as u16 }
    }
}

/// `add.f16`, `add.bf16`.
#[inline(always)]
pub(crate) fn add<H: Half>(a: u16, b: u16) -> u16 {
    H::narrow(H::widen(a) + H::widen(b))
}

/// `sub.f16`, `sub.bf16`.
#[inline(always)]
pub(crate) fn sub<H: Half>(a: u16, b: u16) -> u16 {
    H::narrow(H::widen(a) - H::widen(b))
}

/// `mul.f16`, `mul.bf16`.
#[inline(always)]
pub(crate) fn mul<H: Half>(a: u16, b: u16) -> u16 {
    H::narrow(H::widen(a) * H::widen(b))
}

/// `fma.rn.f16`, `fma.rn.bf16`: a * b + c with one rounding.
#[inline(always)]
pub(crate) fn fma<H: Half>(a: u16, b: u16, c: u16) -> u16 {
    let product = f64::from(H::widen(a)) * f64::from(H::widen(b));
    let total = sum_to_odd(product, f64::from(H::widen(c)));
    H::narrow(narrow_to_odd(total))
}

/// `neg`: flips the sign, even that of NaN.
#[inline(always)]
pub(crate) fn neg(x: u16) -> u16 {
    x ^ 0x8000
}

/// `abs`: clears the sign, even that of NaN.
#[inline(always)]
pub(crate) fn abs(x: u16) -> u16 {
    x & 0x7fff
}

/// `min.f16`, `min.bf16`.
#[inline(always)]
pub(crate) fn min<H: Half>(a: u16, b: u16, nan: NanOperand) -> u16 {
    H::narrow(min_f32(H::widen(a), H::widen(b), nan))
}

/// `max.f16`, `max.bf16`.
#[inline(always)]
pub(crate) fn max<H: Half>(a: u16, b: u16, nan: NanOperand) -> u16 {
    H::narrow(max_f32(H::widen(a), H::widen(b), nan))
}

/// `.xorsign.abs` of min and max: the selected magnitude with the product of the signs of a and b.
#[inline(always)]
pub(crate) fn xorsign<H: Half>(magnitude: u16, a: u16, b: u16) -> u16 {
    H::narrow(with_product_of_signs(H::widen(magnitude), H::widen(a), H::widen(b)))
}

/// `.ftz`: a subnormal becomes a zero of the same sign. Applies to operands and results.
#[inline(always)]
pub(crate) fn flush<H: Half>(x: u16) -> u16 {
    if x & 0x7fff < H::SMALLEST_NORMAL { x & 0x8000 } else { x }
}

/// `.sat`: clamped to [0, 1]; NaN and minus zero become plus zero.
#[inline(always)]
pub(crate) fn saturate<H: Half>(x: u16) -> u16 {
    H::narrow(rounding::saturate(H::widen(x)))
}

/// `.relu`: negative numbers and minus zero become plus zero; NaN stays.
#[inline(always)]
pub(crate) fn relu<H: Half>(x: u16) -> u16 {
    H::narrow(relu_f32(H::widen(x)))
}

/// `.relu` on an f32, for conversions: negative numbers and minus zero become plus zero.
#[inline(always)]
pub(crate) fn relu_f32(x: f32) -> f32 {
    if x <= 0.0 { 0.0 } else { x }
}

/// The two halves of a packed register, lower half first.
#[inline(always)]
pub(crate) fn unpack(pair: u32) -> [u16; 2] {
    [pair as u16, (pair >> 16) as u16]
}

/// A packed register of two halves, lower half first.
#[inline(always)]
pub(crate) fn pack([low, high]: [u16; 2]) -> u32 {
    u32::from(low) | u32::from(high) << 16
}

/// A unary instruction on both halves of a packed register.
#[inline(always)]
pub(crate) fn both(x: u32, op: impl Fn(u16) -> u16) -> u32 {
    pack(unpack(x).map(op))
}

/// A binary instruction on both halves of packed registers.
#[inline(always)]
pub(crate) fn both2(a: u32, b: u32, op: impl Fn(u16, u16) -> u16) -> u32 {
    let ([a0, a1], [b0, b1]) = (unpack(a), unpack(b));
    pack([op(a0, b0), op(a1, b1)])
}

/// A ternary instruction on both halves of packed registers.
#[inline(always)]
pub(crate) fn both3(a: u32, b: u32, c: u32, op: impl Fn(u16, u16, u16) -> u16) -> u32 {
    let low = op(a as u16, b as u16, c as u16);
    let high = op((a >> 16) as u16, (b >> 16) as u16, (c >> 16) as u16);
    u32::from(low) | u32::from(high) << 16
}
