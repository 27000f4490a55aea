//! Comparisons, minima and maxima, and the classes of floating-point numbers.
//!
//! Implements PTX ISA, "Comparison and Selection Instructions" (the relations of setp and set),
//! and min, max, copysign and testp of "Floating-Point Instructions".

use super::rounding::nan_if;

/// The relation of a `setp` or `set`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    /// `.eq`: equal, and both numbers.
    Equal,
    /// `.ne`: not equal, and both numbers.
    NotEqual,
    /// `.lt`, and `.lo` of unsigned integers.
    Less,
    /// `.le`, and `.ls` of unsigned integers.
    LessOrEqual,
    /// `.gt`, and `.hi` of unsigned integers.
    Greater,
    /// `.ge`, and `.hs` of unsigned integers.
    GreaterOrEqual,
    /// `.equ`: equal or unordered.
    EqualOrUnordered,
    /// `.neu`: not equal or unordered, like `!=` in most languages.
    NotEqualOrUnordered,
    /// `.ltu`.
    LessOrUnordered,
    /// `.leu`.
    LessOrEqualOrUnordered,
    /// `.gtu`.
    GreaterOrUnordered,
    /// `.geu`.
    GreaterOrEqualOrUnordered,
    /// `.num`: both are numbers.
    Ordered,
    /// `.nan`: one of the two is NaN.
    Unordered,
}

impl Comparison {
    /// Whether the relation holds between integers or floating-point numbers of any type.
    #[inline(always)]
    pub(crate) fn holds<T: PartialOrd>(self, a: T, b: T) -> bool {
        let ordered = a <= b || a >= b;
        match self {
            Comparison::Equal => a == b,
            Comparison::NotEqual => ordered && a != b,
            Comparison::Less => a < b,
            Comparison::LessOrEqual => a <= b,
            Comparison::Greater => a > b,
            Comparison::GreaterOrEqual => a >= b,
            Comparison::EqualOrUnordered => a == b || !ordered,
            Comparison::NotEqualOrUnordered => a != b,
            Comparison::LessOrUnordered => a < b || !ordered,
            Comparison::LessOrEqualOrUnordered => a <= b || !ordered,
            Comparison::GreaterOrUnordered => a > b || !ordered,
            Comparison::GreaterOrEqualOrUnordered => a >= b || !ordered,
            Comparison::Ordered => ordered,
            Comparison::Unordered => !ordered,
        }
    }
}

/// The result of min and max if exactly one operand is NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NanOperand {
    /// The other operand: the default (IEEE 754-2019, minimumNumber).
    Ignored,
    /// The canonical NaN: `.NaN` (IEEE 754-2019, minimum).
    Propagated,
}

/// A float's bits as an integer with the same order; minus zero is below plus zero.
#[inline(always)]
fn order(x: f32) -> i32 {
    let bits = x.to_bits() as i32;
    bits ^ ((bits >> 31) as u32 >> 1) as i32
}

/// `min.f32`; minus zero is less than plus zero.
#[inline(always)]
pub(crate) fn min_f32(a: f32, b: f32, nan: NanOperand) -> f32 {
    choose(a, b, order(a) <= order(b), nan)
}

/// `max.f32`; minus zero is less than plus zero.
#[inline(always)]
pub(crate) fn max_f32(a: f32, b: f32, nan: NanOperand) -> f32 {
    choose(a, b, order(a) >= order(b), nan)
}

#[inline(always)]
fn choose(a: f32, b: f32, first: bool, nan: NanOperand) -> f32 {
    let numbers = if first { a } else { b };
    let without_a = if a.is_nan() { b } else { numbers };
    let without_nan = if b.is_nan() { a } else { without_a };
    let poisoned = nan == NanOperand::Propagated && (a.is_nan() || b.is_nan());
    nan_if(poisoned || without_nan.is_nan(), without_nan)
}

/// `.xorsign.abs` of min and max: the selected magnitude with the product of the signs of a and b.
#[inline(always)]
pub(crate) fn with_product_of_signs(magnitude: f32, a: f32, b: f32) -> f32 {
    let sign = (a.to_bits() ^ b.to_bits()) & 0x8000_0000;
    nan_if(magnitude.is_nan(), f32::from_bits(magnitude.to_bits() | sign))
}

/// `min.f64`. If both operands are NaN, returns the first, quieted.
#[inline(always)]
pub(crate) fn min_f64(a: f64, b: f64) -> f64 {
    choose_f64(a, b, a < b || (a == b && a.is_sign_negative()))
}

/// `max.f64`. If both operands are NaN, returns the first, quieted.
#[inline(always)]
pub(crate) fn max_f64(a: f64, b: f64) -> f64 {
    choose_f64(a, b, a > b || (a == b && a.is_sign_positive()))
}

#[inline(always)]
fn choose_f64(a: f64, b: f64, first: bool) -> f64 {
    match (a.is_nan(), b.is_nan()) {
        (true, true) => super::double::with_payload(f64::NAN, [a]),
        (true, false) => b,
        (false, true) => a,
        (false, false) => {
            if first {
                a
            } else {
                b
            }
        }
    }
}

/// `copysign.f32 d, a, b`: the magnitude of `b` with the sign of `a`, in this order.
#[inline(always)]
pub(crate) fn copysign_f32(a: u32, b: u32) -> u32 {
    a & 0x8000_0000 | b & 0x7fff_ffff
}

/// `copysign.f64 d, a, b`: the magnitude of `b` with the sign of `a`, in this order.
#[inline(always)]
pub(crate) fn copysign_f64(a: u64, b: u64) -> u64 {
    const SIGN: u64 = 1 << 63;
    a & SIGN | b & !SIGN
}

/// The class that `testp` tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Neither infinite nor NaN.
    Finite,
    /// An infinity.
    Infinite,
    /// Not a NaN.
    Number,
    /// A NaN.
    NotANumber,
    /// Not subnormal, infinite or NaN: zeros count as normal, unlike in IEEE 754.
    Normal,
    /// Neither zero nor normal, but a number.
    Subnormal,
}

impl Class {
    /// `testp.f64`.
    #[inline(always)]
    pub(crate) fn contains_f64(self, x: f64) -> bool {
        match self {
            Class::Finite => x.is_finite(),
            Class::Infinite => x.is_infinite(),
            Class::Number => !x.is_nan(),
            Class::NotANumber => x.is_nan(),
            Class::Normal => x.is_normal() || x == 0.0,
            Class::Subnormal => x.is_subnormal(),
        }
    }

    /// `testp.f32`.
    #[inline(always)]
    pub(crate) fn contains_f32(self, x: f32) -> bool {
        match self {
            Class::Finite => x.is_finite(),
            Class::Infinite => x.is_infinite(),
            Class::Number => !x.is_nan(),
            Class::NotANumber => x.is_nan(),
            Class::Normal => x.is_normal() || x == 0.0,
            Class::Subnormal => x.is_subnormal(),
        }
    }
}
