//! `cvt` between integers and floating-point numbers.
//!
//! Implements PTX ISA, "Data Movement and Conversion Instructions: cvt". Integers are passed as the
//! 64 bits of a register, sign- or zero-extended ([`Integer::extend`]). Conversions also return
//! this form, because a destination register may be wider than its type.
//!
//! f16 and bf16 sources are first widened, which is exact. `.ftz` is [`super::rounding::flush`] on
//! f32 operands and results; `.sat` of a floating-point result is [`super::rounding::saturate`].
//!
//! NaN becomes the canonical NaN of the destination. [`f32_to_integer`] and [`f64_to_integer`]
//! document the integer for NaN.

use super::exact::{BFLOAT16, BINARY16, BINARY32, BINARY64, E4M3, E5M2, Exact, Format, Rounding};
use super::half_precision::{Bf16, F16, Half, NAN_HALF, relu_f32};
use super::rounding::{NAN_F32, canonical};

/// An integer type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Integer {
    /// 8, 16, 32 or 64.
    pub(crate) bits: u32,
    pub(crate) signed: bool,
}

impl Integer {
    pub(crate) const U8: Integer = Integer { bits: 8, signed: false };
    pub(crate) const S8: Integer = Integer { bits: 8, signed: true };
    pub(crate) const U16: Integer = Integer { bits: 16, signed: false };
    pub(crate) const S16: Integer = Integer { bits: 16, signed: true };
    pub(crate) const U32: Integer = Integer { bits: 32, signed: false };
    pub(crate) const S32: Integer = Integer { bits: 32, signed: true };
    pub(crate) const U64: Integer = Integer { bits: 64, signed: false };
    pub(crate) const S64: Integer = Integer { bits: 64, signed: true };

    /// The low bits of a register as this type, extended to 64 bits.
    #[inline(always)]
    pub(crate) fn extend(self, register: u64) -> u64 {
        let unused = 64 - self.bits;
        let top = register << unused;
        if self.signed { (top as i64 >> unused) as u64 } else { top >> unused }
    }

    /// The largest value.
    #[inline(always)]
    const fn largest(self) -> u64 {
        u64::MAX >> (64 - self.bits + self.signed as u32)
    }

    /// The smallest value, extended to 64 bits.
    #[inline(always)]
    const fn smallest(self) -> i64 {
        if self.signed { -(self.largest() as i64) - 1 } else { 0 }
    }
}

/// `cvt` between integers: modulo the destination's range, or clamped to it with `saturate`
/// (`.sat`).
#[inline(always)]
pub(crate) fn integer_to_integer(register: u64, from: Integer, to: Integer, saturate: bool) -> u64 {
    let value = from.extend(register);
    if !saturate {
        return to.extend(value);
    }
    let is_negative = from.signed && (value as i64) < 0;
    let below = is_negative && (value as i64) < to.smallest();
    let above = !is_negative && value > to.largest();
    let clamped = if above { to.largest() } else { value };
    if below { to.smallest() as u64 } else { clamped }
}

/// `cvt.rni`, `.rzi`, `.rmi`, `.rpi` from f32 to f32: rounds to an integer; zeros keep their sign.
#[inline(always)]
pub(crate) fn integral_f32(x: f32, rounding: Rounding) -> f32 {
    canonical(match rounding {
        Rounding::Nearest => x.round_ties_even(),
        Rounding::Zero => x.trunc(),
        Rounding::Down => x.floor(),
        Rounding::Up => x.ceil(),
    })
}

/// `cvt.rni`, `.rzi`, `.rmi`, `.rpi` from f64 to f64: rounds to an integer; zeros keep their sign.
#[inline(always)]
pub(crate) fn integral_f64(x: f64, rounding: Rounding) -> f64 {
    let integral = match rounding {
        Rounding::Nearest => x.round_ties_even(),
        Rounding::Zero => x.trunc(),
        Rounding::Down => x.floor(),
        Rounding::Up => x.ceil(),
    };
    super::double::with_payload(integral, [x])
}

/// The result for NaN in 64-bit conversions: only the highest bit set.
#[inline(always)]
fn integer_indefinite(to: Integer) -> u64 {
    to.extend(1 << (to.bits - 1))
}

/// Clamps an integral f32 to the range of an integer of at most 32 bits, and returns the integer as
/// a word.
///
/// Near 1.5 * 2^52, the ulp of an f64 is 1, so the low bits of the sum are the integer. Unlike
/// Rust's conversion, which also clamps, this vectorizes.
#[inline(always)]
fn clamped_word(integral: f32, to: Integer) -> u32 {
    const ONES: f64 = 6_755_399_441_055_744.0;
    let clamped = f64::from(integral).clamp(to.smallest() as f64, to.largest() as f64);
    (clamped + ONES).to_bits() as u32
}

