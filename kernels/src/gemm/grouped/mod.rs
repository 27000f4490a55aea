//! Grouped matrix products with ragged groups: the experts of a mixture-of-experts layer.
//!
//! Group g owns the rows `offsets[g]..offsets[g + 1]` of a matrix of R rows. There are two kernels,
//! named after the dimension that is divided into groups:
//!
//! - [`GroupedM`]: C_rows = A_rows B_g. Each group's rows of A are multiplied by the group's own B.
//!   The forward pass uses it, and the gradient of the input. Rows past the last offset become
//!   zero.
//! - [`GroupedK`]: C_g = A_rows^T B_rows, or C_g += A_rows^T B_rows. The gradient of the weights
//!   uses it.
//!
//! **Only the GPU reads the offsets.** The host does not know where groups begin, so the size of
//! the grid follows from R and the number of groups. A tile must not cross the end of a group, so
//! there are at most `ceil(R / side) + groups` tiles along the rows, where `side` is the number of
//! rows per tile. CTAs without a tile exit after a few hundred instructions.
//!
//! **The tile of a CTA** follows from the group starts alone. The tiles of group g are
//! numbered from `offsets[g] / side + g`. That leaves room for all tiles of a group with n rows
//! from offset o, because `ceil(n / side) <= (o + n) / side - o / side + 1` with integer division.
//! Every group gets at least one number, so the first numbers are strictly increasing, and a CTA's
//! group is the last one whose first number is not greater than its own. Each thread tests one
//! group, and a barrier counts those that begin at this CTA or before, so no prefix sum is needed.
//! The rows past the last offset are one more group, with an empty sum.
//!
//! **Within a tile**, the kernels are the dense ones, restricted to the group's rows. A sum runs
//! from the first k to the last, so the bits of an element depend neither on the tile, nor on
//! neighbors, nor on group positions.
//!
//! **Invalid offsets** (not starting with 0, decreasing, or past R) are reported to the host
//! ([`faults`](crate::faults)). [`GroupedM`] then writes zeros to all rows; [`GroupedK`] treats the
//! affected groups as empty.

mod offsets;

pub use self::offsets::GroupedArguments;

use self::offsets::Offsets;
use super::tiles::CtaTile;
use super::{Call, Chip, GemmBf16, GemmF32, Matrix, Order, Output, Tile};
use crate::Dtype;
use crate::assembler::{Kernel, Launch, Ptx, U32, Variant};

/// C_rows = A_rows B_g for the rows of each group g. A is row-major, and C has A's dtype. Rows of C
/// past the last offset become zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupedM {
    product: Product,
}

/// C_g = A_rows^T B_rows, or C_g += A_rows^T B_rows, over the rows of each group g. A and B are
/// row-major, and C is f32. For a group without rows the product is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupedK {
    product: Product,
    adds: bool,
}

impl GroupedM {
    /// The kernel for operands of `dtype`, with each B stored in `order`. `aligned` has the meaning
    /// of [`GemmBf16::aligned`] and is ignored for f32.
    pub fn new(dtype: Dtype, order: Order, tile: Tile, aligned: bool) -> GroupedM {
        let product = match dtype {
            Dtype::F32 => {
                Product::F32(GemmF32 { a: Order::RowMajor, b: order, tile, accumulate: false })
            }
            Dtype::Bf16 => Product::Bf16(GemmBf16 {
                a: Order::RowMajor,
                b: order,
                tile,
                output: Output::Bf16,
                aligned,
            }),
        };
        GroupedM { product }
    }

    /// The tile for `groups` groups with `rows` rows in total. It is large if an average group
    /// fills a large tile and there are enough tiles to occupy all multiprocessors.
    /// `aligned_bf16`: as in [`Tile::choose_grouped`].
    pub fn tile(rows: u32, n: u32, groups: u32, aligned_bf16: bool, chip: Chip) -> Tile {
        match rows / groups.max(1) >= Tile::Large.rows() {
            true => Tile::choose_grouped(rows, n, 1, aligned_bf16, chip),
            false => Tile::Small,
        }
    }

    /// The launch; `None` if C is empty.
    pub fn launch(&self, rows: u32, n: u32, groups: u32) -> Option<Launch> {
        let side = self.product.tile().rows();
        let tiles = match rows {
            0 => 0,
            _ => rows.div_ceil(side).saturating_add(groups),
        };
        self.product.launch(tiles.saturating_mul(side), n, 1)
    }
}

impl Variant for GroupedM {
    type Arguments = GroupedArguments;

    fn ptx(&self) -> Ptx {
        let (tile, [size, size_of_c]) = (self.product.tile(), self.product.sizes());
        let k = &self.product.kernel(self.entry());
        let parameters = self.parameters(k);
        let call = Call::new(parameters.product);
        let offsets = Offsets::new(&parameters, call.m);

        let padded = offsets.padded_rows(tile);
        let cta = CtaTile::of_cta(k, &Call { m: padded, ..call }, tile);
        let found = offsets.find(cta.row, tile);
        k.if_(found.exists, || {
            let a = call.a.lines_from(found.start, size);
            let b = call.b.of_batch(found.group, size);
            let c = || call.c.lines_from(found.start, size_of_c);
            // Rows past the last group have an empty sum, so zeros are stored.
            let depth = found.group.lt(offsets.groups).select(call.k, 0u32);
            let call = Call { a, b, m: found.rows, k: depth, ..call };
            self.product.multiply(k, &call, [found.row, cta.column], c);
        });
        k.finish()
    }

