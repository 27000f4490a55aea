//! The binary operations of reductions.

use crate::assembler::{F32, Variable};

/// The operation of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReduceOp {
    /// The sum.
    Add,
    /// The maximum; NaN if any value is NaN.
    Max,
    /// The minimum; NaN if any value is NaN.
    Min,
}

impl ReduceOp {
    /// All variants.
    pub const ALL: [ReduceOp; 3] = [ReduceOp::Add, ReduceOp::Max, ReduceOp::Min];

    /// Its name, as in the names of kernels.
    pub fn name(self) -> &'static str {
        match self {
            ReduceOp::Add => "sum",
            ReduceOp::Max => "max",
            ReduceOp::Min => "min",
        }
    }

    /// The identity element: the reduction of no values.
    pub fn identity(self) -> f32 {
        match self {
            ReduceOp::Add => 0.0,
            ReduceOp::Max => f32::NEG_INFINITY,
            ReduceOp::Min => f32::INFINITY,
        }
    }

    /// Combines two values.
    #[track_caller]
    pub fn apply<'k>(self, a: F32<'k>, b: F32<'k>) -> F32<'k> {
        match self {
            ReduceOp::Add => a + b,
            ReduceOp::Max => a.max(b),
            ReduceOp::Min => a.min(b),
        }
    }

    /// Combines `value` into a variable.
    #[track_caller]
    pub fn accumulate<'k>(self, folded: &Variable<'k, f32>, value: F32<'k>) {
        match self {
            ReduceOp::Add => folded.add(value),
            ReduceOp::Max | ReduceOp::Min => folded.set(self.apply(**folded, value)),
        }
    }
}
