//! Vectorizable elementary functions of f32: no tables, no branches, no libm calls.
//!
//! Each function has two forms that share one source. `exp_f32s(simd, x)` works on a vector of
//! [`pulp::Simd`]. `exp(x)` is the same code on [`pulp::Scalar`], for plain loops; the compiler
//! vectorizes it when the loop runs inside [`pulp::Arch::dispatch`].
//!
//! Both forms fuse multiply and add, so they compute the same bits at every SIMD level. A processor
//! without the instruction (x86 before 2013) calls a slow function of the C library instead.

use meshgrad_kernels::elementary::{
    ERF_EXPONENT, ERF_SATURATED, ERF_SMALL, ERF_TAIL, EXP_TAIL, LN_2_HIGH, LN_2_LOW, LN_TAIL, ROUND,
};
use pulp::{Scalar, Simd};

/// The smallest x whose e^x is a normal number: ln 2^-126, rounded towards 0.
const LN_MIN_POSITIVE: f32 = -87.336_54;

/// e^x. Error at most 1.1 ulp over all of f32, subnormal results included; 0 below -104, infinity
/// above 88.73.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    exp_f32s(Scalar, x)
}

/// 1 / (1 + e^-x). Error at most 3 ulp for x > -87; below -88.38 it is 0.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    sigmoid_f32s(Scalar, x)
}

/// The natural logarithm. Error at most 1.5 ulp over all positive f32, subnormals included; minus
/// infinity at 0, NaN below.
#[inline(always)]
pub(crate) fn ln(x: f32) -> f32 {
    ln_f32s(Scalar, x)
}

/// The error function. Error at most 1.2 ulp over all of f32.
#[inline(always)]
pub(crate) fn erf(x: f32) -> f32 {
    erf_f32s(Scalar, x)
}

/// [`exp`] of each lane.
#[inline(always)]
pub(crate) fn exp_f32s<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let (mantissa, exponent) = exp_parts(simd, clamp(simd, x, -104.0, 89.0));

    // 2^exponent can overflow or underflow where the result does not; 2^(exponent / 2) cannot.
    let round = simd.splat_f32s(ROUND);
    let half = simd.mul_add_f32s(exponent, simd.splat_f32s(0.5), round);
    let half = simd.sub_f32s(half, round);
    let rest = simd.sub_f32s(exponent, half);

    let scaled = simd.mul_f32s(mantissa, power_of_two(simd, half));
    simd.mul_f32s(scaled, power_of_two(simd, rest))
}

/// e^x of each lane for x <= 88, for softmax. It is cheaper than [`exp`], because it flushes
/// results below 2^-126 to 0.
#[inline(always)]
pub(crate) fn exp_flushed_f32s<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let lowest = simd.splat_f32s(LN_MIN_POSITIVE);
    let underflows = simd.less_than_f32s(x, lowest);

    let x = simd.select_f32s(underflows, lowest, x);
    let (mantissa, exponent) = exp_parts(simd, x);
    let y = simd.mul_f32s(mantissa, power_of_two(simd, exponent));

    simd.select_f32s(underflows, simd.splat_f32s(0.0), y)
}

/// [`sigmoid`] of each lane.
#[inline(always)]
pub(crate) fn sigmoid_f32s<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let (one, x) = (simd.splat_f32s(1.0), simd.neg_f32s(x));

    // One factor 2^exponent is enough: adding 1 hides a small e^x, and a large one may be infinite.
    let x = clamp(simd, x, -87.0, 89.0);
    let (mantissa, exponent) = exp_parts(simd, x);
    let e = simd.mul_f32s(mantissa, power_of_two(simd, exponent));

    simd.div_f32s(one, simd.add_f32s(one, e))
}

