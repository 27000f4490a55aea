//! Online softmax over tiles of scores (Milakov & Gimelshein 2018).

use crate::assembler::{F32, Kernel, Variable, group_max, group_sum};
use crate::elementary::ln;

/// The running maximum and the running sum of exponentials of each row of a lane. Scores include a
/// factor of log2(e), so that exp2 computes the exponentials.
pub(super) struct Softmax<'k> {
    k: &'k Kernel,
    /// Consecutive lanes that share a row.
    lanes: u32,
    largest: Vec<Variable<'k, f32>>,
    /// The sum of this lane's part of the row.
    sums: Vec<Variable<'k, f32>>,
}

/// The result for a row, after its last scores.
#[derive(Clone, Copy)]
pub(super) struct Total<'k> {
    /// 1 / sum, or 0 if all keys are masked.
    pub(super) reciprocal: F32<'k>,
    /// The log-sum-exp of the row; minus infinity if all keys are masked.
    pub(super) lse: F32<'k>,
}

impl<'k> Softmax<'k> {
    #[track_caller]
    pub(super) fn new(k: &'k Kernel, rows: usize, lanes: u32) -> Softmax<'k> {
        Softmax {
            k,
            lanes,
            largest: (0..rows).map(|_| k.var(f32::NEG_INFINITY)).collect(),
            sums: (0..rows).map(|_| k.var(0.0_f32)).collect(),
        }
    }

    /// Replaces the next scores of a row by weights, relative to the new maximum. The caller
    /// multiplies its accumulators by the returned factor. All lanes of the warp must call it.
    ///
    /// The score of a masked key is minus infinity. It contributes nothing, even if all earlier
    /// keys are masked too.
    #[track_caller]
    pub(super) fn add(&self, row: usize, scores: &[Variable<'k, f32>]) -> F32<'k> {
        let (largest, sum) = (&self.largest[row], &self.sums[row]);
        let own = scores[1..].iter().fold(*scores[0], |max, x| max.max(**x));
        let new = largest.max(group_max(self.k, own, self.lanes));
        let base = new.equals(f32::NEG_INFINITY).select(0.0, new);
        let shrink = (**largest - base).exp2_approx();
        largest.set(new);

        sum.set(**sum * shrink);
        for score in scores {
            score.set((**score - base).exp2_approx());
            sum.add(**score);
        }
        shrink
    }

    /// Reduces the row over its lanes. All lanes of the warp must call it.
    #[track_caller]
    pub(super) fn total(&self, row: usize) -> Total<'k> {
        let sum = group_sum(self.k, *self.sums[row], self.lanes);
        let reciprocal = sum.reciprocal();
        Total {
            reciprocal: sum.equals(0.0).select(0.0, reciprocal),
            lse: self.largest[row].fma(std::f32::consts::LN_2, ln(sum)),
        }
    }
}
