//! The number type that elementwise functions are generic over.
//!
//! One source serves both back ends: on the CPU a function is compiled for f32 and f64; for a GPU
//! it is traced once with [`Symbol`](crate::launch::symbol::Symbol)s.

use std::ops::{Add, Div, Mul, Neg, Sub};

use super::simd_math;

/// A number with the arithmetic of elementwise functions. Comparisons do not return a `bool`,
/// because a symbol has no value: use [`Number::if_lt`], [`Number::if_le`] and [`Number::if_eq`].
pub trait Number:
    Copy
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
{
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;

    /// The nearest number to `x`.
    fn constant(x: f64) -> Self;

    /// Square root, correctly rounded.
    fn sqrt(self) -> Self;
    /// Absolute value.
    fn abs(self) -> Self;
    /// e^x.
    fn exp(self) -> Self;
    /// The natural logarithm.
    fn ln(self) -> Self;
    /// The sine, in radians.
    fn sin(self) -> Self;
    /// The cosine, in radians.
    fn cos(self) -> Self;
    /// The hyperbolic tangent.
    fn tanh(self) -> Self;

    /// The error function: 2 / sqrt(pi) times the integral of e^-t^2 from 0 to x.
    fn erf(self) -> Self;

    /// 1 / (1 + e^-x).
    #[inline(always)]
    fn sigmoid(self) -> Self {
        Self::ONE / (Self::ONE + (-self).exp())
    }

    /// `then` if self < other; `otherwise` if not, or if either is NaN.
    fn if_lt(self, other: Self, then: Self, otherwise: Self) -> Self;
    /// `then` if self <= other; `otherwise` if not, or if either is NaN.
    fn if_le(self, other: Self, then: Self, otherwise: Self) -> Self;
    /// `then` if self == other; `otherwise` if not, or if either is NaN.
    fn if_eq(self, other: Self, then: Self, otherwise: Self) -> Self;
    /// `then` if self is finite; `otherwise` if it is infinite or NaN.
    #[inline(always)]
    fn if_finite(self, then: Self, otherwise: Self) -> Self {
        // Zero times infinity is NaN, which equals nothing.
        (self * Self::ZERO).if_eq(Self::ZERO, then, otherwise)
    }
}

/// A function of `N` numbers, generic over the types that kernels compute in: see
/// [`ops::map`](crate::ops::map).
///
/// For a GPU the function is traced once with symbolic numbers. So it must not branch on its values
/// (use [`Number::if_lt`]), and is limited to 24 operations and 8 constants.
pub trait Function<const N: usize>: Sync {
    /// The value at `x`. Must be `#[inline(always)]`: otherwise it is compiled without vector
    /// instructions.
    fn value<W: Number>(&self, x: [W; N]) -> W;
}

/// A function of the rows of matrices, such as a normalization, generic over the types that kernels
/// compute in: see [`ops::map_rows`](crate::ops::map_rows).
///
/// An element has `N` operands, and a row has `S` numbers: the first [`RowFunction::GIVEN`] are
/// operands, and the others are computed in order, each from a sum over the row. With given numbers
/// only, the value is all there is to define. Like a [`Function`], it is compiled for the CPU and
/// traced for a GPU.
pub trait RowFunction<const N: usize, const S: usize>: Sync {
    /// How many of the row's numbers are operands.
    const GIVEN: usize = 0;

    /// What an element adds to the sum for number `at`. The numbers before `at` are in `s`. Must be
    /// `#[inline(always)]`, as all functions of this trait.
    #[inline(always)]
    fn summand<W: Number>(&self, _at: usize, _x: [W; N], _s: [W; S]) -> W {
        W::ZERO
    }

    /// Number `at` of a row, `s[at]` being the sum over the row.
    #[inline(always)]
    fn number<W: Number>(&self, at: usize, s: [W; S]) -> W {
        s[at]
    }

    /// The result at an element.
    fn value<W: Number>(&self, x: [W; N], s: [W; S]) -> W;
}

macro_rules! numbers {
    // Only gradient checks use f64, so functions without vector instructions are fast enough.
    (@elementary f64) => {
        numbers!(@std f64: exp, ln);

        #[inline(always)]
        fn erf(self) -> f64 {
            libm::erf(self)
        }
    };

    (@elementary f32) => {
        #[inline(always)]
        fn exp(self) -> f32 {
            simd_math::exp(self)
        }

        #[inline(always)]
        fn ln(self) -> f32 {
            simd_math::ln(self)
        }

        #[inline(always)]
        fn sigmoid(self) -> f32 {
            simd_math::sigmoid(self)
        }

        #[inline(always)]
        fn erf(self) -> f32 {
            simd_math::erf(self)
        }
    };

    (@std $rust:ident: $($function:ident),+) => {
        $(
            #[inline(always)]
            fn $function(self) -> $rust {
                $rust::$function(self)
            }
        )+
    };

    (@if $rust:ident: $($function:ident $operator:tt),+) => {
        $(
            #[inline(always)]
            fn $function(self, other: $rust, then: $rust, otherwise: $rust) -> $rust {
                if self $operator other { then } else { otherwise }
            }
        )+
    };

    ($($rust:tt),+) => {
        $(
            impl Number for $rust {
                const ZERO: $rust = 0.0;
                const ONE: $rust = 1.0;

                #[inline(always)]
                fn constant(x: f64) -> $rust {
                    x as $rust
                }

                numbers!(@std $rust: sqrt, abs, sin, cos, tanh);
                numbers!(@elementary $rust);
                numbers!(@if $rust: if_lt <, if_le <=, if_eq ==);
            }
        )+
    };
}

numbers!(f64, f32);