/// [`erf`] of each lane.
#[inline(always)]
fn erf_f32s<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let (one, saturated) = (simd.splat_f32s(1.0), simd.splat_f32s(ERF_SATURATED));
    let magnitude = simd.abs_f32s(x);
    let tail = polynomial(simd, simd.mul_f32s(x, x), ERF_TAIL);
    let small = simd.mul_add_f32s(tail, x, x);

    // The comparison is false for NaN, so NaN propagates.
    let is_saturated = simd.less_than_f32s(saturated, magnitude);
    let bounded = simd.select_f32s(is_saturated, saturated, magnitude);
    let exponent = polynomial(simd, bounded, ERF_EXPONENT);
    let (mantissa, power) = exp_parts(simd, simd.neg_f32s(exponent));
    let rest = simd.mul_f32s(mantissa, power_of_two(simd, power));
    let large = simd.sub_f32s(one, rest);
    let is_negative = simd.less_than_f32s(x, simd.splat_f32s(0.0));
    let large = simd.select_f32s(is_negative, simd.neg_f32s(large), large);

    let is_small = simd.less_than_f32s(magnitude, simd.splat_f32s(ERF_SMALL));
    simd.select_f32s(is_small, small, large)
}

/// [`ln`] of each lane.
#[inline(always)]
pub(crate) fn ln_f32s<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let zero = simd.splat_f32s(0.0);

    // Subnormals are scaled to normal numbers first.
    let subnormal = simd.less_than_f32s(x, simd.splat_f32s(f32::MIN_POSITIVE));
    let scaled = simd.mul_f32s(x, simd.splat_f32s(8_388_608.0));
    let normal = simd.select_f32s(subnormal, scaled, x);
    let shift = simd.select_f32s(subnormal, simd.splat_f32s(23.0), zero);

    let (mantissa, exponent) = ln_parts(simd, normal);
    let exponent = simd.sub_f32s(exponent, shift);
    let r = simd.sub_f32s(mantissa, simd.splat_f32s(1.0));
    let r2 = simd.mul_f32s(r, r);

    // Small terms first: r^3 q(r) + exponent * low - r^2 / 2, then r, then exponent * high.
    let tail = simd.mul_f32s(simd.mul_f32s(r2, r), polynomial(simd, r, LN_TAIL));
    let tail = simd.mul_add_f32s(exponent, simd.splat_f32s(LN_2_LOW), tail);
    let tail = simd.mul_add_f32s(r2, simd.splat_f32s(-0.5), tail);
    let y = simd.add_f32s(r, tail);
    let y = simd.mul_add_f32s(exponent, simd.splat_f32s(LN_2_HIGH), y);

    let infinity = simd.splat_f32s(f32::INFINITY);
    let y = simd.select_f32s(simd.less_than_f32s(x, infinity), y, x);
    let y = simd.select_f32s(simd.less_than_f32s(x, zero), simd.splat_f32s(f32::NAN), y);
    simd.select_f32s(simd.equal_f32s(x, zero), simd.splat_f32s(f32::NEG_INFINITY), y)
}

/// x between `lowest` and `highest`; NaN stays NaN, because comparisons with it are false.
#[inline(always)]
fn clamp<S: Simd>(simd: S, x: S::f32s, lowest: f32, highest: f32) -> S::f32s {
    let (lowest, highest) = (simd.splat_f32s(lowest), simd.splat_f32s(highest));
    let x = simd.select_f32s(simd.less_than_f32s(x, lowest), lowest, x);
    simd.select_f32s(simd.greater_than_f32s(x, highest), highest, x)
}

/// e^x = mantissa * 2^exponent with the mantissa near [sqrt(1/2), sqrt(2)] and an integer exponent.
#[inline(always)]
fn exp_parts<S: Simd>(simd: S, x: S::f32s) -> (S::f32s, S::f32s) {
    let round = simd.splat_f32s(ROUND);
    let exponent = simd.mul_add_f32s(x, simd.splat_f32s(std::f32::consts::LOG2_E), round);
    let exponent = simd.sub_f32s(exponent, round);

    let r = simd.mul_add_f32s(exponent, simd.splat_f32s(-LN_2_HIGH), x);
    let r = simd.mul_add_f32s(exponent, simd.splat_f32s(-LN_2_LOW), r);

    let tail = polynomial(simd, r, EXP_TAIL);
    let mantissa = simd.mul_add_f32s(simd.mul_f32s(r, r), tail, r);
    (simd.add_f32s(mantissa, simd.splat_f32s(1.0)), exponent)
}

