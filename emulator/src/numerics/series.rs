//! Elementary functions in f64 with an error of a few ulps: 2^x, log2, sine, cosine and tanh of f32
//! arguments.
//!
//! They give the approximate instructions the same bits on every machine and in every build, which
//! the platform's libm does not guarantee, and loops over them vectorize. Each function is a nearly
//! exact range reduction followed by a Taylor polynomial, which is short because the reduced
//! argument is small. Multiplications and additions stay separate: a fused multiply-add is slow on
//! processors without one, and gives other results on those with one.

use std::f64::consts::{FRAC_PI_2, LN_2, LOG2_E};

/// Adding and subtracting this rounds an f64 of at most 2^51 to an integer, ties to even. The low
/// bits of the sum are that integer.
const TO_INTEGER: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52

/// The nearest integer, and the same as the low bits of a word.
#[inline(always)]
fn nearest_integer(x: f64) -> (f64, i64) {
    let shifted = x + TO_INTEGER;
    let bits = shifted.to_bits().wrapping_sub(TO_INTEGER.to_bits());
    (shifted - TO_INTEGER, bits as i64)
}

/// 2^k for -1022 <= k <= 1023.
#[inline(always)]
fn power_of_two(k: i64) -> f64 {
    f64::from_bits((k.wrapping_add(1023) as u64) << 52)
}

/// The polynomial with these coefficients, highest power first, by Horner's rule.
#[inline(always)]
fn polynomial<const N: usize>(x: f64, coefficients: [f64; N]) -> f64 {
    let mut sum = 0.0;
    for coefficient in coefficients {
        sum = sum * x + coefficient;
    }
    sum
}

/// 1/n!
const fn inverse_factorial(n: u32) -> f64 {
    let mut product = 1_u64;
    let mut i = 2;
    while i <= n as u64 {
        product *= i;
        i += 1;
    }
    1.0 / product as f64
}

/// `N` coefficients 1/n! for n = `highest`, `highest - 2`, .., with alternating signs. The last one
/// is positive.
const fn alternating<const N: usize>(highest: u32) -> [f64; N] {
    let mut coefficients = [0.0; N];
    let mut i = 0;
    while i < N {
        let sign = if (N - 1 - i).is_multiple_of(2) { 1.0 } else { -1.0 };
        coefficients[i] = sign * inverse_factorial(highest - 2 * i as u32);
        i += 1;
    }
    coefficients
}

/// The coefficients of (e^y - 1) / y: 1/13!, 1/12!, .., 1/1!.
const EXPONENTIAL: [f64; 13] = {
    let mut coefficients = [0.0; 13];
    let mut i = 0;
    while i < 13 {
        coefficients[i] = inverse_factorial(13 - i as u32);
        i += 1;
    }
    coefficients
};

/// The coefficients of atanh(s) / s in powers of s^2: 1/23, 1/21, .., 1/1.
const AREA_TANGENT: [f64; 12] = {
    let mut coefficients = [0.0; 12];
    let mut i = 0;
    while i < 12 {
        coefficients[i] = 1.0 / (23 - 2 * i) as f64;
        i += 1;
    }
    coefficients
};

/// The coefficients of sin(r) / r and of cos(r) in powers of r^2.
const SINE: [f64; 9] = alternating(17);
const COSINE: [f64; 10] = alternating(18);

/// Returns 2^k and 2^r - 1, where 2^x = 2^k + 2^k (2^r - 1), k is an integer and |r| <= 1/2. |x|
/// must be at most 1000.
#[inline(always)]
fn split_exp2(x: f64) -> (f64, f64) {
    let (k, k_bits) = nearest_integer(x);
    let y = (x - k) * LN_2;
    (power_of_two(k_bits), y * polynomial(y, EXPONENTIAL))
}

/// 2^x with the range of f32: constant below -200 and above 200.
#[inline(always)]
pub(crate) fn exp2(x: f64) -> f64 {
    let (scale, rest) = split_exp2(x.clamp(-200.0, 200.0));
    scale + scale * rest
}

