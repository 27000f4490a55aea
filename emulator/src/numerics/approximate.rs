//! Instructions whose results PTX only bounds: ex2, lg2, sin, cos, tanh, rcp, rsqrt, sqrt and div
//! with `.approx`, and `div.full`.
//!
//! Implements PTX ISA, "Floating-Point Instructions", for `.approx`, including special values. A
//! GPU computes these functions from tables and interpolation, and may return any number within the
//! documented error. By default the emulator returns the exact value rounded once. It is computed
//! in f64 with an error of about 2^-50, so about one result in 2^26 is not the nearest f32 but the
//! next one. A kernel must not depend on this accuracy: [`Approximation::Perturbed`] returns other
//! numbers within the documented error, chosen by a hash of the operands and a seed.
//!
//! Values that the manual lists as special (zeros, infinities, NaN) are exact in both. `.ftz` is
//! [`super::rounding::flush`] on operand and result.

use super::double::with_payload;
use super::half_precision::{Bf16, F16, Half};
use super::rounding::{Rounding, canonical, nan_if, narrow, narrow_to_odd};
use super::series;

/// The choice of a result within the documented error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Approximation {
    /// The nearest to the exact value.
    Rounded,
    /// A number chosen by the seed and the operands.
    Perturbed {
        /// Each seed gives different errors.
        seed: u64,
    },
}

/// The largest documented error of a result (PTX ISA, at each instruction).
#[derive(Clone, Copy)]
enum MaximumError {
    /// In units of the last place of the result.
    Ulps(f64),
    /// A multiple of the result.
    Relative(f64),
    /// The same for all results.
    Absolute(f64),
}

impl MaximumError {
    /// The error at a result. Only an absolute error may change a result's sign.
    #[inline(always)]
    fn at(self, exact: f64) -> f64 {
        match self {
            MaximumError::Ulps(count) => (count * unit_of_last_place(exact)).min(exact.abs()),
            MaximumError::Relative(part) => part * exact.abs(),
            MaximumError::Absolute(size) => size,
        }
    }
}

/// The distance of neighboring f32 at `x`.
#[inline(always)]
fn unit_of_last_place(x: f64) -> f64 {
    const SMALLEST: f64 = 1.0 / (1_u128 << 126) as f64 / (1 << 23) as f64;
    const PART: f64 = 1.0 / (1 << 23) as f64;
    let power_below = f64::from_bits(x.to_bits() & 0x7ff0_0000_0000_0000);
    (power_below * PART).max(SMALLEST)
}

