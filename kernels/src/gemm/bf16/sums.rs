//! A warp's part of C.

use super::{GemmBf16, Output, Warps};
use crate::assembler::{F32, GlobalAddress, Kernel, Pair, Pred, S32, U32, Variable, mma_bf16};
use crate::gemm::Matrix;

/// The sums of a warp: tiles of 16 by 8, row by row. A lane has four elements of each.
pub(super) struct Sums<'k> {
    k: &'k Kernel,
    warps: Warps,
    tiles: Vec<[Variable<'k, f32>; 4]>,
}

impl<'k> Sums<'k> {
    #[track_caller]
    pub(super) fn new(k: &'k Kernel, warps: Warps) -> Sums<'k> {
        let tiles = (warps.rows / 16) * (warps.columns / 8);
        let zeros = |_| [(); 4].map(|()| k.var(0.0_f32));
        Sums {
            k,
            warps,
            tiles: (0..tiles).map(zeros).collect(),
        }
    }

    /// Adds the products of blocks of 16 rows with blocks of 16 columns, over 16 k.
    #[track_caller]
    pub(super) fn add_products(&self, rows: &[[Pair<'k>; 4]], columns: &[[Pair<'k>; 4]]) {
        // Matrices 0 and 2 of a block of columns are its first eight, 1 and 3 its last.
        let halves = columns.iter().flat_map(|b| [[b[0], b[2]], [b[1], b[3]]]);
        let columns: Vec<[Pair<'k>; 2]> = halves.collect();
        let of_row = self.tiles.chunks_exact(columns.len());
        for (a, tiles) in rows.iter().zip(of_row) {
            for (b, sums) in columns.iter().zip(tiles) {
                mma_bf16(sums, *a, *b);
            }
        }
    }

    /// Stores the sums; the warp's part begins at row and column `origin` of a C with these
    /// extents.
    #[track_caller]
    pub(super) fn store(
        &self,
        variant: &GemmBf16,
        c: Matrix<'k>,
        origin: [U32<'k>; 2],
        extents: [U32<'k>; 2],
    ) {
        let lane = self.k.lane();
        let row = origin[0] + (lane >> 2);
        let column = origin[1] + (lane & 3) * 2;
        let rows_left = (extents[0] - row).signed();
        let columns_left = (extents[1] - column).signed();

        let size = variant.output.size();
        let eight_rows = c.leading * u64::from(8 * size);
        let mut to = c.element(row, column, size);
        let of_row = self.tiles.chunks_exact((self.warps.columns / 8) as usize);
        for (block, tiles) in (0..).zip(of_row) {
            for half in 0..2 {
                let inside = rows_left.gt(16 * block + 8 * half as i32);
                for (tile, sums) in (0..).zip(tiles) {
                    let pair = [*sums[2 * half], *sums[2 * half + 1]];
                    let columns_left = columns_left - 8 * tile;
                    let to = to.offset(i64::from(8 * tile) * i64::from(size));
                    store_pair(variant, to, inside, columns_left, pair);
                }
                to = to.moved(eight_rows);
            }
        }
    }
}

/// Stores two neighbours where `inside` holds, as far as there are columns left.
#[track_caller]
fn store_pair<'k>(
    variant: &GemmBf16,
    to: GlobalAddress<'k>,
    inside: Pred<'k>,
    columns_left: S32<'k>,
    pair: [F32<'k>; 2],
) {
    let first = inside & columns_left.gt(0);
    let both = inside & columns_left.gt(1);
    if !variant.aligned {
        store_one(variant.output, to, first, pair[0]);
        let next = to.offset(variant.output.size().into());
        return store_one(variant.output, next, both, pair[1]);
    }

    match variant.output {
        Output::Bf16 => to.store_if(both, pair[0].pack(pair[1])),
        Output::F32 => to.store_vector_if(both, pair),
        Output::AddF32 => {
            let before = to.load_vector_if::<f32, 2>(both);
            to.store_vector_if(both, [before[0] + pair[0], before[1] + pair[1]]);
        }
    }
    let last = inside & columns_left.equals(1);
    store_one(variant.output, to, last, pair[0]);
}

#[track_caller]
fn store_one<'k>(output: Output, to: GlobalAddress<'k>, condition: Pred<'k>, value: F32<'k>) {
    match output {
        Output::Bf16 => to.store_if(condition, value.to_bf16()),
        Output::F32 => to.store_if(condition, value),
        Output::AddF32 => to.store_if(condition, to.load_if::<f32>(condition) + value),
    }
}
