//! Exact results and their single rounding.
//!
//! IEEE 754 defines every arithmetic operation in two steps: compute the exact result, then round
//! it once to the destination's format. This file implements that definition with integers. Each
//! finite value is `significand * 2^exponent`. Products, sums, quotients and roots are computed in
//! 128-bit integers, and [`Format::round`] rounds the result to any binary format in any of the
//! four rounding modes of PTX (`.rn`, `.rz`, `.rm`, `.rp`).
//!
//! This is the slow path. f32 and f64 operations that round to nearest even use the processor's
//! arithmetic instead.

/// The rounding modifiers of PTX (PTX ISA, "Rounding Modifiers").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {
    /// `.rn`, `.rni`: to nearest, ties to even.
    Nearest,
    /// `.rz`, `.rzi`: toward zero.
    Zero,
    /// `.rm`, `.rmi`: toward minus infinity.
    Down,
    /// `.rp`, `.rpi`: toward plus infinity.
    Up,
}

/// A finite real number: `±(significand + t) * 2^exponent`. `t` is 0, or, if `sticky`, some number
/// strictly between 0 and 1.
///
/// A sticky value has at least two more significant bits than any format that it is rounded to, so
/// `t` can break a tie but never create one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exact {
    pub(crate) negative: bool,
    pub(crate) significand: u128,
    pub(crate) exponent: i32,
    pub(crate) sticky: bool,
}

/// Bits to which operands are aligned before a sum, quotient or root. The bits above are for
/// carries.
const ALIGNED_BITS: u32 = 125;

impl Exact {
    /// The value of a finite f64, and thus of every finite f32, f16 and bf16.
    pub(crate) fn of(x: f64) -> Self {
        let bits = x.to_bits();
        let fraction = bits & ((1 << 52) - 1);
        let biased = (bits >> 52 & 0x7ff) as i32;
        let hidden = u64::from(biased != 0) << 52;
        Exact {
            negative: x.is_sign_negative(),
            significand: u128::from(fraction | hidden),
            exponent: biased.max(1) - 1075,
            sticky: false,
        }
    }

    /// The value of an integer given as sign and magnitude.
    pub(crate) fn of_integer(negative: bool, magnitude: u64) -> Self {
        Exact { negative, significand: u128::from(magnitude), exponent: 0, sticky: false }
    }

    fn is_zero(self) -> bool {
        self.significand == 0
    }

    /// The same value with the highest bit of the significand at bit `ALIGNED_BITS - 1`.
    fn aligned(self) -> Self {
        let shift = self.significand.leading_zeros() - (128 - ALIGNED_BITS);
        Exact {
            significand: self.significand << shift,
            exponent: self.exponent - shift as i32,
            ..self
        }
    }

    pub(crate) fn product(a: Exact, b: Exact) -> Exact {
        Exact {
            negative: a.negative != b.negative,
            significand: a.significand * b.significand,
            exponent: a.exponent + b.exponent,
            sticky: false,
        }
    }

    /// The sum. An exact zero sum is positive except in mode `Down` (IEEE 754, 6.3); `rounding` has
    /// no other effect.
    pub(crate) fn sum(a: Exact, b: Exact, rounding: Rounding) -> Exact {
        let zero_sign = match a.negative == b.negative {
            true => a.negative,
            false => rounding == Rounding::Down,
        };
        match (a.is_zero(), b.is_zero()) {
            (true, true) => {
                return Exact { negative: zero_sign, ..a };
            }
            (true, false) => return b,
            (false, true) => return a,
            (false, false) => {}
        }

        let (a, b) = (a.aligned(), b.aligned());
        let (large, small) = if (a.exponent, a.significand) >= (b.exponent, b.significand) {
            (a, b)
        } else {
            (b, a)
        };
        let (shifted, sticky) =
            shift_right(small.significand, (large.exponent - small.exponent) as u32);

        let significand = match large.negative == small.negative {
            true => large.significand + shifted,
            // The bits cut off belong to the subtrahend: borrow one unit and keep a fraction.
            false => large.significand - shifted - u128::from(sticky),
        };
        let negative = if significand == 0 && !sticky { zero_sign } else { large.negative };
        Exact { negative, significand, exponent: large.exponent, sticky }
    }

