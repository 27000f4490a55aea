//! Rounding of real numbers to small formats by definition (IEEE 754-2019, 4.3), in f64.
//!
//! The result is correct for every f64 value. To round a sum or product, the caller ensures that
//! f64 represents it exactly.

use crate::conformance::data::exponent;

/// A binary format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Format {
    /// Bits of the significand, including the hidden one.
    digits: i32,
    /// Exponent of the smallest normal number.
    lowest: i32,
    /// Exponent of the largest number.
    highest: i32,
}

pub(crate) const F16: Format = format(11, -14, 15);
pub(crate) const BF16: Format = format(8, -126, 127);
pub(crate) const TF32: Format = format(11, -126, 127);
pub(crate) const F32: Format = format(24, -126, 127);

const fn format(digits: i32, lowest: i32, highest: i32) -> Format {
    Format { digits, lowest, highest }
}

/// How a value between two numbers of the format is rounded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Rounding {
    /// To nearest, ties to even.
    Nearest,
    /// To nearest, ties away from zero.
    NearestAway,
    Zero,
    Up,
    Down,
}

use Rounding::*;

impl Format {
    /// `value` rounded to this format.
    pub(crate) fn round(self, value: f64, rounding: Rounding) -> f64 {
        if value == 0.0 || !value.is_finite() {
            return value;
        }
        let unit = 2f64.powi(exponent(value).max(self.lowest) - (self.digits - 1));
        let units = value / unit;
        let rounded = unit
            * match rounding {
                Nearest => units.round_ties_even(),
                NearestAway => units.round(),
                Zero => units.trunc(),
                Up => units.ceil(),
                Down => units.floor(),
            };
        let largest = self.largest();
        if rounded.abs() <= largest {
            return rounded.copysign(value);
        }
        let stays = match rounding {
            Nearest | NearestAway => false,
            Zero => true,
            Up => value < 0.0,
            Down => value > 0.0,
        };
        if stays { largest } else { f64::INFINITY }.copysign(value)
    }

    /// To nearest, ties to even.
    pub(crate) fn nearest(self, value: f64) -> f64 {
        self.round(value, Nearest)
    }

    /// The ulp at `value`'s magnitude.
    pub(crate) fn ulp(self, value: f64) -> f64 {
        2f64.powi(exponent(value).clamp(self.lowest, self.highest) - (self.digits - 1))
    }

    fn largest(self) -> f64 {
        (2.0 - 2f64.powi(1 - self.digits)) * 2f64.powi(self.highest)
    }
}

/// `nearest`, a result rounded to nearest in f64, adjusted to `rounding`. `error` has the sign of
/// the exact result minus `nearest`.
pub(crate) fn directed(nearest: f64, error: f64, rounding: Rounding) -> f64 {
    let up = match rounding {
        Nearest | NearestAway => return nearest,
        Up => true,
        Down => false,
        Zero => nearest < 0.0,
    };
    match () {
        () if up && error > 0.0 => nearest.next_up(),
        () if !up && error < 0.0 => nearest.next_down(),
        () => nearest,
    }
}

/// The rounding error of `a + b` (Knuth's TwoSum).
pub(crate) fn error_of_sum(a: f64, b: f64) -> f64 {
    let sum = a + b;
    let b_part = sum - a;
    (a - (sum - b_part)) + (b - b_part)
}

#[test]
fn small_formats_round_like_rust_types() {
    let mut noise = crate::conformance::data::Noise::new(1);
    for _ in 0..10_000 {
        let value = noise.f64(-2.0, 2.0) * 2f64.powi(noise.integer(-160, 140) as i32);
        assert_eq!(F32.nearest(value), f64::from(value as f32), "{value:e}");
        let narrow = f64::from(value as f32);
        let half = half::f16::from_f32(value as f32);
        assert_eq!(F16.nearest(narrow), half.to_f64(), "{value:e}");
        assert_eq!(BF16.nearest(narrow), half::bf16::from_f32(value as f32).to_f64(), "{value:e}");
    }
}
