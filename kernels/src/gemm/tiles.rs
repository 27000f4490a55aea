//! Tile shapes, and the order in which CTAs compute the tiles of C.

use super::Call;
use crate::assembler::{Kernel, Launch, U32};

/// Rows of tiles per group of the rasterization order.
///
/// CTAs start in index order. If tiles were in row-major order, concurrent CTAs would share rows of
/// A but read all of B. In groups of this many tile rows they share both through the L2 cache.
pub const GROUP: u32 = 8;

/// What the choice of a tile depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chip {
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Whether it runs kernels for [`Target::Sm90a`](crate::Target::Sm90a).
    pub warpgroup_products: bool,
}

/// The tile of C that a CTA computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tile {
    /// 128 by 128: little memory traffic.
    Large,
    /// 64 by 64: four times as many CTAs, if larger tiles would leave multiprocessors idle.
    Small,
    /// 32 by 128: for products with few rows, which would leave other tiles mostly empty.
    Flat,
    /// 128 by 256: the least traffic, for bf16 only. The 64 by 64 accumulators of a warp fill its
    /// registers. A warp loads a third less from shared memory per FLOP than in the large tile.
    Wide,
    /// 128 by 256, by two warpgroups, for aligned bf16 on GPUs that have `wgmma`. The tensor cores
    /// read both operands from shared memory, so registers hold only the accumulators.
    Warpgroups,
}

impl Chip {
    /// Whether warpgroups are the fastest: if they are not half empty, and a quarter of the
    /// multiprocessors have a tile. On an H100, 64 tiles reach 540 TFLOP/s, and all other tiles
    /// together 330.
    pub(super) fn prefers_warpgroups(self, m: u32, n: u32, batch: u32) -> bool {
        let tiles = Tile::Warpgroups.count(m, n, batch);
        self.warpgroup_products
            && n > Tile::Warpgroups.columns() / 2
            && 4 * tiles >= u64::from(self.multiprocessors)
    }
}

impl Tile {
    /// The tiles of the f32 kernels.
    pub const OF_F32: [Tile; 3] = [Tile::Large, Tile::Small, Tile::Flat];

    /// The tiles of the grouped kernels. `aligned_bf16`: as in [`Tile::choose_grouped`].
    pub fn grouped(aligned_bf16: bool) -> &'static [Tile] {
        match aligned_bf16 {
            true => &[Tile::Large, Tile::Small, Tile::Warpgroups],
            false => &[Tile::Large, Tile::Small],
        }
    }

    /// All variants.
    pub const ALL: [Tile; 5] = [Tile::Large, Tile::Small, Tile::Flat, Tile::Wide, Tile::Warpgroups];

    /// The tile for `batch` products: flat for up to 32 rows, otherwise square.
    pub fn choose(m: u32, n: u32, batch: u32, multiprocessors: u32) -> Tile {
        match m <= Tile::Flat.rows() {
            true => Tile::Flat,
            false => Tile::choose_square(m, n, batch, multiprocessors),
        }
    }

    /// The large tile if there are enough of them to occupy all multiprocessors, otherwise the
    /// small one.
    pub fn choose_square(m: u32, n: u32, batch: u32, multiprocessors: u32) -> Tile {
        match Tile::Large.count(m, n, batch) >= u64::from(multiprocessors) {
            true => Tile::Large,
            false => Tile::Small,
        }
    }

    /// Like [`Tile::choose_square`], for a grouped product. `aligned_bf16`: whether the operands are
    /// bf16 and aligned as in [`GemmBf16::aligned`](super::GemmBf16::aligned).
    pub fn choose_grouped(m: u32, n: u32, batch: u32, aligned_bf16: bool, chip: Chip) -> Tile {
        match aligned_bf16 && chip.prefers_warpgroups(m, n, batch) {
            true => Tile::Warpgroups,
            false => Tile::choose_square(m, n, batch, chip.multiprocessors),
        }
    }

    /// Like [`Tile::choose`], for aligned bf16. Large products get the wide tile if there are at
    /// least two per multiprocessor; a multiprocessor runs one at a time.
    pub fn choose_bf16(m: u32, n: u32, batch: u32, chip: Chip) -> Tile {
        let multiprocessors = chip.multiprocessors;
        let wide = Tile::Wide.count(m, n, batch) >= 2 * u64::from(multiprocessors);
        match Tile::choose(m, n, batch, multiprocessors) {
            Tile::Flat => Tile::Flat,
            _ if chip.prefers_warpgroups(m, n, batch) => Tile::Warpgroups,
            Tile::Large if wide && n >= Tile::Wide.columns() => Tile::Wide,
            other => other,
        }
    }

    /// Its rows.
    pub fn rows(self) -> u32 {
        match self {
            Tile::Large | Tile::Wide | Tile::Warpgroups => 128,
            Tile::Small => 64,
            Tile::Flat => 32,
        }
    }

    /// Its columns.
    pub fn columns(self) -> u32 {
        match self {
            Tile::Wide | Tile::Warpgroups => 256,
            Tile::Large | Tile::Flat => 128,
            Tile::Small => 64,
        }
    }

    /// `128x256`.
    pub(super) fn name(self) -> String {
        let how = if self == Tile::Warpgroups { "wg" } else { "" };
        format!("{how}{}x{}", self.rows(), self.columns())
    }

    /// The number of tiles of `batch` products.
    pub(super) fn count(self, m: u32, n: u32, batch: u32) -> u64 {
        let of_product = u64::from(m.div_ceil(self.rows())) * u64::from(n.div_ceil(self.columns()));
        of_product.saturating_mul(batch.into())
    }

    /// A CTA for each tile of each product; `None` if C is empty.
    pub(super) fn launch(self, m: u32, n: u32, batch: u32, threads: u32) -> Option<Launch> {
        let ctas = u32::try_from(self.count(m, n, batch)).unwrap_or(u32::MAX);
        Launch::new([ctas, 1, 1], threads)
    }
}