    fn entry(&self) -> String {
        format!("grouped_m_{}", self.product.entry())
    }
}

impl GroupedK {
    /// The kernel for operands of `dtype`. `adds`: whether the products are added to C. `aligned`
    /// has the meaning of [`GemmBf16::aligned`] and is ignored for f32.
    pub fn new(dtype: Dtype, tile: Tile, adds: bool, aligned: bool) -> GroupedK {
        let (a, b) = (Order::ColumnMajor, Order::RowMajor);
        let product = match dtype {
            Dtype::F32 => Product::F32(GemmF32 { a, b, tile, accumulate: adds }),
            Dtype::Bf16 => Product::Bf16(GemmBf16 {
                a,
                b,
                tile,
                output: if adds { Output::AddF32 } else { Output::F32 },
                aligned,
            }),
        };
        GroupedK { product, adds }
    }

    /// The launch; `None` if C is empty.
    pub fn launch(&self, m: u32, n: u32, groups: u32) -> Option<Launch> {
        self.product.launch(m, n, groups)
    }
}

impl Variant for GroupedK {
    type Arguments = GroupedArguments;

    fn ptx(&self) -> Ptx {
        let [size, size_of_c] = self.product.sizes();
        let k = &self.product.kernel(self.entry());
        let parameters = self.parameters(k);
        let call = Call::new(parameters.product);
        let offsets = Offsets::new(&parameters, call.k);

        let cta = CtaTile::of_cta(k, &call, self.product.tile());
        let (start, rows) = offsets.rows_of(cta.batch);
        let sum = || {
            let [a, b] = [call.a, call.b].map(|matrix| matrix.lines_from(start, size));
            let c = || call.c.of_batch(cta.batch, size_of_c);
            let call = Call { a, b, k: rows, ..call };
            self.product.multiply(k, &call, [cta.row, cta.column], c);
        };
        match self.adds {
            true => k.if_(rows.gt(0), sum),
            false => sum(),
        }
        k.finish()
    }

    fn entry(&self) -> String {
        format!("grouped_k_{}", self.product.entry())
    }
}

/// The dense kernel that a CTA runs once its group is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Product {
    F32(GemmF32),
    Bf16(GemmBf16),
}

impl Product {
    fn tile(&self) -> Tile {
        match self {
            Product::F32(product) => product.tile,
            Product::Bf16(product) => product.tile,
        }
    }

    /// Bytes per element of A and B, and of C.
    fn sizes(&self) -> [u32; 2] {
        match self {
            Product::F32(_) => [4, 4],
            Product::Bf16(product) => [2, product.output.size()],
        }
    }

    fn entry(&self) -> String {
        match self {
            Product::F32(product) => product.entry(),
            Product::Bf16(product) => product.entry(),
        }
    }

    fn launch(&self, m: u32, n: u32, batch: u32) -> Option<Launch> {
        match self {
            Product::F32(product) => product.launch(m, n, batch),
            Product::Bf16(product) => product.launch(m, n, batch),
        }
    }

    fn kernel(&self, entry: String) -> Kernel {
        match self {
            Product::F32(product) => product.kernel(entry),
            Product::Bf16(product) => product.kernel(entry),
        }
    }

    fn multiply<'k>(
        &self,
        k: &'k Kernel,
        call: &Call<'k>,
        origin: [U32<'k>; 2],
        c: impl FnOnce() -> Matrix<'k>,
    ) {
        match self {
            Product::F32(product) => product.multiply(k, call, origin, c),
            Product::Bf16(product) => product.multiply(k, call, origin, c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The grid has room for a partial tile at the end of every group.
    #[test]
    fn every_group_may_end_within_a_tile() {
        let variant = GroupedM::new(Dtype::Bf16, Order::RowMajor, Tile::Small, true);
        let grid = |rows, n, groups| variant.launch(rows, n, groups).map(|launch| launch.grid[0]);
        assert_eq!(grid(129, 65, 5), Some((3 + 5) * 2));
        assert_eq!(grid(1, 1, 0), Some(1));
        assert_eq!(grid(0, 65, 5), None);
        assert_eq!(grid(129, 0, 5), None);
    }

    #[test]
    fn small_groups_take_small_tiles() {
        let tile = |warpgroup_products, rows, n, groups| {
            let chip = Chip { multiprocessors: 132, warpgroup_products };
            GroupedM::tile(rows, n, groups, true, chip)
        };
        assert_eq!(tile(false, 65536, 2048, 128), Tile::Large);
        assert_eq!(tile(true, 65536, 2048, 128), Tile::Warpgroups);
        assert_eq!(tile(true, 16000, 2048, 128), Tile::Small);
        assert_eq!(tile(true, 1024, 256, 2), Tile::Small);
        assert_eq!(tile(true, 1024, 256, 0), Tile::Small);
    }
}