/// 2^exponent for an integer exponent in [-126, 127]; infinity for 128.
#[inline(always)]
fn power_of_two<S: Simd>(simd: S, exponent: S::f32s) -> S::f32s {
    // The low bits of the sum are exponent + 127; the shift moves them to the exponent field of
    // f32.
    let biased = simd.add_f32s(exponent, simd.splat_f32s(ROUND + 127.0));
    let bits = simd.transmute_u32s_f32s(biased);
    simd.transmute_f32s_u32s(simd.wrapping_dyn_shl_u32s(bits, simd.splat_u32s(23)))
}

/// x = mantissa * 2^exponent for a normal x, the mantissa in [sqrt(1/2), sqrt(2)).
#[inline(always)]
fn ln_parts<S: Simd>(simd: S, x: S::f32s) -> (S::f32s, S::f32s) {
    let sqrt_half = simd.splat_u32s(std::f32::consts::FRAC_1_SQRT_2.to_bits());
    let offset = simd.sub_u32s(simd.transmute_u32s_f32s(x), sqrt_half);

    let fraction = simd.and_u32s(offset, simd.splat_u32s(0x007f_ffff));
    let mantissa = simd.transmute_f32s_u32s(simd.add_u32s(fraction, sqrt_half));

    // Converts an integer e below 2^23 to a float by placing it in the low bits of 2^23 + e.
    let biased = simd.add_u32s(offset, simd.splat_u32s(127 << 23));
    let biased = simd.wrapping_dyn_shr_u32s(biased, simd.splat_u32s(23));
    let float = simd.or_u32s(biased, simd.splat_u32s(8_388_608.0f32.to_bits()));
    let exponent = simd.transmute_f32s_u32s(float);
    (mantissa, simd.sub_f32s(exponent, simd.splat_f32s(8_388_608.0 + 127.0)))
}