/// The tile that a CTA computes.
pub(super) struct CtaTile<'k> {
    /// The index of the product in the batch.
    pub(super) batch: U32<'k>,
    /// The first row.
    pub(super) row: U32<'k>,
    /// The first column.
    pub(super) column: U32<'k>,
}

impl<'k> CtaTile<'k> {
    #[track_caller]
    pub(super) fn of_cta(kernel: &'k Kernel, call: &Call<'k>, tile: Tile) -> CtaTile<'k> {
        let [rows, columns] = [tile.rows(), tile.columns()];
        let tiles = |extent: U32<'k>, side: u32| (extent + (side - 1)) >> side.trailing_zeros();
        let (tiles_m, tiles_n) = (tiles(call.m, rows), tiles(call.n, columns));

        let per_product = tiles_m * tiles_n;
        let batch = kernel.cta() / per_product;
        let tile = kernel.cta() - batch * per_product;

        let per_group = tiles_n * GROUP;
        let first = (tile / per_group) * GROUP;
        let in_column = (tiles_m - first).min(GROUP);
        let in_group = tile % per_group;
        CtaTile {
            batch,
            row: (first + in_group % in_column) * rows,
            column: (in_group / in_column) * columns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tile_has_its_cta() {
        let grid = |tile: Tile, m, n, batch| tile.launch(m, n, batch, 256).map(|l| l.grid[0]);
        assert_eq!(grid(Tile::Large, 129, 128, 3), Some(6));
        assert_eq!(grid(Tile::Small, 129, 128, 3), Some(18));
        assert_eq!(grid(Tile::Flat, 33, 129, 3), Some(12));
        assert_eq!(grid(Tile::Wide, 129, 256, 3), Some(6));
        assert_eq!(grid(Tile::Small, 0, 128, 3), None);
        assert_eq!(grid(Tile::Small, 1, 1, 0), None);
    }

    #[test]
    fn small_products_take_small_tiles() {
        assert_eq!(Tile::choose(4096, 4096, 1, 132), Tile::Large);
        assert_eq!(Tile::choose(256, 256, 1, 132), Tile::Small);
        assert_eq!(Tile::choose(256, 256, 64, 132), Tile::Large);
        assert_eq!(Tile::choose(32, 4096, 64, 132), Tile::Flat);
    }

    #[test]
    fn large_products_take_wide_tiles() {
        let choose = |m, n| Tile::choose_bf16(m, n, 1, chip(false));
        assert_eq!(choose(4096, 4096), Tile::Wide);
        assert_eq!(choose(2048, 2048), Tile::Large);
        assert_eq!(choose(1 << 16, 128), Tile::Large);
        assert_eq!(choose(16, 1 << 20), Tile::Flat);
        assert_eq!(choose(256, 256), Tile::Small);
    }

    /// From half a tile's columns on, and with tiles for a quarter of the multiprocessors.
    #[test]
    fn warpgroups_are_used_where_they_are_not_idle() {
        let choose = |m, n| Tile::choose_bf16(m, n, 1, chip(true));
        assert_eq!(choose(4096, 4096), Tile::Warpgroups);
        assert_eq!(choose(128 * 33, 136), Tile::Warpgroups);
        assert_eq!(choose(128 * 32, 136), Tile::Small);
        assert_eq!(choose(1 << 16, 128), Tile::Large);
        assert_eq!(choose(16, 1 << 20), Tile::Flat);
    }

    fn chip(warpgroup_products: bool) -> Chip {
        Chip { multiprocessors: 132, warpgroup_products }
    }
}