/// A pseudorandom number in [-1, 1].
#[inline(always)]
fn hash(seed: u64, instruction: u64, operands: u64) -> f64 {
    // The finalizer of SplitMix64 (Steele, Lea and Flood, 2014), twice.
    let mix = |x: u64| {
        let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    };
    let bits = mix(mix(seed ^ instruction.wrapping_mul(0x9e37_79b9_7f4a_7c15)) ^ operands);
    (bits >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
}

impl Approximation {
    /// The f32 to return for the exact result `exact`.
    #[inline(always)]
    fn settle(self, exact: f64, error: MaximumError, instruction: u64, operands: u64) -> f32 {
        match self {
            Approximation::Rounded => exact as f32,
            Approximation::Perturbed { seed } => {
                let shift = hash(seed, instruction, operands) * error.at(exact);
                // Rounded toward the exact value, so that rounding adds no error. All bounds are at
                // least one ulp, and a possible overshoot is less than that.
                let towards = if shift > 0.0 { Rounding::Down } else { Rounding::Up };
                let moved = narrow(exact + shift, towards);
                let rounded = exact as f32;
                let is_out_of_range = rounded.is_infinite() || rounded == 0.0;
                if is_out_of_range { rounded } else { moved }
            }
        }
    }
}

/// 2^-`power`.
const fn two_to_minus(power: u32) -> f64 {
    1.0 / (1_u64 << power) as f64
}

/// `ex2.approx.f32`: 2^x within 2 ulp. 1 for zeros and subnormals.
#[inline(always)]
pub(crate) fn ex2(x: f32, approximation: Approximation) -> f32 {
    let exact = series::exp2(f64::from(x));
    let value = approximation.settle(exact, MaximumError::Ulps(2.0), 1, x.to_bits().into());
    let is_special = x.is_infinite() || x.abs() < f32::MIN_POSITIVE;
    let value = if is_special { exact as f32 } else { value };
    nan_if(x.is_nan(), value)
}

/// `lg2.approx.f32`: log2(x), with an absolute error of 2^-22 for x in (0.5, 2) and a relative
/// error of 2^-22 elsewhere.
#[inline(always)]
pub(crate) fn lg2(x: f32, approximation: Approximation) -> f32 {
    const ERROR: f64 = two_to_minus(22);
    let is_near_one = x > 0.5 && x < 2.0;
    let error =
        if is_near_one { MaximumError::Absolute(ERROR) } else { MaximumError::Relative(ERROR) };
    let positive = if x > 0.0 && x < f32::INFINITY { x } else { 1.0 };
    let exact = series::log2(f64::from(positive));
    let value = approximation.settle(exact, error, 2, x.to_bits().into());
    let value = if x == f32::INFINITY { f32::INFINITY } else { value };
    let value = if x == 0.0 { f32::NEG_INFINITY } else { value };
    nan_if(x < 0.0 || x.is_nan(), value)
}

/// `rcp.approx.f32`: 1/x within 1 ulp.
#[inline(always)]
pub(crate) fn rcp(x: f32, approximation: Approximation) -> f32 {
    let exact = 1.0 / f64::from(x);
    let value = approximation.settle(exact, MaximumError::Ulps(1.0), 3, x.to_bits().into());
    let is_special = x == 0.0 || x.is_infinite() || x.is_nan();
    if is_special { canonical(exact as f32) } else { value }
}

/// `sqrt.approx.f32`: within a relative error of 2^-23.
#[inline(always)]
pub(crate) fn sqrt(x: f32, approximation: Approximation) -> f32 {
    let exact = f64::from(x).sqrt();
    let error = MaximumError::Relative(two_to_minus(23));
    let value = approximation.settle(exact, error, 4, x.to_bits().into());
    let is_number = x > 0.0 && x < f32::INFINITY;
    if is_number { value } else { canonical(x.sqrt()) }
}

/// `rsqrt.approx.f32`: 1/sqrt(x) within a relative error of 2^-22.9.
#[inline(always)]
pub(crate) fn rsqrt(x: f32, approximation: Approximation) -> f32 {
    const ERROR: f64 = two_to_minus(23) * 1.071_773_462_536_293;
    let exact = 1.0 / f64::from(x).sqrt();
    let value = approximation.settle(exact, MaximumError::Relative(ERROR), 5, x.to_bits().into());
    let is_number = x > 0.0 && x < f32::INFINITY;
    if is_number { value } else { canonical(exact as f32) }
}

/// `div.approx.f32`: a/b within 2 ulp for |b| in [2^-126, 2^126]. For larger |b| the manual
/// specifies 0, or NaN if a is infinite. For smaller |b| the result is unspecified; here it is a/b.
#[inline(always)]
pub(crate) fn div_approx(a: f32, b: f32, approximation: Approximation) -> f32 {
    const LARGEST: f32 = f32::from_bits((126 + 127) << 23);
    let quotient = div_full(a, b, approximation);
    let sign = (a.to_bits() ^ b.to_bits()) & 0x8000_0000;
    let beyond = nan_if(!a.is_finite(), f32::from_bits(sign));
    let is_beyond = b.abs() > LARGEST && b.is_finite();
    if is_beyond { beyond } else { quotient }
}

/// `div.full.f32`: a/b within 2 ulp.
#[inline(always)]
pub(crate) fn div_full(a: f32, b: f32, approximation: Approximation) -> f32 {
    let exact = f64::from(a) / f64::from(b);
    let operands = u64::from(a.to_bits()) << 32 | u64::from(b.to_bits());
    let value = approximation.settle(exact, MaximumError::Ulps(2.0), 6, operands);
    let is_special = exact == 0.0 || exact.is_infinite() || exact.is_nan();
    if is_special { canonical(exact as f32) } else { value }
}

/// Error of sin and cos. The manual allows 2^-20.5 up to 2 pi and 2^-14.7 up to 100 pi. Beyond that
/// it specifies no error; this implementation keeps 2^-14.7.
#[inline(always)]
fn error_of_angle(x: f32) -> MaximumError {
    const NEAR: f64 = two_to_minus(20) * std::f64::consts::FRAC_1_SQRT_2;
    const FAR: f64 = two_to_minus(15) * 1.231_144_413_344_916_3;
    let is_near = x.abs() <= std::f32::consts::TAU;
    MaximumError::Absolute(if is_near { NEAR } else { FAR })
}

/// `sin.approx.f32`, of an angle in radians.
#[inline(always)]
pub(crate) fn sin(x: f32, approximation: Approximation) -> f32 {
    let angle = if x.is_finite() { x } else { 0.0 };
    let (exact, _) = series::sin_cos(f64::from(angle));
    let value = approximation.settle(exact, error_of_angle(x), 7, x.to_bits().into());
    let value = if x == 0.0 { x } else { value.clamp(-1.0, 1.0) };
    nan_if(!x.is_finite(), value)
}

/// `cos.approx.f32`, of an angle in radians.
#[inline(always)]
pub(crate) fn cos(x: f32, approximation: Approximation) -> f32 {
    let angle = if x.is_finite() { x } else { 0.0 };
    let (_, exact) = series::sin_cos(f64::from(angle));
    let value = approximation.settle(exact, error_of_angle(x), 8, x.to_bits().into());
    let value = if x == 0.0 { 1.0 } else { value.clamp(-1.0, 1.0) };
    nan_if(!x.is_finite(), value)
}

/// `tanh.approx.f32`: within a relative error of 2^-11.
#[inline(always)]
pub(crate) fn tanh(x: f32, approximation: Approximation) -> f32 {
    let exact = series::tanh(f64::from(x));
    let error = MaximumError::Relative(two_to_minus(11));
    let value = approximation.settle(exact, error, 9, x.to_bits().into());
    let is_special = x == 0.0 || x.is_infinite();
    let value = if is_special { exact as f32 } else { value.clamp(-1.0, 1.0) };
    nan_if(x.is_nan(), value)
}

/// The documented errors of a 16-bit format's instructions, minus the half ulp (at its largest)
/// that rounding to the format adds.
pub(crate) trait ApproximateHalf: Half {
    /// The error of ex2, relative to the result.
    const EX2_ERROR: f64;
    /// The absolute error of tanh.
    const TANH_ERROR: f64;
}

impl ApproximateHalf for F16 {
    /// 2^-9.9.
    const EX2_ERROR: f64 = two_to_minus(10) * 1.071_773_462_536_293 - two_to_minus(11);
    /// 2^-10.987.
    const TANH_ERROR: f64 = two_to_minus(11) * 1.009_051_633_844_681_3 - two_to_minus(12);
}

impl ApproximateHalf for Bf16 {
    const EX2_ERROR: f64 = two_to_minus(7) - two_to_minus(8);
    const TANH_ERROR: f64 = two_to_minus(8) - two_to_minus(9);
}

/// `ex2.approx.f16`, `ex2.approx.ftz.bf16`: 2^x in a 16-bit format.
#[inline(always)]
pub(crate) fn ex2_half<H: ApproximateHalf>(x: u16, approximation: Approximation) -> u16 {
    let wide = H::widen(x);
    let exact = series::exp2(f64::from(wide));
    let is_special = wide == 0.0 || wide.is_infinite();
    let value = match approximation {
        Approximation::Perturbed { .. } if !is_special => {
            approximation.settle(exact, MaximumError::Relative(H::EX2_ERROR), 10, x.into())
        }
        _ => narrow_to_odd(exact),
    };
    H::narrow(nan_if(wide.is_nan(), value))
}

/// `tanh.approx.f16`, `tanh.approx.bf16`.
#[inline(always)]
pub(crate) fn tanh_half<H: ApproximateHalf>(x: u16, approximation: Approximation) -> u16 {
    let wide = H::widen(x);
    let exact = series::tanh(f64::from(wide));
    let is_special = wide == 0.0 || wide.is_infinite();
    let value = match approximation {
        Approximation::Perturbed { .. } if !is_special => approximation
            .settle(exact, MaximumError::Absolute(H::TANH_ERROR), 11, x.into())
            .clamp(-1.0, 1.0),
        _ => narrow_to_odd(exact),
    };
    H::narrow(nan_if(wide.is_nan(), value))
}

/// `rsqrt.approx.f64`: 1 / square root, with two roundings. The manual specifies no error.
#[inline(always)]
pub(crate) fn rsqrt_f64(x: f64) -> f64 {
    with_payload(1.0 / x.sqrt(), [x])
}

/// `rcp.approx.ftz.f64`: the reciprocal of the upper 32 bits of the operand, in the upper 32 bits
/// of the result. The operand's lower bits are ignored, the result's are zero. Subnormal operands
/// and results become zeros.
#[inline(always)]
pub(crate) fn coarse_rcp_f64(x: f64) -> f64 {
    coarse(1.0 / upper_word(x))
}

/// `rsqrt.approx.ftz.f64`: 1 / square root of the upper 32 bits of the operand, in the upper 32
/// bits of the result. The operand's lower bits are ignored, the result's are zero. Subnormal
/// operands become zeros.
#[inline(always)]
pub(crate) fn coarse_rsqrt_f64(x: f64) -> f64 {
    // The root of minus zero is minus zero; its reciprocal is minus infinity, as the manual
    // specifies.
    coarse(1.0 / upper_word(x).sqrt())
}

/// The upper 32 bits, with subnormals flushed.
#[inline(always)]
fn upper_word(x: f64) -> f64 {
    flush_f64(f64::from_bits(x.to_bits() & 0xffff_ffff_0000_0000))
}

#[inline(always)]
fn flush_f64(x: f64) -> f64 {
    let bits = x.to_bits();
    let is_tiny = bits & 0x7ff0_0000_0000_0000 == 0;
    f64::from_bits(if is_tiny { bits & 1 << 63 } else { bits })
}

/// Rounds to the 20 fraction bits of the upper word, flushes subnormals, and returns the canonical
/// NaN for NaN.
#[inline(always)]
fn coarse(x: f64) -> f64 {
    const NAN: u64 = 0x7fff_ffff_0000_0000;
    let bits = x.to_bits();
    let is_odd = bits >> 32 & 1;
    let rounded = bits.wrapping_add(0x7fff_ffff + is_odd) & 0xffff_ffff_0000_0000;
    let is_nan = bits & (u64::MAX >> 1) > 0x7ff0_0000_0000_0000;
    flush_f64(f64::from_bits(if is_nan { NAN } else { rounded }))
}
