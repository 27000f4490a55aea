//! The quantile function of the normal distribution, with the same operations as the CPU
//! implementation, so that both give the same bits. Nothing is fused, and both use these constants.
//!
//! Runs are reproducible only as long as these constants do not change.

use crate::assembler::{F32, U32};

/// Numerator of degree 6 in w, lowest power first.
pub const NUMERATOR: [f32; 7] = [
    1.253_314_1,
    0.447_568_54,
    0.091_099_15,
    0.012_549_007,
    1.142_323_4e-3,
    5.992_182_2e-5,
    1.952_792e-7,
];

/// Denominator of degree 5 in w, lowest power first.
pub const DENOMINATOR: [f32; 6] =
    [1.0, 0.095_308_33, 0.034_704_31, 2.317_508_4e-3, 2.500_866_8e-4, 3.794_476_2e-6];

/// ln(1 + r) = r + r^2 tail(r) for sqrt(1/2) <= 1 + r < sqrt(2), lowest power first.
pub const LN_TAIL: [f32; 8] = [
    -0.499_999_82,
    0.333_342_25,
    -0.250_024_62,
    0.199_535_8,
    -0.165_529_43,
    0.149_801_88,
    -0.144_380_3,
    0.087_265_33,
];

/// The bits of sqrt(1/2), rounded down.
pub const SQRT_HALF: u32 = 0x3f35_04f3;

/// 2^-32.
pub const STEP: f32 = 1.0 / (1u64 << 32) as f32;

/// The standard normal quantile of (word + 1/2) / 2^32.
#[track_caller]
pub fn normal<'k>(word: U32<'k>) -> F32<'k> {
    let upper = word.signed().lt(0);
    let from_end = upper.select(!word, word);
    // Flipping the bits of a 31-bit number subtracts it from 2^31 - 1.
    let from_middle = from_end ^ 0x7fff_ffff;
    let p = (from_end.signed().to_f32() + 0.5) * STEP;
    let q = (from_middle.signed().to_f32() + 0.5) * (2.0 * STEP);

    let w = -ln((p * 2.0) * (q + 1.0));
    let size = q * (horner(w, &NUMERATOR) / horner(w, &DENOMINATOR));
    upper.select(size, -size)
}

/// The natural logarithm of a positive, normal f32.
#[track_caller]
fn ln<'k>(x: F32<'k>) -> F32<'k> {
    let bits = x.to_bits();
    let exponent = (bits - SQRT_HALF).signed() >> 23;
    let r = (bits - (exponent.unsigned() << 23)).to_f32_bits() - 1.0;
    exponent.to_f32() * std::f32::consts::LN_2 + (r + (r * r) * horner(r, &LN_TAIL))
}

/// The polynomial with these coefficients, lowest power first. Not fused.
#[track_caller]
fn horner<'k>(x: F32<'k>, coefficients: &[f32]) -> F32<'k> {
    let [lower @ .., highest] = coefficients else {
        return x.kernel().constant(0.0);
    };
    let start = x.kernel().constant(*highest);
    lower.iter().rev().fold(start, |sum, c| sum * x + *c)
}
