//! The quantile function (inverse CDF) of the normal distribution. It uses only additions,
//! multiplications, divisions, square roots and bit operations, and no fused multiply-add. IEEE 754
//! defines the rounding of these, so every machine computes the same bits.
//!
//! With p the smaller of both tails and q = 1 - 2p, the quantile is q times a smooth function of w
//! = -ln(1 - q^2): Giles, "Approximating the erfinv function" (GPU Computing Gems 2, 2010). The
//! function is approximated by rational functions in w with positive coefficients, which avoid
//! cancellation. They were fitted with 60 digits, by least squares of the relative error at
//! Chebyshev nodes, reweighted towards equal ripple.
//!
//! Reproducible runs depend on the results of random ops, so no constant here may change. The f32
//! constants are in the `kernels` crate, whose GPU kernel computes the same bits. They have degrees
//! 6 and 5 in w, for 0 <= w <= 22.2, and a relative error of 1.1e-8.

use meshgrad_kernels::random::quantile::{DENOMINATOR, LN_TAIL, NUMERATOR, SQRT_HALF, STEP};

/// The standard normal quantile of (word + 1/2) / 2^32, which is between -6.4 and 6.4.
///
/// The relative error is below 5e-7, measured over the last 2^20 words of the tail and every 257th
/// word elsewhere.
#[inline(always)]
pub(crate) fn normal_f32(word: u32) -> f32 {
    // Both tails are measured from their end, so that p and q are exact up to rounding.
    let upper = (word as i32) < 0;
    let from_end = if upper { !word } else { word };
    let from_middle = 0x7fff_ffff - from_end;
    let p = (from_end as i32 as f32 + 0.5) * STEP;
    let q = (from_middle as i32 as f32 + 0.5) * (2.0 * STEP);

    // 1 - q^2 = 4 p (1 - p), computed without cancellation.
    let w = -ln_f32(2.0 * p * (1.0 + q));
    let size = q * (horner(w, NUMERATOR) / horner(w, DENOMINATOR));
    if upper { size } else { -size }
}

/// The natural logarithm of a normal number, with an absolute error of 1e-8 before rounding.
#[inline(always)]
fn ln_f32(x: f32) -> f32 {
    let bits = x.to_bits();
    let exponent = (bits.wrapping_sub(SQRT_HALF) as i32) >> 23;
    let r = f32::from_bits(bits.wrapping_sub((exponent as u32) << 23)) - 1.0;
    exponent as f32 * std::f32::consts::LN_2 + (r + r * r * horner(r, LN_TAIL))
}

/// The standard normal quantile of (word + 1/2) / 2^64, which is between -9.2 and 9.2.
///
/// The relative error, as measured, is below 1e-15.
#[inline(always)]
pub(crate) fn normal_f64(word: u64) -> f64 {
    const STEP: f64 = 1.0 / (1u128 << 64) as f64;

    let upper = (word as i64) < 0;
    let from_end = if upper { !word } else { word };
    let from_middle = (u64::MAX >> 1) - from_end;
    let p = (from_end as i64 as f64 + 0.5) * STEP;
    let q = (from_middle as i64 as f64 + 0.5) * (2.0 * STEP);

    let w = -ln_f64(2.0 * p * (1.0 + q));
    let size = if w < 5.0 {
        q * (horner(w, CENTER_NUMERATOR) / horner(w, CENTER_DENOMINATOR))
    } else {
        let t = (-ln_f64(p)).sqrt() - 2.4;
        horner(t, TAIL_NUMERATOR) / horner(t, TAIL_DENOMINATOR)
    };
    if upper { size } else { -size }
}

/// Coefficients in w, for 0 <= w <= 5; the relative error is 5e-18.
const CENTER_NUMERATOR: [f64; 9] = [
    1.253_314_137_315_500_3,
    0.494_317_642_791_788_4,
    0.132_104_835_056_831_5,
    0.025_434_408_358_776_795,
    3.621_052_421_505_354e-3,
    3.899_151_114_845_358_6e-4,
    3.091_953_261_709_689e-5,
    1.645_677_708_326_447_6e-6,
    4.543_824_929_345_17e-8,
];
const CENTER_DENOMINATOR: [f64; 9] = [
    1.0,
    0.132_609_027_516_885,
    0.057_655_409_129_033_69,
    6.106_285_228_453_001e-3,
    1.033_082_929_890_009_2e-3,
    7.954_868_064_057_204e-5,
    5.546_771_066_307_881e-6,
    2.364_158_318_566_731e-7,
    1.952_138_023_205_727_4e-9,
];

