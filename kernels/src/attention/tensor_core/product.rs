//! The two products of a warp's 16 rows, on tensor cores: scores, and weights with features.

use super::super::Products;
use super::tile::{AFragment, Lines, Stationary, Streamed};
use crate::assembler::{F32, Kernel, MatrixRow, Rows64, Variable, mma_bf16, warpgroup_mma_bf16};

/// The accumulators of 16 rows, by groups of eight columns. Let c = 2 (lane % 4). Of each group a
/// lane holds columns c and c + 1 of row lane / 4, then the same columns of row lane / 4 + 8.
pub(super) type Sums<'k> = Vec<[Variable<'k, f32>; 4]>;

/// Accumulators of 0.
#[track_caller]
pub(super) fn zeros(k: &Kernel, columns: u32) -> Sums<'_> {
    let tile = |_| [(); 4].map(|()| k.var(0.0_f32));
    (0..columns.div_ceil(8)).map(tile).collect()
}

/// The dot products of a warp's rows with `columns` other rows. Products of warpgroups are complete
/// after [`wait`].
#[track_caller]
pub(super) fn scores<'k>(
    k: &'k Kernel,
    lines: Lines,
    rows: &Stationary<'k>,
    others: Streamed<'k>,
    columns: u32,
) -> Sums<'k> {
    let sums = zeros(k, columns);
    match others {
        Streamed::Fragments(others) => {
            for step in 0..lines.steps() {
                let rows = match rows {
                    Stationary::Fragments(rows) => rows.load(step),
                    Stationary::Registers(rows) => rows[step as usize],
                    Stationary::Shared(_) => unreachable!("both operands have one layout"),
                };
                add_step(&sums, rows, others.offset(32 * step), lines);
            }
        }
        Streamed::Shared(others) => {
            k.begin_products();
            for step in 0..lines.steps() {
                let Stationary::Shared(rows) = rows else {
                    unreachable!("both operands have one layout")
                };
                let rows = Rows64::Shared(rows.step(step));
                warpgroup_mma_bf16(k, &sums, rows, others.step(step));
            }
            k.commit_products();
        }
    }
    sums
}

/// Adds the product of one step of 16 features.
#[track_caller]
fn add_step<'k>(sums: &Sums<'k>, rows: AFragment<'k>, others: MatrixRow<'k>, lines: Lines) {
    for (block, sums) in (0..).zip(sums.chunks_exact(2)) {
        let b_fragments = others.offset(16 * block * lines.pitch()).load_matrices(false);
        mma_bf16(&sums[0], rows, [b_fragments[0], b_fragments[1]]);
        mma_bf16(&sums[1], rows, [b_fragments[2], b_fragments[3]]);
    }
}

/// Adds the product of `weights` and `features`, over 16 rows of features per A fragment. Products of
/// warpgroups are complete after [`wait`].
#[track_caller]
pub(super) fn add_weighted<'k>(
    k: &'k Kernel,
    sums: &Sums<'k>,
    weights: &[AFragment<'k>],
    features: Streamed<'k>,
    lines: Lines,
) {
    match features {
        Streamed::Fragments(features) => {
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
        Streamed::Shared(features) => {
            k.begin_products();
            for (block, weights) in (0..).zip(weights) {
                let weights = Rows64::Registers(*weights);
                warpgroup_mma_bf16(k, sums, weights, features.step(block));
            }
            k.commit_products();
        }
    }
}

/// Makes the tiles that have arrived visible to all threads and their products. All threads call it.
#[track_caller]
pub(super) fn publish(k: &Kernel, lines: Lines) {
    k.wait_for_copies(0);
    if lines.products == Products::Warpgroups {
        k.publish_to_products();
    }
    k.barrier();
}

/// Waits for the products issued so far.
#[track_caller]
pub(super) fn wait(k: &Kernel, lines: Lines) {
    if lines.products == Products::Warpgroups {
        k.wait_for_products(0);
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