    /// The quotient of two finite numbers; `b` is not zero.
    pub(crate) fn quotient(a: Exact, b: Exact) -> Exact {
        let negative = a.negative != b.negative;
        if a.is_zero() {
            return Exact { negative, ..a };
        }
        let (a, b) = (a.aligned(), b.aligned());
        // The divisor's low bits are zero, because it has at most 53 significant bits.
        let divisor = b.significand >> (ALIGNED_BITS - 53);
        Exact {
            negative,
            significand: a.significand / divisor,
            exponent: a.exponent - b.exponent - (ALIGNED_BITS as i32 - 53),
            sticky: a.significand % divisor != 0,
        }
    }

    /// The square root of a non-negative number.
    pub(crate) fn square_root(self) -> Exact {
        if self.is_zero() {
            return self;
        }
        let a = self.aligned();
        let odd = a.exponent.rem_euclid(2);
        let radicand = a.significand << odd;
        let root = radicand.isqrt();
        Exact {
            negative: false,
            significand: root,
            exponent: (a.exponent - odd) / 2,
            sticky: root * root != radicand,
        }
    }
}

/// `value >> count` for any count, and whether a set bit was shifted out.
fn shift_right(value: u128, count: u32) -> (u128, bool) {
    match count {
        0 => (value, false),
        1..128 => (value >> count, value << (128 - count) != 0),
        _ => (0, value != 0),
    }
}

/// A binary interchange format: sign, exponent field, fraction field.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Format {
    /// Bits of an encoding.
    width: u32,
    /// Significant bits, including the hidden one.
    precision: u32,
    /// Exponent of the smallest normal number.
    min_exponent: i32,
    /// Exponent of the largest numbers.
    max_exponent: i32,
}

pub(crate) const BINARY64: Format = Format::new(64, 53, -1022, 1023);
pub(crate) const BINARY32: Format = Format::new(32, 24, -126, 127);
pub(crate) const BINARY16: Format = Format::new(16, 11, -14, 15);
pub(crate) const BFLOAT16: Format = Format::new(16, 8, -126, 127);
/// The 8-bit format with 5 exponent bits (OCP 8-bit floating point).
pub(crate) const E5M2: Format = Format::new(8, 3, -14, 15);
/// The 8-bit format with 4 exponent bits. It has no infinity: values above its largest number, 448,
/// have no encoding, so callers clamp before rounding.
pub(crate) const E4M3: Format = Format::new(8, 4, -6, 8);

impl Format {
    const fn new(width: u32, precision: u32, min_exponent: i32, max_exponent: i32) -> Self {
        Format { width, precision, min_exponent, max_exponent }
    }

    /// The encoding of plus infinity.
    pub(crate) const fn infinity(self) -> u64 {
        ((self.max_exponent - self.min_exponent + 2) as u64) << (self.precision - 1)
    }

    /// The encoding of `x` after one rounding.
    pub(crate) fn round(self, x: Exact, rounding: Rounding) -> u64 {
        let sign = u64::from(x.negative) << (self.width - 1);
        if x.significand == 0 && !x.sticky {
            return sign;
        }

        let top = 127 - x.significand.leading_zeros() as i32 + x.exponent;
        let binade = top.max(self.min_exponent);
        let cut = binade - (self.precision as i32 - 1) - x.exponent;
        let (kept, half, below) = split(x.significand, cut);
        let below = below || x.sticky;

        let away = match rounding {
            Rounding::Nearest => half && (below || kept & 1 == 1),
            Rounding::Zero => false,
            Rounding::Down => x.negative && (half || below),
            Rounding::Up => !x.negative && (half || below),
        };
        // A significand that carries into the next binade also carries into the exponent field.
        let binade_field = ((binade - self.min_exponent) as u64) << (self.precision - 1);
        let magnitude = binade_field + kept as u64 + u64::from(away);
        sign | self.within_range(magnitude, x.negative, rounding)
    }

    /// The result for a magnitude that may exceed the largest number (IEEE 754, 7.4).
    fn within_range(self, magnitude: u64, negative: bool, rounding: Rounding) -> u64 {
        if magnitude < self.infinity() {
            return magnitude;
        }
        let to_infinity = match rounding {
            Rounding::Nearest => true,
            Rounding::Zero => false,
            Rounding::Down => negative,
            Rounding::Up => !negative,
        };
        self.infinity() - u64::from(!to_infinity)
    }
}

/// `significand / 2^cut`: the integer part, the first bit below it, and whether any further bit is
/// set.
fn split(significand: u128, cut: i32) -> (u128, bool, bool) {
    if cut <= 0 {
        return (significand << -cut, false, false);
    }
    let (doubled, below) = shift_right(significand, cut as u32 - 1);
    (doubled >> 1, doubled & 1 == 1, below)
}
