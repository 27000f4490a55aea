//! Number types of attention: [`Element`] is the type in memory, [`Real`] is the type of the
//! computation.

use std::ops::{Add, Div, Mul, Sub};

use bytemuck::Pod;
use half::bf16;
use pulp::Simd;

use crate::core::dtype::Float;
use crate::core::simd_math;

/// A dtype of queries, keys and values.
pub(crate) trait Element: Copy + Send + Sync + 'static {
    /// f32, or f64 for f64.
    type Real: Real;

    /// Widens exactly.
    fn to_real(self) -> Self::Real;

    /// The nearest element, ties to even.
    fn from_real(real: Self::Real) -> Self;
}

impl Element for f32 {
    type Real = f32;

    #[inline(always)]
    fn to_real(self) -> f32 {
        self
    }

    #[inline(always)]
    fn from_real(real: f32) -> Self {
        real
    }
}

impl Element for f64 {
    type Real = f64;

    #[inline(always)]
    fn to_real(self) -> f64 {
        self
    }

    #[inline(always)]
    fn from_real(real: f64) -> Self {
        real
    }
}

impl Element for bf16 {
    type Real = f32;

    #[inline(always)]
    fn to_real(self) -> f32 {
        self.wide()
    }

    #[inline(always)]
    fn from_real(real: f32) -> Self {
        bf16::narrow(real)
    }
}

/// f32 or f64, as scalars and vectors.
pub(crate) trait Real:
    Pod
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Send
    + Sync
    + std::fmt::Debug
{
    /// A vector register of the SIMD level.
    type Vector<S: Simd>: Pod;

    /// 0.
    const ZERO: Self;

    /// 1.
    const ONE: Self;

    /// Minus infinity.
    const NEG_INFINITY: Self;

    /// `x`, rounded to nearest.
    fn from_f64(x: f64) -> Self;

    /// Exact for counts below 2^24.
    fn from_count(count: usize) -> Self;

    /// The natural logarithm.
    fn ln(self) -> Self;

    /// The whole vectors of a slice; the remainder is dropped.
    fn vectors<S: Simd>(slice: &[Self]) -> &[Self::Vector<S>];

    /// The whole vectors of a slice; the remainder is dropped.
    fn vectors_mut<S: Simd>(slice: &mut [Self]) -> &mut [Self::Vector<S>];

    /// `x` in all lanes.
    fn splat<S: Simd>(simd: S, x: Self) -> Self::Vector<S>;

    /// a + b.
    fn add_lanes<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;

    /// a - b.
    fn sub_lanes<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;

    /// a * b.
    fn mul_lanes<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;

    /// a * b + c, fused if the SIMD level has FMA.
    fn mul_add_lanes<S: Simd>(
        simd: S,
        a: Self::Vector<S>,
        b: Self::Vector<S>,
        c: Self::Vector<S>,
    ) -> Self::Vector<S>;

    /// The maximum of each lane.
    fn max_lanes<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;

    /// x, or 0 in the lanes where x is minus infinity.
    fn finite_or_zero<S: Simd>(simd: S, x: Self::Vector<S>) -> Self::Vector<S>;

    /// x in the lanes where `range[0] <= at < range[1]`, minus infinity in the others.
    fn visible<S: Simd>(
        simd: S,
        x: Self::Vector<S>,
        at: Self::Vector<S>,
        range: [Self::Vector<S>; 2],
    ) -> Self::Vector<S>;

    /// e^x for x <= 88; f32 results below 2^-126 are flushed to 0.
    fn exp_lanes<S: Simd>(simd: S, x: Self::Vector<S>) -> Self::Vector<S>;

    /// The sum of the lanes, added pairwise in a tree.
    fn sum_lanes<S: Simd>(simd: S, x: Self::Vector<S>) -> Self;
}

