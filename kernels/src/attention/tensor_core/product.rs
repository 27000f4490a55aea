//! The two products of a warp's 16 rows, on tensor cores: scores, and weights with features.

use super::tile::{AFragment, Lines};
use crate::assembler::{F32, Kernel, MatrixRow, Variable, mma_bf16};

/// The accumulators of 16 rows, by groups of eight columns. Let c = 2 (lane % 4). Of each group a
/// lane holds columns c and c + 1 of row lane / 4, then the same columns of row lane / 4 + 8.
pub(super) type Sums<'k> = Vec<[Variable<'k, f32>; 4]>;

/// Accumulators of 0.
#[track_caller]
pub(super) fn zeros(k: &Kernel, columns: u32) -> Sums<'_> {
    let tile = |_| [(); 4].map(|()| k.var(0.0_f32));
    (0..columns.div_ceil(8)).map(tile).collect()
}

/// The dot products of a warp's rows with `columns` other rows. `rows(step)` loads the A fragment
/// of 16 features.
#[track_caller]
pub(super) fn scores<'k>(
    k: &'k Kernel,
    lines: Lines,
    rows: impl Fn(u32) -> AFragment<'k>,
    others: MatrixRow<'k>,
    columns: u32,
) -> Sums<'k> {
    let sums = zeros(k, columns);
    for step in 0..lines.steps() {
        let a_fragment = rows(step);
        for (block, sums) in (0..).zip(sums.chunks_exact(2)) {
            let at = others.offset(16 * block * lines.pitch() + 32 * step);
            let b_fragments = at.load_matrices(false);
            mma_bf16(&sums[0], a_fragment, [b_fragments[0], b_fragments[1]]);
            mma_bf16(&sums[1], a_fragment, [b_fragments[2], b_fragments[3]]);
        }
    }
    sums
}

/// Adds the product of `weights` and `features`, over 16 rows of features per A fragment.
#[track_caller]
pub(super) fn add_weighted<'k>(
    sums: &Sums<'k>,
    weights: &[AFragment<'k>],
    features: MatrixRow<'k>,
    lines: Lines,
) {
    for (block, a_fragment) in (0..).zip(weights) {
        for (step, sums) in (0..).zip(sums.chunks(2)) {
            let at = features.offset(16 * block * lines.pitch() + 32 * step);
            let b_fragments = at.load_matrices(true);
            mma_bf16(&sums[0], *a_fragment, [b_fragments[0], b_fragments[1]]);
            if let Some(last) = sums.get(1) {
                mma_bf16(last, *a_fragment, [b_fragments[2], b_fragments[3]]);
            }
        }
    }
}

/// Rounds accumulators to bf16, as A fragments of a product over their columns. Each lane already
/// holds the elements of its fragment.
#[track_caller]
pub(super) fn a_fragments<'k>(sums: &Sums<'k>) -> Vec<AFragment<'k>> {
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
