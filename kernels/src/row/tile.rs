//! How rows that fit in registers are distributed over threads.

use crate::assembler::Launch;
use crate::dtype::Dtype;

/// Threads per CTA for short rows.
const SHORT_ROW_THREADS: u32 = 128;

/// Maximum number of accesses per thread to one row; more would not fit in registers.
const MAX_VECTORS: u32 = 4;

/// Maximum number of threads per row.
const MAX_LANES: u32 = 512;

/// How rows are distributed over threads. Known when the kernel is generated, so all loops unroll.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowTile {
    pub(super) dtype: Dtype,
    pub(super) features: u32,
    pub(super) lanes: u32,
}

impl RowTile {
    /// The tile for rows of `features` elements. `None` if rows are not whole 16-byte vectors or do
    /// not fit in registers; such rows need a kernel that loops.
    pub fn new(dtype: Dtype, features: usize) -> Option<RowTile> {
        let features = u32::try_from(features).ok()?;
        let vectors = features / dtype.per_vector();
        let whole = features > 0 && features.is_multiple_of(dtype.per_vector());
        if !whole || vectors > MAX_LANES * MAX_VECTORS {
            return None;
        }

        // Two accesses per thread on average; up to four before a row needs more than one warp.
        let wanted = match vectors <= 32 * MAX_VECTORS {
            true => vectors.next_power_of_two().min(32),
            false => vectors.div_ceil(2).next_power_of_two().min(MAX_LANES),
        };
        Some(RowTile { dtype, features, lanes: wanted })
    }

    /// Elements per row.
    pub fn features(self) -> u32 {
        self.features
    }

    /// Threads per CTA.
    pub fn threads(self) -> u32 {
        self.lanes.max(SHORT_ROW_THREADS)
    }

    /// Rows per CTA.
    pub fn rows(self) -> u32 {
        self.threads() / self.lanes
    }

    /// The launch over rows; `None` if there are no rows.
    pub fn launch(self, rows: u64) -> Option<Launch> {
        let ctas = rows.div_ceil(self.rows().into());
        Launch::new([u32::try_from(ctas).unwrap_or(u32::MAX), 1, 1], self.threads())
    }

    /// The part of a kernel's name for this tile: `bf16_d1024_t32`.
    pub fn name(self) -> String {
        format!("{}_d{}_t{}", self.dtype.name(), self.features, self.lanes)
    }

    /// Accesses per thread to a row.
    pub(crate) fn vectors(self) -> u32 {
        (self.features / self.dtype.per_vector()).div_ceil(self.lanes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every element of a row belongs to exactly one thread, and no thread has more vectors than
    /// fit. A row that needs more than one warp has its own CTA, over which a row sum sums.
    #[test]
    fn tiles_cover_their_rows() {
        for dtype in Dtype::ALL {
            for features in 1..20_000 {
                let Some(tile) = RowTile::new(dtype, features) else {
                    let whole = features % dtype.per_vector() as usize == 0;
                    assert!(!whole || features > 2048 * dtype.per_vector() as usize);
                    continue;
                };
                let reach = tile.lanes * tile.vectors() * dtype.per_vector();
                assert!(reach >= tile.features && tile.vectors() <= MAX_VECTORS, "{tile:?}");
                assert!(reach - tile.features < tile.lanes * dtype.per_vector(), "{tile:?}");
                assert!(tile.lanes.is_power_of_two() && tile.rows() * tile.lanes == tile.threads());
                assert!(tile.lanes <= 32 || tile.rows() == 1, "{tile:?}");
            }
        }
    }

    #[test]
    fn short_rows_share_a_cta() {
        let rows = |features| RowTile::new(Dtype::Bf16, features).unwrap().rows();
        assert_eq!((rows(128), rows(1024), rows(4096)), (8, 4, 1));
        let tile = RowTile::new(Dtype::Bf16, 128).unwrap();
        assert_eq!(tile.launch(9).unwrap().grid, [2, 1, 1]);
        assert_eq!(tile.launch(0), None);
    }
}
