//! The accumulators of a warp, and the epilogue that stores them.

use super::{GemmBf16, Output, Warps};
use crate::assembler::{
    F32, GlobalAddress, Kernel, Pair, Pred, S32, U32, Variable, mma_bf16, swap_with_neighbor,
};
use crate::gemm::Matrix;

/// The accumulators of a warp: 16 x 8 fragments in row-major order. A lane holds four elements of
/// each fragment.
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
        Sums { k, warps, tiles: (0..tiles).map(zeros).collect() }
    }

    /// The fragments in row-major order.
    pub(super) fn fragments(&self) -> &[[Variable<'k, f32>; 4]] {
        &self.tiles
    }

    /// Adds the products of blocks of 16 rows and blocks of 16 columns, over 16 k.
    #[track_caller]
    pub(super) fn add_products(&self, rows: &[[Pair<'k>; 4]], columns: &[[Pair<'k>; 4]]) {
        // Matrices 0 and 2 of a block are its first eight columns, 1 and 3 its last eight.
        let halves = columns.iter().flat_map(|b| [[b[0], b[2]], [b[1], b[3]]]);
        let columns: Vec<[Pair<'k>; 2]> = halves.collect();
        let of_row = self.tiles.chunks_exact(columns.len());
        for (a, tiles) in rows.iter().zip(of_row) {
            for (b, sums) in columns.iter().zip(tiles) {
                mma_bf16(sums, *a, *b);
            }
        }
    }

    /// Stores the accumulators. The warp's part begins at row and column `origin` of C, which has
    /// these extents.
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
        let rows_left = (extents[0] - row).signed();
        let size = variant.output.size();
        let in_fours = variant.aligned && variant.output == Output::Bf16;
        let first = if in_fours { four_of(lane) } else { (lane & 3) * 2 };
        let column = origin[1] + first;
        let columns_left = (extents[1] - column).signed();

        let eight_rows = c.leading * u64::from(8 * size);
        let mut to = c.element(row, column, size);
        let of_row = self.tiles.chunks_exact((self.warps.columns / 8) as usize);
        for (block, tiles) in (0..).zip(of_row) {
            for half in 0..2 {
                let inside = rows_left.gt(16 * block + 8 * half as i32);
                let pairs: Vec<[F32<'k>; 2]> =
                    tiles.iter().map(|sums| [*sums[2 * half], *sums[2 * half + 1]]).collect();
                let row = RowEnd { to, inside, columns_left };
                match in_fours {
                    true => row.store_fours(lane, &pairs),
                    false => row.store_pairs(variant, &pairs),
                }
                to = to.byte_add(eight_rows);
            }
        }
    }
}

/// A lane's part of one row of C.
struct RowEnd<'k> {
    to: GlobalAddress<'k>,
    /// Whether the row is in C.
    inside: Pred<'k>,
    /// The number of columns of C from `to` on.
    columns_left: S32<'k>,
}

impl<'k> RowEnd<'k> {
    /// Stores a pair of neighbors in every eight columns. Four lanes together store 32 bytes of
    /// f32: a sector.
    #[track_caller]
    fn store_pairs(&self, variant: &GemmBf16, pairs: &[[F32<'k>; 2]]) {
        let output = variant.output;
        let targets: Vec<PairTarget<'k>> =
            (0..pairs.len()).map(|i| self.target(output, i)).collect();
        if !variant.aligned {
            for (target, pair) in targets.iter().zip(pairs) {
                store_one(output, target.to, target.first, pair[0]);
                let next = target.to.offset(output.size().into());
                store_one(output, next, target.both, pair[1]);
            }
            return;
        }

        // All elements of C are loaded before the first store. A load after a store would wait for
        // it, since the addresses may alias.
        let totals: Vec<[F32<'k>; 2]> = match output {
            Output::AddF32 => {
                let load =
                    |target: &PairTarget<'k>| target.to.load_vector_if::<f32, 2>(target.both);
                let before: Vec<[F32<'k>; 2]> = targets.iter().map(load).collect();
                let both = before.iter().zip(pairs);
                both.map(|(a, b)| [a[0] + b[0], a[1] + b[1]]).collect()
            }
            Output::F32 | Output::Bf16 => pairs.to_vec(),
        };
        for ((target, total), pair) in targets.iter().zip(totals).zip(pairs) {
            target.to.store_vector_if(target.both, total);
            store_one(output, target.to, target.first & !target.both, pair[0]);
        }
    }

    #[track_caller]
    fn target(&self, output: Output, tile: usize) -> PairTarget<'k> {
        let columns_left = self.columns_left - 8 * tile as i32;
        PairTarget {
            to: self.to.offset(8 * i64::from(output.size()) * tile as i64),
            first: self.inside & columns_left.gt(0),
            both: self.inside & columns_left.gt(1),
        }
    }

    /// Stores four bf16 neighbors in every sixteen columns. With pairs, four lanes would store only
    /// half a sector. Therefore neighboring lanes exchange pairs: the even lane gets both pairs of
    /// the first eight columns, the odd lane both of the second eight.
    #[track_caller]
    fn store_fours(&self, lane: U32<'k>, pairs: &[[F32<'k>; 2]]) {
        let odd = (lane & 1).differs(0);
        for (block, [first, second]) in (0..).zip(pairs.as_chunks::<2>().0) {
            let [first, second] = [first, second].map(|pair| pair[0].pack(pair[1]));
            let theirs = swap_with_neighbor(odd.select(first, second));
            let four = [odd.select(theirs, first), odd.select(second, theirs)];

            let to = self.to.offset(32 * i64::from(block));
            let columns_left = self.columns_left - 16 * block;
            to.store_vector_if(self.inside & columns_left.ge(4), four);

            let few = self.inside & columns_left.lt(4);
            let elements = four.iter().flat_map(|pair| pair.split());
            for (i, element) in (0..).zip(elements.take(3)) {
                let exists = few & columns_left.gt(i);
                to.offset(2 * i64::from(i)).store_if(exists, element);
            }
        }
    }
}

/// The destination of a pair of neighbors, and which of the two are in C.
struct PairTarget<'k> {
    to: GlobalAddress<'k>,
    first: Pred<'k>,
    both: Pred<'k>,
}

/// The first of the four columns (of sixteen) that a lane stores in [`RowEnd::store_fours`].
#[track_caller]
fn four_of(lane: U32<'_>) -> U32<'_> {
    (lane & 1) * 8 + (lane & 2) * 2
}

#[track_caller]
fn store_one<'k>(output: Output, to: GlobalAddress<'k>, condition: Pred<'k>, value: F32<'k>) {
    match output {
        Output::Bf16 => to.store_if(condition, value.to_bf16()),
        Output::F32 => to.store_if(condition, value),
        Output::AddF32 => to.store_if(condition, to.load_if::<f32>(condition) + value),
    }
}