/// `cvt` from f32 (f16, bf16) to an integer, clamped to its range. NaN becomes 0, or `1 << 63` in
/// 64-bit destinations (PTX ISA, cvt, "Floating-point notes").
#[inline(always)]
pub(crate) fn f32_to_integer(x: f32, rounding: Rounding, to: Integer) -> u64 {
    let integral = integral_f32(x, rounding);
    let nan = if to.bits == 64 { integer_indefinite(to) } else { 0 };
    let value = match (to.signed, to.bits) {
        (true, 64) => integral as i64 as u64,
        (false, 64) => integral as u64,
        (true, _) => i64::from(clamped_word(integral, to) as i32) as u64,
        (false, _) => u64::from(clamped_word(integral, to)),
    };
    if x.is_nan() { nan } else { value }
}

/// `cvt` from f64 to an integer, clamped to its range. NaN becomes the integer with only the
/// destination's highest bit set (PTX ISA, cvt, "Floating-point notes").
#[inline(always)]
pub(crate) fn f64_to_integer(x: f64, rounding: Rounding, to: Integer) -> u64 {
    let integral = integral_f64(x, rounding);
    let value = match to.signed {
        true => (integral as i64).clamp(to.smallest(), to.largest() as i64) as u64,
        false => (integral as u64).min(to.largest()),
    };
    if x.is_nan() { integer_indefinite(to) } else { value }
}

/// An extended integer as an exact number.
fn exact_integer(register: u64, from: Integer) -> Exact {
    let value = from.extend(register);
    let negative = from.signed && (value as i64) < 0;
    let magnitude = if negative { value.wrapping_neg() } else { value };
    Exact::of_integer(negative, magnitude)
}

/// `cvt` from an integer to f32.
#[inline(always)]
pub(crate) fn integer_to_f32(register: u64, from: Integer, rounding: Rounding) -> f32 {
    let value = from.extend(register);
    match (rounding, from.signed, from.bits) {
        (Rounding::Nearest, true, 64) => value as i64 as f32,
        (Rounding::Nearest, false, 64) => value as f32,
        (Rounding::Nearest, true, _) => value as i32 as f32,
        (Rounding::Nearest, false, _) => value as u32 as f32,
        _ => f32::from_bits(BINARY32.round(exact_integer(value, from), rounding) as u32),
    }
}

/// `cvt` from an integer to f64.
#[inline(always)]
pub(crate) fn integer_to_f64(register: u64, from: Integer, rounding: Rounding) -> f64 {
    let value = from.extend(register);
    match (rounding, from.signed) {
        (Rounding::Nearest, true) => value as i64 as f64,
        (Rounding::Nearest, false) => value as f64,
        _ => f64::from_bits(BINARY64.round(exact_integer(value, from), rounding)),
    }
}

/// `cvt` from an integer to f16.
pub(crate) fn integer_to_f16(register: u64, from: Integer, rounding: Rounding) -> u16 {
    BINARY16.round(exact_integer(register, from), rounding) as u16
}

/// `cvt` from an integer to bf16.
pub(crate) fn integer_to_bf16(register: u64, from: Integer, rounding: Rounding) -> u16 {
    BFLOAT16.round(exact_integer(register, from), rounding) as u16
}

/// `cvt` from f32 to f16. `.relu` is [`relu_f32`] on the operand.
#[inline(always)]
pub(crate) fn f32_to_f16(x: f32, rounding: Rounding) -> u16 {
    match rounding {
        Rounding::Nearest => F16::narrow(x),
        directed => f64_to_half(f64::from(x), BINARY16, directed),
    }
}

/// `cvt` from f32 to bf16. `.relu` is [`relu_f32`] on the operand.
#[inline(always)]
pub(crate) fn f32_to_bf16(x: f32, rounding: Rounding) -> u16 {
    let is_nan = x.is_nan();
    match rounding {
        Rounding::Nearest => Bf16::narrow(x),
        Rounding::Zero if is_nan => NAN_HALF,
        Rounding::Zero => (x.to_bits() >> 16) as u16,
        directed => f64_to_half(f64::from(x), BFLOAT16, directed),
    }
}

/// `cvt` from f64 to f16.
pub(crate) fn f64_to_f16(x: f64, rounding: Rounding) -> u16 {
    f64_to_half(x, BINARY16, rounding)
}

/// `cvt` from f64 to bf16.
pub(crate) fn f64_to_bf16(x: f64, rounding: Rounding) -> u16 {
    f64_to_half(x, BFLOAT16, rounding)
}

