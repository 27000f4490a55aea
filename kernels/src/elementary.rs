//! Elementary functions of f32, built from operations that IEEE 754 defines exactly.
//!
//! The GPU's own `ex2.approx`, `lg2.approx`, `sin.approx` and `tanh.approx` are fast, but their
//! bits are not specified and their errors are large enough to affect training (`tanh.approx` has
//! 11 correct bits). A kernel that loads and stores every element is memory-bound, which hides some
//! twenty fused multiply-adds per element. These functions return the same bits on every GPU and in
//! the emulator.
//!
//! Errors are in units in the last place (ulp) of the true value. They are the largest found by
//! comparing every 37th f32 with the f64 result. Polynomials are minimax fits (Remez).

use crate::assembler::{F32, Kernel, Pred, U32};

/// Adding and subtracting 1.5 * 2^23 rounds to the nearest integer, which is then in the low bits
/// of the sum.
pub const ROUND: f32 = 12_582_912.0;

/// The first part of ln 2. It has so few digits that its product with an exponent is exact.
pub const LN_2_HIGH: f32 = 0.693_359_4;
/// The second part of ln 2.
pub const LN_2_LOW: f32 = -2.121_944_4e-4;

/// q in exp(r) = 1 + r + r^2 q(r) on |r| <= ln(2) / 2. Relative error less than 2^-28.
pub const EXP_TAIL: [f32; 5] =
    [0.499_999_94, 0.166_665_21, 0.041_668_39, 0.008_368_745, 0.001_381_453_9];

/// q in ln(1 + r) = r - r^2 / 2 + r^3 q(r) on sqrt(1/2) <= 1 + r < sqrt(2). Relative error less
/// than 2^-27.
pub const LN_TAIL: [f32; 8] = [
    0.333_333_3,
    -0.250_008_2,
    0.200_012_27,
    -0.166_233_57,
    0.142_017_57,
    -0.131_601_83,
    0.127_615_76,
    -0.076_344_97,
];

/// q in sin(r) = r + r^3 q(r^2) on |r| <= pi / 4. Relative error less than 2^-27.
const SIN_TAIL: [f32; 3] = [-0.166_666_55, 0.008_332_156, -1.951_463_2e-4];

/// q in cos(r) = 1 - r^2 / 2 + r^4 q(r^2) on |r| <= pi / 4. Error less than 2^-33.
const COS_TAIL: [f32; 3] = [0.041_666_646, -0.001_388_736_2, 2.443_773_2e-5];

/// q in tanh(x) = x + x^3 q(x^2) on |x| <= 0.55. Relative error less than 2^-29.
const TANH_TAIL: [f32; 5] =
    [-0.333_333_16, 0.133_325_86, -0.053_852_312, 0.021_071_682, -0.006_274_243];

/// Up to this |x|, erf is a polynomial in x; above, 1 minus an exponential.
pub const ERF_SMALL: f32 = 0.95;

/// From this |x| on, erf(x) rounds to 1 or -1.
pub const ERF_SATURATED: f32 = 4.0;

/// q in erf(x) = x + x q(x^2) on |x| <= [`ERF_SMALL`]. Relative error less than 2^-30.
pub const ERF_TAIL: [f32; 7] = [
    0.128_379_17,
    -0.376_126_32,
    0.112_836_64,
    -0.026_857_705,
    0.005_196_952,
    -8.097_703e-4,
    8.185_093_6e-5,
];

/// p in erf(x) = 1 - e^-p(x) on [`ERF_SMALL`] <= x <= [`ERF_SATURATED`]. Relative error less than
/// 2^-29.
pub const ERF_EXPONENT: [f32; 7] = [
    2.447_225e-4,
    1.127_474_9,
    0.637_517_1,
    0.103_640_26,
    -0.022_087_61,
    0.003_008_529,
    -1.924_251_7e-4,
];

/// pi / 2 in three parts, each an f32.
const HALF_PI: [f32; 3] = [1.570_796_4, -4.371_139e-8, -1.715_124_5e-15];

/// Below this |x|, the three parts of [`HALF_PI`] give x - n pi / 2 accurately enough.
const LARGEST_SIMPLE_ANGLE: f32 = 105_615.0;

/// The binary digits of the fraction 2 / pi = 0.636..., after one word of zeros.
const TWO_OVER_PI: [u32; 7] =
    [0, 0xa2f9_836e, 0x4e44_1529, 0xfc27_57d1, 0xf534_ddc0, 0xdb62_9599, 0x3c43_9041];