macro_rules! impl_real {
    ($real:ident, $vectors:ident, $ln:path, $exp:path, {
        $as_simd:ident, $as_mut_simd:ident, $splat:ident, $add:ident, $sub:ident, $mul:ident,
        $mul_add:ident, $max:ident, $select:ident, $less:ident, $equal:ident, $sum:ident
        $(,)?
    }) => {
        impl Real for $real {
            type Vector<S: Simd> = S::$vectors;

            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const NEG_INFINITY: Self = $real::NEG_INFINITY;

            #[inline(always)]
            fn from_f64(x: f64) -> Self {
                x as $real
            }

            #[inline(always)]
            fn from_count(count: usize) -> Self {
                count as $real
            }

            #[inline(always)]
            fn ln(self) -> Self {
                $ln(self)
            }

            #[inline(always)]
            fn vectors<S: Simd>(slice: &[Self]) -> &[S::$vectors] {
                S::$as_simd(slice).0
            }

            #[inline(always)]
            fn vectors_mut<S: Simd>(slice: &mut [Self]) -> &mut [S::$vectors] {
                S::$as_mut_simd(slice).0
            }

            #[inline(always)]
            fn splat<S: Simd>(simd: S, x: Self) -> S::$vectors {
                simd.$splat(x)
            }

            #[inline(always)]
            fn add_lanes<S: Simd>(simd: S, a: S::$vectors, b: S::$vectors) -> S::$vectors {
                simd.$add(a, b)
            }

            #[inline(always)]
            fn sub_lanes<S: Simd>(simd: S, a: S::$vectors, b: S::$vectors) -> S::$vectors {
                simd.$sub(a, b)
            }

            #[inline(always)]
            fn mul_lanes<S: Simd>(simd: S, a: S::$vectors, b: S::$vectors) -> S::$vectors {
                simd.$mul(a, b)
            }

            #[inline(always)]
            fn mul_add_lanes<S: Simd>(
                simd: S,
                a: S::$vectors,
                b: S::$vectors,
                c: S::$vectors,
            ) -> S::$vectors {
                simd.$mul_add(a, b, c)
            }

            #[inline(always)]
            fn max_lanes<S: Simd>(simd: S, a: S::$vectors, b: S::$vectors) -> S::$vectors {
                simd.$max(a, b)
            }

            #[inline(always)]
            fn finite_or_zero<S: Simd>(simd: S, x: S::$vectors) -> S::$vectors {
                let empty = simd.$equal(x, simd.$splat($real::NEG_INFINITY));
                simd.$select(empty, simd.$splat(0.0), x)
            }

            #[inline(always)]
            fn visible<S: Simd>(
                simd: S,
                x: S::$vectors,
                at: S::$vectors,
                [low, high]: [S::$vectors; 2],
            ) -> S::$vectors {
                let hidden = simd.$splat($real::NEG_INFINITY);
                let x = simd.$select(simd.$less(at, high), x, hidden);
                simd.$select(simd.$less(at, low), hidden, x)
            }

            #[inline(always)]
            fn exp_lanes<S: Simd>(simd: S, x: S::$vectors) -> S::$vectors {
                $exp(simd, x)
            }

            #[inline(always)]
            fn sum_lanes<S: Simd>(simd: S, x: S::$vectors) -> Self {
                simd.$sum(x)
            }
        }
    };
}

impl_real!(f32, f32s, simd_math::ln, simd_math::exp_flushed_f32s, {
    as_simd_f32s, as_mut_simd_f32s, splat_f32s, add_f32s, sub_f32s, mul_f32s, mul_add_e_f32s,
    max_f32s, select_f32s, less_than_f32s, equal_f32s, reduce_sum_f32s,
});

impl_real!(f64, f64s, f64::ln, exp_f64s, {
    as_simd_f64s, as_mut_simd_f64s, splat_f64s, add_f64s, sub_f64s, mul_f64s, mul_add_e_f64s,
    max_f64s, select_f64s, less_than_f64s, equal_f64s, reduce_sum_f64s,
});

/// The exp of the standard library: f64 serves as a reference, so accuracy matters more than speed.
#[inline(always)]
fn exp_f64s<S: Simd>(_: S, mut x: S::f64s) -> S::f64s {
    let lanes: &mut [f64] = bytemuck::cast_slice_mut(std::slice::from_mut(&mut x));
    for lane in lanes {
        *lane = lane.exp();
    }
    x
}