fn f64_to_half(x: f64, format: Format, rounding: Rounding) -> u16 {
    if x.is_nan() {
        return NAN_HALF;
    }
    if x.is_infinite() {
        let sign = u16::from(x.is_sign_negative()) << 15;
        return format.infinity() as u16 | sign;
    }
    format.round(Exact::of(x), rounding) as u16
}

/// `cvt` from f32 to f64. A NaN keeps its payload.
#[inline(always)]
pub(crate) fn f32_to_f64(x: f32) -> f64 {
    let bits = x.to_bits();
    let payload = u64::from(bits & 0x007f_ffff) << 29 | 1 << 51 | 0x7ff << 52;
    let nan = payload | u64::from(bits >> 31) << 63;
    let is_nan = bits & 0x7fff_ffff > 0x7f80_0000;
    f64::from_bits(if is_nan { nan } else { f64::from(x).to_bits() })
}

/// How `cvt` rounds an f32 to the 11 significant bits of tf32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tf32Rounding {
    /// `.rna`: to nearest, ties away from zero.
    NearestAway,
    /// `.rn`: to nearest, ties to even.
    NearestEven,
    /// `.rz`: towards zero.
    Zero,
}

/// `cvt.rna.tf32.f32` and variants: an f32 whose low 13 bits are zero.
#[inline(always)]
pub(crate) fn f32_to_tf32(x: f32, rounding: Tf32Rounding) -> f32 {
    let bits = x.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let increment = match rounding {
        Tf32Rounding::NearestAway => 0x1000,
        Tf32Rounding::NearestEven => 0xfff + (bits >> 13 & 1),
        Tf32Rounding::Zero => 0,
    };
    // The low bits of infinity are zero, so it does not change.
    let rounded = bits.wrapping_add(increment) & !0x1fff;
    let is_nan = magnitude > 0x7f80_0000;
    f32::from_bits(if is_nan { NAN_F32.to_bits() } else { rounded })
}

/// An 8-bit floating-point format (OCP 8-bit floating point specification).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Float8 {
    /// 4 exponent bits, no infinity, largest number 448.
    E4M3,
    /// 5 exponent bits, the upper half of an f16, largest number 57344.
    E5M2,
}

impl Float8 {
    /// One element of `cvt.rn.satfinite` from f32: clamped to the largest number; NaN is `0x7f`.
    pub(crate) fn narrow(self, x: f32) -> u8 {
        let (format, largest) = match self {
            Float8::E4M3 => (E4M3, 448.0),
            Float8::E5M2 => (E5M2, 57344.0),
        };
        if x.is_nan() {
            return 0x7f;
        }
        let clamped = f64::from(x).clamp(-largest, largest);
        format.round(Exact::of(clamped), Rounding::Nearest) as u8
    }

    /// The same number in f16: one element of `cvt.rn.f16x2`.
    pub(crate) fn widen(self, bits: u8) -> u16 {
        match self {
            Float8::E5M2 if bits & 0x7f > 0x7c => NAN_HALF,
            Float8::E5M2 => u16::from(bits) << 8,
            Float8::E4M3 if bits & 0x7f == 0x7f => NAN_HALF,
            Float8::E4M3 => {
                // Moving the fields to their places in an f16 makes the value too small by 2^8,
                // because the exponent biases are 15 and 7.
                let magnitude = F16::widen(u16::from(bits & 0x7f) << 7);
                F16::narrow(magnitude * 256.0) | u16::from(bits & 0x80) << 8
            }
        }
    }

    /// `cvt.rn.satfinite.e4m3x2.f32 d, high, low` and the e5m2 variant, with `relu` for `.relu`.
    pub(crate) fn narrow_pair(self, high: f32, low: f32, relu: bool) -> u16 {
        let narrow = |x| self.narrow(if relu { relu_f32(x) } else { x });
        u16::from(narrow(high)) << 8 | u16::from(narrow(low))
    }

    /// `cvt.rn.f16x2.e4m3x2` and the e5m2 variant.
    pub(crate) fn widen_pair(self, pair: u16) -> u32 {
        let [low, high] = pair.to_le_bytes();
        u32::from(self.widen(high)) << 16 | u32::from(self.widen(low))
    }
}

/// `cvt.rn.f16x2.f32 d, high, low`: the first operand is the upper half.
#[inline(always)]
pub(crate) fn f32_pair_to_f16(high: f32, low: f32, rounding: Rounding) -> u32 {
    u32::from(f32_to_f16(high, rounding)) << 16 | u32::from(f32_to_f16(low, rounding))
}

/// `cvt.rn.bf16x2.f32 d, high, low`: the first operand is the upper half.
#[inline(always)]
pub(crate) fn f32_pair_to_bf16(high: f32, low: f32, rounding: Rounding) -> u32 {
    u32::from(f32_to_bf16(high, rounding)) << 16 | u32::from(f32_to_bf16(low, rounding))
}