/// log2(x) for positive, finite, normal x.
///
/// x = m 2^k with m in [1/sqrt(2), sqrt(2)) and log2(m) = 2/ln(2) atanh((m - 1) / (m + 1)).
#[inline(always)]
pub(crate) fn log2(x: f64) -> f64 {
    // Adding to the bits carries into the exponent from sqrt(2) on.
    const SQRT_2_TO_2: u64 = (2_f64.to_bits()) - std::f64::consts::SQRT_2.to_bits();
    let exponent = x.to_bits().wrapping_add(SQRT_2_TO_2) >> 52;
    let mantissa = f64::from_bits(x.to_bits().wrapping_sub(exponent.wrapping_sub(1023) << 52));
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let log = 2.0 * LOG2_E * s * polynomial(s * s, AREA_TANGENT);
    (exponent as i32).wrapping_sub(1023) as f64 + log
}

/// tanh(x) = t / (t + 2) with t = e^(2|x|) - 1, with the sign of x.
#[inline(always)]
pub(crate) fn tanh(x: f64) -> f64 {
    let doubled = (2.0 * LOG2_E * x.abs()).min(200.0);
    let (scale, rest) = split_exp2(doubled);
    let t = scale * rest + (scale - 1.0);
    (t / (t + 2.0)).copysign(x)
}

/// Sine and cosine of a finite f32.
#[inline(always)]
pub(crate) fn sin_cos(x: f64) -> (f64, f64) {
    let (quadrant, r) = if x.abs() < SMALL_ANGLE { reduce_small(x) } else { reduce_large(x) };
    let square = r * r;
    let (sine, cosine) = (r * polynomial(square, SINE), polynomial(square, COSINE));

    let (sine, cosine) = if quadrant & 1 == 0 { (sine, cosine) } else { (cosine, sine) };
    let sine = if quadrant & 2 == 0 { sine } else { -sine };
    let cosine = if quadrant.wrapping_add(1) & 2 == 0 { cosine } else { -cosine };
    (sine, cosine)
}

/// The quotient of an angle up to this value and pi/2 has at most 25 bits.
const SMALL_ANGLE: f64 = 33_554_432.0;

/// x = q pi/2 + r with |r| <= pi/4, after Cody and Waite: pi/2 in three parts. The first two have
/// 27 bits, so their products with q are exact.
#[inline(always)]
fn reduce_small(x: f64) -> (i64, f64) {
    const FIRST: f64 = f64::from_bits(0x3ff9_21fb_5400_0000);
    const SECOND: f64 = f64::from_bits(0x3e11_0b46_1000_0000);
    const THIRD: f64 = f64::from_bits(0x3c5a_6263_3145_c06e);
    let (q, q_bits) = nearest_integer(x * (1.0 / FRAC_PI_2));
    (q_bits, ((x - q * FIRST) - q * SECOND) - q * THIRD)
}

/// The first 256 bits of 2/pi after the binary point.
const TWO_OVER_PI: [u64; 4] =
    [0xa2f9_836e_4e44_1529, 0xfc27_57d1_f534_ddc0, 0xdb62_9599_3c43_9041, 0xfe51_63ab_debb_c561];

/// x = q pi/2 + r with |r| <= pi/4, after Payne and Hanek: multiplies only the bits of 2/pi that
/// affect the quadrant and the fraction of x * 2/pi. x is an f32 of at least 2^25.
#[inline(never)]
fn reduce_large(x: f64) -> (i64, f64) {
    // |x| = significand 2^exponent with 24 bits, and 2 <= exponent <= 104.
    let exponent = (x.to_bits() >> 52 & 0x7ff) as u32 - 1023 - 23;
    let significand = (x.to_bits() & ((1 << 52) - 1) | 1 << 52) >> 29;

    // 2^exponent 2/pi modulo 4 in units of 2^-126, and so x * 2/pi modulo 4.
    let factor = bits_of_two_over_pi(exponent - 2);
    let quarters = factor.wrapping_mul(u128::from(significand));
    let quadrant = (quarters.wrapping_add(1 << 125) >> 126) as i64;
    let rest = quarters.wrapping_sub((quadrant as u128) << 126) as i128;

    const UNIT: f64 = 1.0 / (1_u128 << 126) as f64;
    let r = rest as f64 * UNIT * FRAC_PI_2;
    if x < 0.0 { (-quadrant, -r) } else { (quadrant, r) }
}

/// 128 bits of 2/pi from bit `start` after the binary point; `start` is below 128.
fn bits_of_two_over_pi(start: u32) -> u128 {
    let (word, shift) = ((start / 64) as usize, start % 64);
    let both = u128::from(TWO_OVER_PI[word]) << 64 | u128::from(TWO_OVER_PI[word + 1]);
    let next = u128::from(TWO_OVER_PI[word + 2]);
    both << shift | next << shift >> 64
}