/// Coefficients in sqrt(-ln p) - 2.4, for 6 <= -ln p <= 45.2 (as in AS241: Wichura, Applied
/// Statistics 37, 1988); the relative error is 4e-17.
const TAIL_NUMERATOR: [f64; 8] = [
    2.731_628_120_131_929,
    6.271_630_683_662_905,
    5.471_293_738_375_527,
    2.293_905_128_664_911_7,
    0.484_807_746_355_859_66,
    0.049_210_180_476_694_655,
    2.024_839_516_038_53e-3,
    2.098_209_755_040_548e-5,
];
const TAIL_DENOMINATOR: [f64; 7] = [
    1.0,
    1.716_928_163_008_181_6,
    1.027_054_319_135_994,
    0.270_581_570_601_497_2,
    0.031_497_251_862_442,
    1.396_177_532_330_520_1e-3,
    1.483_689_343_662_729_8e-5,
];

/// The natural logarithm of a normal number, by the series of 2 artanh(r / (2 + r)) with
/// |r / (2 + r)| < 0.172.
#[inline(always)]
fn ln_f64(x: f64) -> f64 {
    const SERIES: [f64; 12] = {
        let mut series = [0.0; 12];
        let mut at = 0;
        while at < series.len() {
            series[at] = 2.0 / (2 * at + 1) as f64;
            at += 1;
        }
        series
    };
    const SQRT_HALF: u64 = 0x3fe6_a09e_667f_3bcd;

    let bits = x.to_bits();
    let exponent = (bits.wrapping_sub(SQRT_HALF) as i64) >> 52;
    let r = f64::from_bits(bits.wrapping_sub((exponent as u64) << 52)) - 1.0;
    let s = r / (2.0 + r);
    exponent as f64 * std::f64::consts::LN_2 + s * horner(s * s, SERIES)
}

/// The polynomial with these coefficients, lowest power first.
#[inline(always)]
fn horner<W: crate::Wide, const N: usize>(x: W, coefficients: [W; N]) -> W {
    let mut sum = coefficients[N - 1];
    for coefficient in coefficients[..N - 1].iter().rev() {
        sum = sum * x + *coefficient;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Quantiles of (word + 1/2) / 2^64, computed in 60 digits.
    const QUANTILES: [(u64, f64); 20] = [
        (0x0000000000000000, -9.155_293_772_686_072),
        (0x0000000000000001, -9.035_918_848_571_939),
        (0x00000000000003e8, -8.295_121_335_463_298),
        (0x0000000000100000, -7.423_939_748_863_402),
        (0x0000000100000000, -6.230_260_137_970_806),
        (0x0000200000000000, -4.621_231_001_499_244),
        (0x0080000000000000, -2.885_634_912_426_757_3),
        (0x0055555555555555, -3.010_967_567_059_374_5),
        (0x0006e00000000000, -3.706_904_094_238_481),
        (0x0100000000000000, -2.660_067_468_617_459_7),
        (0x1999999999999999, -1.281_551_565_544_600_4),
        (0x4000000000000000, -0.674_489_750_196_081_7),
        (0x7000000000000000, -0.157_310_684_610_170_7),
        (0x7ffffffff0000000, -3.647_624_209_351_549e-11),
        (0x7fffffffffffffff, -6.794_229_552_421_306e-20),
        (0x8000000000000000, 6.794_229_552_421_306e-20),
        (0xb504f333f9de6484, 0.544_952_135_617_360_3),
        (0xf000000000000000, 1.534_120_544_352_546_3),
        (0xffffffffffffff00, 8.455_870_185_787_012),
        (0xffffffffffffffff, 9.155_293_772_686_072),
    ];

    #[test]
    fn f64_is_exact_to_its_last_digits() {
        for (word, quantile) in QUANTILES {
            let error = normal_f64(word) / quantile - 1.0;
            assert!(error.abs() < 1e-15, "{word:#x}: {error:e}");
        }
    }

    /// Compares the f32 quantile of a word with the f64 quantile of the middle of its interval.
    #[test]
    fn f32_is_close_to_f64() {
        let tail = 0..1 << 20;
        let everywhere = (0..1u32 << 31).step_by(257);
        let mut worst: f64 = 0.0;
        for word in tail.chain(everywhere) {
            let exact = normal_f64(u64::from(word) << 32 | 0x7fff_ffff);
            worst = worst.max((f64::from(normal_f32(word)) / exact - 1.0).abs());
        }
        assert!(worst < 5e-7, "relative error {worst:e}");
    }

    #[test]
    fn quantiles_are_symmetric_and_increasing() {
        let words = (0..1u32 << 31).step_by(4_093);
        let mut last = f32::NEG_INFINITY;
        for word in words {
            let quantile = normal_f32(word);
            assert_eq!(quantile, -normal_f32(!word));
            assert!(quantile > last && quantile < 0.0, "{word}");
            last = quantile;
        }
        assert!(normal_f32(0) < -6.2 && normal_f64(0) < -9.0);
    }
}
