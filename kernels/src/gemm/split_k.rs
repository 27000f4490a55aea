//! Split-K: the sum over k is split into parts, for products that have few tiles.

use super::{Call, GemmArguments, Matrix, Order, Tile};
use crate::assembler::U32;
use crate::params;

/// Minimum k per part. Below it, prologue and epilogue dominate.
const MIN_DEPTH: u32 = 256;

/// Parts begin at multiples of this k, so they are 16-byte aligned and consist of whole slices.
const STEP: u32 = 32;

/// Maximum number of parts.
const MAX_PARTS: u32 = 64;

/// Resident CTAs per multiprocessor.
const CTAS: u32 = 2;

/// How the sum over k is split. Parts are written to an f32 workspace \[parts, batch, m, n\], and
/// [`SplitKReduce`](super::SplitKReduce) adds them in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitK {
    /// Number of parts.
    pub parts: u32,
    /// The extent of k per part; the last part may be shorter.
    pub depth: u32,
}

impl SplitK {
    /// No split: one part.
    pub fn none(k: u32) -> SplitK {
        SplitK { parts: 1, depth: k }
    }

    /// The split for `batch` products \[m, k\] \[k, n\] in these tiles: enough parts to occupy all
    /// multiprocessors, each with a k of at least 256. Products of warpgroups are not split, because
    /// there are always enough of them.
    pub fn choose(tile: Tile, [m, n, k]: [u32; 3], batch: u32, multiprocessors: u32) -> SplitK {
        if tile == Tile::Warpgroups {
            return SplitK::none(k);
        }
        let tiles = tile.count(m, n, batch).max(1);
        let room = u64::from(CTAS * multiprocessors) / tiles;
        let wanted = room.min((k / MIN_DEPTH).min(MAX_PARTS).into()) as u32;
        if wanted < 2 {
            return SplitK::none(k);
        }
        let depth = k.div_ceil(wanted).next_multiple_of(STEP);
        SplitK { parts: k.div_ceil(depth), depth }
    }
}

params! {
    /// Arguments of a GEMM kernel whose sum over k may be split.
    pub struct SplitKArguments => Parameters {
        /// The product. If it is split, C is the workspace \[parts, batch, m, n\], and `batch_c` is the
        /// stride between products.
        product: GemmArguments,
        /// The number of products in the batch.
        products: u32,
        /// The extent of k per part: all of k, or a multiple of 32.
        depth: u32,
    }
}

impl SplitKArguments {
    /// Arguments of a product that is not split.
    pub fn whole(product: GemmArguments, products: u32) -> SplitKArguments {
        SplitKArguments { product, products, depth: product.k }
    }
}

/// The part of the sum that a CTA computes.
pub(super) struct Part<'k> {
    /// The index of the product in the batch.
    product: U32<'k>,
    /// The first k.
    first: U32<'k>,
    /// The extent of k.
    depth: U32<'k>,
}

impl<'k> Part<'k> {
    /// The part with number `index / products`, of the product with number `index % products`.
    #[track_caller]
    pub(super) fn new(parameters: &Parameters<'k>, index: U32<'k>) -> Part<'k> {
        let Parameters { product, products, depth } = *parameters;
        let part = index / products;
        let first = part * depth;
        Part { product: index - part * products, first, depth: (product.k - first).min(depth) }
    }

    /// The product restricted to this part. Elements have `size` bytes; `orders` are the storage
    /// orders of A and B.
    #[track_caller]
    pub(super) fn of(&self, call: Call<'k>, orders: [Order; 2], size: u32) -> Call<'k> {
        let along_k = [orders[0] == Order::RowMajor, orders[1] == Order::ColumnMajor];
        let part = |matrix: Matrix<'k>, along_k: bool| {
            let matrix = matrix.of_batch(self.product, size);
            let elements = match along_k {
                true => self.first.wide(),
                false => matrix.leading * self.first.wide(),
            };
            Matrix { start: matrix.start.byte_add(elements * u64::from(size)), ..matrix }
        };
        Call { a: part(call.a, along_k[0]), b: part(call.b, along_k[1]), k: self.depth, ..call }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_tiles_and_a_long_sum_are_split() {
        let split = |tile, extents| SplitK::choose(tile, extents, 1, 132);
        // 64 tiles, 264 CTAs.
        let four = SplitK { parts: 4, depth: 1024 };
        assert_eq!(split(Tile::Small, [64, 4096, 4096]), four);
        assert_eq!(split(Tile::Large, [2048, 2048, 4096]), SplitK::none(4096));
        assert_eq!(split(Tile::Warpgroups, [128, 4096, 4096]), SplitK::none(4096));
        assert_eq!(split(Tile::Small, [64, 64, 511]), SplitK::none(511));
        assert_eq!(split(Tile::Small, [0, 64, 512]).parts, 2);
    }

    /// Every part is non-empty, and together they cover k.
    #[test]
    fn parts_cover_the_sum() {
        for k in (0..40_000).step_by(37) {
            let SplitK { parts, depth } = SplitK::choose(Tile::Flat, [8, 128, k], 1, 132);
            assert!(parts <= MAX_PARTS && parts * depth >= k);
            assert!(parts == 1 || (parts - 1) * depth < k && depth.is_multiple_of(STEP));
        }
    }
}
