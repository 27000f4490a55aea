//! How reductions merge two values.

use crate::assembler::{F32, Variable};

/// What two values are merged into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Merge {
    /// Their sum.
    Add,
    /// The larger one; NaN where either is.
    Max,
    /// The smaller one; NaN where either is.
    Min,
}

impl Merge {
    /// All three.
    pub const ALL: [Merge; 3] = [Merge::Add, Merge::Max, Merge::Min];

    /// Its name, as in the names of kernels.
    pub fn name(self) -> &'static str {
        match self {
            Merge::Add => "sum",
            Merge::Max => "max",
            Merge::Min => "min",
        }
    }

    /// What changes nothing, and what merging no values gives.
    pub fn neutral(self) -> f32 {
        match self {
            Merge::Add => 0.0,
            Merge::Max => f32::NEG_INFINITY,
            Merge::Min => f32::INFINITY,
        }
    }

    /// Two values merged.
    #[track_caller]
    pub fn of<'k>(self, a: F32<'k>, b: F32<'k>) -> F32<'k> {
        match self {
            Merge::Add => a + b,
            Merge::Max => a.max(b),
            Merge::Min => a.min(b),
        }
    }

    /// Merges `value` into a variable.
    #[track_caller]
    pub fn into<'k>(self, folded: &Variable<'k, f32>, value: F32<'k>) {
        match self {
            Merge::Add => folded.add(value),
            Merge::Max | Merge::Min => folded.set(self.of(**folded, value)),
        }
    }
}