/// c[0] + c[1] x + c[2] x^2 + ..., by Horner's rule.
#[inline(always)]
fn polynomial<S: Simd, const N: usize>(simd: S, x: S::f32s, coefficients: [f32; N]) -> S::f32s {
    let mut sum = simd.splat_f32s(coefficients[N - 1]);
    for &c in coefficients[..N - 1].iter().rev() {
        sum = simd.mul_add_f32s(sum, x, simd.splat_f32s(c));
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use pulp::{Arch, WithSimd};

    /// Distance in units in the last place of the reference (as f32; subnormals share one ulp).
    fn ulps(actual: f32, expected: f64) -> f64 {
        let rounded = expected as f32;
        if actual.is_nan() || rounded.is_nan() {
            return if actual.is_nan() == rounded.is_nan() { 0.0 } else { f64::INFINITY };
        }
        if actual.is_infinite() || rounded.is_infinite() {
            return if actual == rounded { 0.0 } else { f64::INFINITY };
        }

        let exponent = (rounded.abs().to_bits() >> 23).max(1) as i32;
        (f64::from(actual) - expected).abs() / 2f64.powi(exponent - 127 - 23)
    }

    /// The vector form of a function and its f64 reference.
    trait Function: Copy {
        fn vector<S: Simd>(self, simd: S, x: S::f32s) -> S::f32s;
        fn exact(self, x: f64) -> f64;
    }

    struct Map<'a, F>(F, &'a [f32], &'a mut [f32]);

    impl<F: Function> WithSimd for Map<'_, F> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            let (x, rest) = S::as_simd_f32s(self.1);
            let (y, _) = S::as_mut_simd_f32s(self.2);
            assert!(rest.is_empty());
            for (x, y) in x.iter().zip(y) {
                *y = self.0.vector(simd, *x);
            }
        }
    }

    /// The largest error of both forms over every `step`-th bit pattern that `domain` accepts.
    fn worst<F: Function>(f: F, step: usize, domain: impl Fn(f32) -> bool) -> f64 {
        let patterns = (0..=u32::MAX).step_by(step).map(f32::from_bits);
        let mut accepted = patterns.filter(|x| domain(*x));
        let mut worst = 0.0f64;
        let mut at = 0.0;

        loop {
            let mut x = [1.0f32; 4096];
            let count = x.iter_mut().zip(&mut accepted).map(|(slot, x)| *slot = x).count();
            if count == 0 {
                println!("worst {worst} ulp at {at:e}");
                return worst;
            }

            let mut y = [0.0f32; 4096];
            Arch::new().dispatch(Map(f, &x, &mut y));
            for (x, y) in x.into_iter().zip(y) {
                let exact = f.exact(f64::from(x));
                let error = ulps(y, exact).max(ulps(f.vector(Scalar, x), exact));
                if error > worst {
                    (worst, at) = (error, x);
                }
            }
        }
    }

    /// A prime, so that every pattern of low bits occurs. `MESHGRAD_EXHAUSTIVE=1` tests every f32.
    fn step() -> usize {
        if std::env::var_os("MESHGRAD_EXHAUSTIVE").is_some() { 1 } else { 1009 }
    }

    macro_rules! function {
        ($name:ident, $vector:path, $exact:expr) => {
            #[derive(Clone, Copy)]
            struct $name;

            impl Function for $name {
                #[inline(always)]
                fn vector<S: Simd>(self, simd: S, x: S::f32s) -> S::f32s {
                    $vector(simd, x)
                }

                fn exact(self, x: f64) -> f64 {
                    let exact: fn(f64) -> f64 = $exact;
                    exact(x)
                }
            }
        };
    }

    function!(Exp, exp_f32s, f64::exp);
    function!(ExpFlushed, exp_flushed_f32s, |x| if x < f64::from(LN_MIN_POSITIVE) {
        0.0
    } else {
        x.exp()
    });
    function!(Sigmoid, sigmoid_f32s, |x| 1.0 / (1.0 + (-x).exp()));
    function!(Ln, ln_f32s, f64::ln);
    function!(Erf, erf_f32s, libm::erf);

    #[test]
    fn exp_error_is_at_most_1_1_ulp() {
        assert!(worst(Exp, step(), |_| true) <= 1.1);
        assert!(worst(ExpFlushed, step(), |x| x.is_nan() || x <= 88.0) <= 1.1);
    }

    #[test]
    fn ln_error_is_at_most_1_5_ulp() {
        assert!(worst(Ln, step(), |_| true) <= 1.5);
    }

    #[test]
    fn erf_error_is_at_most_1_2_ulp() {
        assert!(worst(Erf, step(), |_| true) <= 1.2);
    }

    #[test]
    fn sigmoid_error_is_at_most_3_ulp() {
        assert!(worst(Sigmoid, step(), |x| x.is_nan() || x >= -87.0) <= 3.0);
    }

    #[test]
    fn special_values_are_exact() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());

        assert_eq!(exp_flushed_f32s(Scalar, 0.0), 1.0);
        assert_eq!(exp_flushed_f32s(Scalar, f32::NEG_INFINITY), 0.0);
        assert!(exp_flushed_f32s(Scalar, f32::NAN).is_nan());

        assert_eq!(sigmoid(f32::NEG_INFINITY), 0.0);
        assert_eq!(sigmoid(f32::INFINITY), 1.0);
        assert_eq!(sigmoid(0.0), 0.5);

        assert_eq!(erf(f32::INFINITY), 1.0);
        assert_eq!(erf(f32::NEG_INFINITY), -1.0);
        assert_eq!(erf(-0.0).to_bits(), (-0.0f32).to_bits());
        assert!(erf(f32::NAN).is_nan());

        assert_eq!(ln(1.0), 0.0);
        assert_eq!(ln(0.0), f32::NEG_INFINITY);
        assert_eq!(ln(f32::INFINITY), f32::INFINITY);
        assert!(ln(-1.0).is_nan() && ln(f32::NAN).is_nan());
    }
}
