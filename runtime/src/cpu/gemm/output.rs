//! How sums are stored in C.

use bytemuck::Pod;
use half::bf16;

use crate::core::dtype::Float;

/// How C is updated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Update {
    /// `C = A B`; the old value is not read.
    Replace,
    /// `C += A B`, added in the accumulator type and rounded once.
    Add,
}

/// A type of accumulators: f32 or f64.
pub(crate) trait Sum: Pod + Send + Sync + Output<Self> {
    /// The other element type of C; for f64, which has none, f64.
    type Narrow: Output<Self>;
}

impl Sum for f32 {
    type Narrow = bf16;
}

impl Sum for f64 {
    type Narrow = f64;
}

/// An element type of C for accumulators of type `S`: `S` itself or [`Sum::Narrow`].
pub(crate) trait Output<S>: Copy + Send + Sync {
    /// Whether this is [`Sum::Narrow`] and not `S`.
    const IS_NARROW: bool = false;

    /// The sum, rounded.
    fn replace(sum: S) -> Self;
    /// `self + sum`, computed in `S` and rounded.
    fn add(self, sum: S) -> Self;
}

impl Output<f32> for f32 {
    #[inline(always)]
    fn replace(sum: f32) -> Self {
        sum
    }

    #[inline(always)]
    fn add(self, sum: f32) -> Self {
        self + sum
    }
}

impl Output<f64> for f64 {
    #[inline(always)]
    fn replace(sum: f64) -> Self {
        sum
    }

    #[inline(always)]
    fn add(self, sum: f64) -> Self {
        self + sum
    }
}

impl Output<f32> for bf16 {
    const IS_NARROW: bool = true;

    #[inline(always)]
    fn replace(sum: f32) -> Self {
        bf16::narrow(sum)
    }

    #[inline(always)]
    fn add(self, sum: f32) -> Self {
        bf16::narrow(self.wide() + sum)
    }
}