/// e^x, with an error of at most 1 ulp over all of f32, subnormal results included. The result is 0
/// below -104 and infinity above 88.73.
///
/// x = n ln 2 + r with an integer n, so e^x = 2^n e^r.
#[track_caller]
pub fn exp<'k>(x: F32<'k>) -> F32<'k> {
    let x = x.max(-104.0).min(89.0);
    let n = x.fma(std::f32::consts::LOG2_E, ROUND) - ROUND;
    let r = n.fma(-LN_2_HIGH, x);
    let r = n.fma(-LN_2_LOW, r);
    let mantissa = (r * r).fma(polynomial(r, &EXP_TAIL), r) + 1.0;

    // 2^n can overflow or underflow f32 even if the result does not. Its two factors 2^(n/2) never
    // do.
    let half = n.fma(0.5, ROUND) - ROUND;
    mantissa * power_of_two(half) * power_of_two(n - half)
}

/// 2^n for an integer n in [-126, 127].
#[track_caller]
fn power_of_two<'k>(n: F32<'k>) -> F32<'k> {
    // The low bits of the sum are n + 127. The shift moves them to the exponent field of an f32.
    ((n + (ROUND + 127.0)).to_bits() << 23).to_f32_bits()
}

/// The natural logarithm, with an error of at most 0.9 ulp over all positive f32, subnormals
/// included. The result is minus infinity at 0 and NaN below.
///
/// x = 2^e (1 + r) with 1 + r in [sqrt(1/2), sqrt(2)), so ln x = e ln 2 + ln(1 + r).
#[track_caller]
pub fn ln<'k>(x: F32<'k>) -> F32<'k> {
    let subnormal = x.lt(f32::MIN_POSITIVE);
    let normal = subnormal.select(x * 8_388_608.0, x);
    let shift = subnormal.select(x.kernel().constant(23.0), 0.0);

    let sqrt_half = std::f32::consts::FRAC_1_SQRT_2.to_bits();
    let offset = normal.to_bits() - sqrt_half;
    let mantissa = ((offset & 0x007f_ffff) + sqrt_half).to_f32_bits();

    // For an integer e < 2^23, e is the low bits of the float 2^23 + e.
    let biased = (offset + (127 << 23)) >> 23;
    let biased = (biased | 8_388_608.0f32.to_bits()).to_f32_bits();
    let exponent = biased - (8_388_608.0 + 127.0) - shift;

    // Adds small terms first: r^3 q(r) + e low - r^2 / 2, then r, then e high.
    let r = mantissa - 1.0;
    let r2 = r * r;
    let tail = r2 * r * polynomial(r, &LN_TAIL);
    let tail = r2.fma(-0.5, exponent.fma(LN_2_LOW, tail));
    let y = exponent.fma(LN_2_HIGH, r + tail);

    let y = x.lt(f32::INFINITY).select(y, x);
    let y = x.lt(0.0).select(f32::NAN, y);
    x.equals(0.0).select(f32::NEG_INFINITY, y)
}

/// 1 / (1 + e^-x), with an error of at most 2.5 ulp for x > -87. The result is 0 below -88.73.
#[track_caller]
pub fn sigmoid<'k>(x: F32<'k>) -> F32<'k> {
    (exp(-x) + 1.0).reciprocal()
}

/// The hyperbolic tangent, with an error of at most 1.5 ulp over all of f32.
#[track_caller]
pub fn tanh<'k>(x: F32<'k>) -> F32<'k> {
    let magnitude = x.abs();
    let x2 = x * x;
    let small = (x * x2).fma(polynomial(x2, &TANH_TAIL), x);

    // 1 - 2 / (e^2|x| + 1) loses digits only near 0.
    let large = -(exp(magnitude + magnitude) + 1.0).reciprocal();
    let large = large.fma(2.0, x.kernel().constant(1.0));
    magnitude.lt(0.55).select(small, large.copysign(x))
}

/// The error function 2 / sqrt(pi) times the integral of e^-t^2 from 0 to x, with an error of at
/// most 1.2 ulp over all of f32.
#[track_caller]
pub fn erf<'k>(x: F32<'k>) -> F32<'k> {
    let magnitude = x.abs();
    let small = polynomial(x * x, &ERF_TAIL).fma(x, x);

    let exponent = polynomial(magnitude.min(ERF_SATURATED), &ERF_EXPONENT);
    let large = -exp(-exponent) + 1.0;
    // NaN is compared as large, but `min` drops it.
    let y = magnitude.lt(ERF_SMALL).select(small, large.copysign(x));
    x.equals(x).select(y, x)
}

/// The sine of an angle in radians, with an error of at most 1.6 ulp over all finite f32; NaN at
/// infinity.
#[track_caller]
pub fn sin<'k>(x: F32<'k>) -> F32<'k> {
    let (r, quadrant) = reduce_angle(x);
    sine_in_quadrant(r, quadrant)
}

/// The cosine of an angle in radians, with an error of at most 1.6 ulp over all finite f32; NaN at
/// infinity.
#[track_caller]
pub fn cos<'k>(x: F32<'k>) -> F32<'k> {
    let (r, quadrant) = reduce_angle(x);
    sine_in_quadrant(r, quadrant + 1)
}

