//! Products of a warp's 16 rows, on tensor cores.

use super::tile::{Left, Lines};
use crate::assembler::{F32, Kernel, MatrixRow, Variable, mma_bf16};

/// Sums of 16 rows, eight columns after eight. A lane has, of each eight, columns 2 (lane % 4) and
/// the next of row lane / 4, and those of the row eight further down.
pub(super) type Sums<'k> = Vec<[Variable<'k, f32>; 4]>;

/// All 0.
#[track_caller]
pub(super) fn zeros(k: &Kernel, columns: u32) -> Sums<'_> {
    let tile = |_| [(); 4].map(|()| k.var(0.0_f32));
    (0..columns.div_ceil(8)).map(tile).collect()
}

/// The products of rows with `columns` other rows, over all features: one step of 16 after the
/// other.
#[track_caller]
pub(super) fn scores<'k>(
    k: &'k Kernel,
    lines: Lines,
    rows: impl Fn(u32) -> Left<'k>,
    others: MatrixRow<'k>,
    columns: u32,
) -> Sums<'k> {
    let sums = zeros(k, columns);
    for step in 0..lines.steps() {
        let left = rows(step);
        for (block, sums) in (0..).zip(sums.chunks_exact(2)) {
            let at = others.offset(16 * block * lines.pitch() + 32 * step);
            let right = at.load_matrices(false);
            mma_bf16(&sums[0], left, [right[0], right[1]]);
            mma_bf16(&sums[1], left, [right[2], right[3]]);
        }
    }
    sums
}

/// Adds the products of weights with rows of features, over the rows: 16 rows after the others.
#[track_caller]
pub(super) fn add_weighted<'k>(
    sums: &Sums<'k>,
    weights: &[Left<'k>],
    features: MatrixRow<'k>,
    lines: Lines,
) {
    for (block, left) in (0..).zip(weights) {
        for (step, sums) in (0..).zip(sums.chunks(2)) {
            let at = features.offset(16 * block * lines.pitch() + 32 * step);
            let right = at.load_matrices(true);
            mma_bf16(&sums[0], *left, [right[0], right[1]]);
            if let Some(last) = sums.get(1) {
                mma_bf16(last, *left, [right[2], right[3]]);
            }
        }
    }
}

/// Sums, rounded, as the left operand of a product along their columns: a lane has just those.
#[track_caller]
pub(super) fn as_left<'k>(sums: &Sums<'k>) -> Vec<Left<'k>> {
    let pair = |low: &Variable<'k, f32>, high: &Variable<'k, f32>| {
        let (low, high): (F32<'k>, F32<'k>) = (**low, **high);
        low.pack(high)
    };
    let halves = |s: &[Variable<'k, f32>; 4]| [pair(&s[0], &s[1]), pair(&s[2], &s[3])];
    let block = |tiles: &[[Variable<'k, f32>; 4]]| {
        let ([a, b], [c, d]) = (halves(&tiles[0]), halves(&tiles[1]));
        [a, b, c, d]
    };
    sums.chunks_exact(2).map(block).collect()
}
