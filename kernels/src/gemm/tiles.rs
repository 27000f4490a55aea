//! Which tile of C a CTA computes.

use super::Call;
use crate::assembler::{Kernel, Launch, U32};

/// Rows of tiles that are walked together.
///
/// CTAs start in order of their index. Row by row, those that run at one time would share a row of
/// A and read all of B; in groups of this many rows they share both, out of the L2 cache.
pub const GROUP: u32 = 8;

/// How much of C a CTA computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tile {
    /// 128 by 128: the least traffic.
    Large,
    /// 64 by 64: four times the CTAs, for products that would leave multiprocessors idle.
    Small,
}

impl Tile {
    /// Both.
    pub const ALL: [Tile; 2] = [Tile::Large, Tile::Small];

    /// The tile for `batch` products on a GPU with as many multiprocessors: the large one if it
    /// gives each of them something to do.
    pub fn choose(m: u32, n: u32, batch: u32, multiprocessors: u32) -> Tile {
        match Tile::Large.count(m, n) * u64::from(batch) >= u64::from(multiprocessors) {
            true => Tile::Large,
            false => Tile::Small,
        }
    }

    /// Its rows and its columns.
    pub fn side(self) -> u32 {
        match self {
            Tile::Large => 128,
            Tile::Small => 64,
        }
    }

    /// Tiles of C.
    fn count(self, m: u32, n: u32) -> u64 {
        u64::from(m.div_ceil(self.side())) * u64::from(n.div_ceil(self.side()))
    }

    /// A CTA for each tile of each product; `None` for an empty C.
    pub(super) fn launch(self, m: u32, n: u32, batch: u32, threads: u32) -> Option<Launch> {
        let ctas = self.count(m, n).saturating_mul(batch.into());
        let ctas = u32::try_from(ctas).unwrap_or(u32::MAX);
        Launch::new([ctas, 1, 1], threads)
    }
}

/// The tile of a CTA.
pub(super) struct Place<'k> {
    /// The product of the batch.
    pub(super) batch: U32<'k>,
    /// The first row.
    pub(super) row: U32<'k>,
    /// The first column.
    pub(super) column: U32<'k>,
}

impl<'k> Place<'k> {
    #[track_caller]
    pub(super) fn of_cta(kernel: &'k Kernel, call: &Call<'k>, tile: Tile) -> Place<'k> {
        let side = tile.side();
        let tiles = |extent: U32<'k>| (extent + (side - 1)) >> side.trailing_zeros();
        let (tiles_m, tiles_n) = (tiles(call.m), tiles(call.n));

        let per_product = tiles_m * tiles_n;
        let batch = kernel.cta() / per_product;
        let tile = kernel.cta() - batch * per_product;

        let per_group = tiles_n * GROUP;
        let first = (tile / per_group) * GROUP;
        let rows = (tiles_m - first).min(GROUP);
        let in_group = tile % per_group;
        Place {
            batch,
            row: (first + in_group % rows) * side,
            column: (in_group / rows) * side,
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
        assert_eq!(grid(Tile::Small, 0, 128, 3), None);
        assert_eq!(grid(Tile::Small, 1, 1, 0), None);
    }

    #[test]
    fn small_products_take_small_tiles() {
        assert_eq!(Tile::choose(4096, 4096, 1, 132), Tile::Large);
        assert_eq!(Tile::choose(256, 256, 1, 132), Tile::Small);
        assert_eq!(Tile::choose(256, 256, 64, 132), Tile::Large);
    }
}