/// sin(r + quadrant * pi / 2) for |r| <= pi / 4. Only the lowest two bits of `quadrant` are used.
#[track_caller]
fn sine_in_quadrant<'k>(r: F32<'k>, quadrant: U32<'k>) -> F32<'k> {
    let one = r.kernel().constant(1.0);
    let r2 = r * r;
    let sine = (r * r2).fma(polynomial(r2, &SIN_TAIL), r);
    let cosine = (r2 * r2).fma(polynomial(r2, &COS_TAIL), r2.fma(-0.5, one));

    let odd = (quadrant & 1).differs(0);
    let value = odd.select(cosine, sine);
    let sign = (quadrant & 2) << 30;
    (value.to_bits() ^ sign).to_f32_bits()
}

/// Returns r and `quadrant` such that x = r + quadrant * pi / 2 modulo 2 pi, with |r| <= pi / 4.
#[track_caller]
fn reduce_angle<'k>(x: F32<'k>) -> (F32<'k>, U32<'k>) {
    let k = x.kernel();
    let rounded = x.fma(std::f32::consts::FRAC_2_PI, ROUND);
    let n = rounded - ROUND;
    let near = HALF_PI.iter().fold(x, |r, part| n.fma(-part, r));
    let (r, quadrant) = (k.var(near), k.var(rounded.to_bits()));

    let simple = x.abs().lt(LARGEST_SIMPLE_ANGLE);
    k.if_(!simple, || {
        let (far, turns) = reduce_large_angle(x);
        r.set(far);
        quadrant.set(turns);
    });
    (r.get(), quadrant.get())
}

/// [`reduce_angle`] for |x| >= [`LARGEST_SIMPLE_ANGLE`], in fixed-point arithmetic with only those
/// digits of 2 / pi that affect the result (Payne and Hanek 1983).
///
/// |x| = m 2^(t - 31) with a 32-bit integer m. The digits of 2 / pi * 2^(t - 31) with weight 4 and
/// above contribute multiples of 4 to x * 2 / pi, which are whole turns, so they are skipped. The
/// next 96 digits give 62 digits of the fraction. That is enough, since no f32 is closer to a
/// multiple of pi / 2 than about 2^-30.
#[track_caller]
fn reduce_large_angle<'k>(x: F32<'k>) -> (F32<'k>, U32<'k>) {
    let bits = x.to_bits();
    let mantissa = (bits << 8) | 0x8000_0000;
    let skipped = ((bits >> 23) & 255) - 128;
    let [high, middle, low] = digits_of_two_over_pi(skipped);

    // The sum has 2 integer bits and 62 fraction bits.
    let turns = (mantissa * high).wide() << 32;
    let turns = turns + mantissa.mul_wide(middle);
    let turns = turns + mantissa.mul_high(low).wide();
    let quadrant = ((turns + (1 << 61)) >> 62).low();

    let fraction = (turns << 2).signed().to_f64();
    let unit = std::f64::consts::FRAC_PI_2 * 0.5f64.powi(64);
    let r = (fraction * unit).to_f32();

    let finite = x.abs().lt(f32::INFINITY);
    let r = (r.to_bits() ^ (bits & 0x8000_0000)).to_f32_bits();
    let negated = (!quadrant) + 1;
    let quadrant = x.lt(0.0).select(negated, quadrant);
    (finite.select(r, f32::NAN), quadrant)
}

/// The 96 digits of [`TWO_OVER_PI`] after the first `skipped`, which is at most 127.
#[track_caller]
fn digits_of_two_over_pi<'k>(skipped: U32<'k>) -> [U32<'k>; 3] {
    let (word, shift) = (skipped >> 5, skipped & 31);
    let k: &'k Kernel = skipped.kernel();
    let is: [Pred<'k>; 3] = [1, 2, 3].map(|index| word.equals(index));
    let words = [0, 1, 2, 3].map(|first: usize| {
        let value = k.constant(TWO_OVER_PI[first]);
        let later = is.iter().zip(&TWO_OVER_PI[first + 1..]);
        later.fold(value, |value, (is, word)| is.select(*word, value))
    });

    // A shift by 32 gives 0.
    let rest = k.constant(32u32) - shift;
    [0, 1, 2].map(|i| (words[i] << shift) | (words[i + 1] >> rest))
}

/// c[0] + c[1] x + c[2] x^2 + ..., by Horner's rule.
#[track_caller]
fn polynomial<'k>(x: F32<'k>, coefficients: &[f32]) -> F32<'k> {
    let [lower @ .., highest] = coefficients else {
        return x.kernel().constant(0.0);
    };
    let mut sum = x.kernel().constant(*highest);
    for c in lower.iter().rev() {
        sum = sum.fma(x, *c);
    }
    sum
}
