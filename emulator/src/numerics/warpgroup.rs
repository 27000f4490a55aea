//! The arithmetic of `wgmma.mma_async` on one warp, which has 16 rows of A and D.
//!
//! A block of 8 columns of D is a product of `mma.m16n8k16`, with the same fragments and the same
//! sums (see [`super::tensor_core`]).

use super::descriptor::{Block, DEPTH, LINES};
use super::fragment::{Operand, Plane};
use super::half_precision::{Bf16, F16, Half};
use super::tensor_core::{TileA, TileB, add_accumulators, empty_a, empty_b, gather_a, product};
use crate::simd::vectorized;

/// The 16 rows of A.
pub(crate) enum RowsOfA {
    /// As a fragment of `mma.m16n8k16`.
    Registers([Plane; 4]),
    Shared([Block; 2]),
}

/// D = A B, plus D if `accumulates`, with A negated if `negates`. B has a block for every four
/// registers of D.
pub(crate) fn multiply(
    element: Operand,
    negates: bool,
    accumulates: bool,
    a: &RowsOfA,
    b: &[Block],
    d: &mut [Plane],
) {
    vectorized(
        #[inline(always)]
        || match element {
            Operand::F16 => multiply_here::<F16>(negates, accumulates, a, b, d),
            _ => multiply_here::<Bf16>(negates, accumulates, a, b, d),
        },
    );
}

#[inline(always)]
fn multiply_here<H: Half>(
    negates: bool,
    accumulates: bool,
    a: &RowsOfA,
    b: &[Block],
    d: &mut [Plane],
) {
    let sign = if negates { -1.0 } else { 1.0 };
    let a = tile_of_a::<H>(a, sign);
    let mut tile = empty_b();
    for (block, d) in b.iter().zip(d.chunks_exact_mut(4)) {
        if !accumulates {
            d.fill([0; 32]);
        }
        widen::<H>(block, &mut tile);
        let products = product(DEPTH, &a, &tile);
        add_accumulators(&products, d);
    }
}

#[inline(always)]
fn tile_of_a<H: Half>(a: &RowsOfA, sign: f64) -> TileA<f64> {
    match a {
        RowsOfA::Registers(planes) => gather_a::<_, 2>(planes, |word, at| {
            sign * f64::from(H::widen((word >> (16 * at)) as u16))
        }),
        RowsOfA::Shared(blocks) => {
            let mut tile = empty_a();
            for (index, block) in blocks.iter().enumerate() {
                for (k, elements) in block.iter().enumerate() {
                    for (line, element) in elements.iter().enumerate() {
                        tile[index * LINES + line][k] = sign * f64::from(H::widen(*element));
                    }
                }
            }
            tile
        }
    }
}

#[inline(always)]
fn widen<H: Half>(block: &Block, tile: &mut TileB<f64>) {
    for (numbers, elements) in tile.iter_mut().zip(block) {
        for (number, element) in numbers.iter_mut().zip(elements) {
            *number = f64::from(H::widen(*element));
        }
    }
}
