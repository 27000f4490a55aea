//! Rows of any length, each processed by a group of lanes of a warp that loops over the row.

use crate::assembler::{F32, GlobalAddress, Kernel, Launch, Pred, Target, U32, U64};
use crate::dtype::{Dtype, Loaded};

/// Threads per CTA.
const THREADS: u32 = 128;

/// Accesses per lane that are in flight together.
pub(crate) const IN_FLIGHT: u32 = 4;

/// The distribution of rows over lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tile {
    pub(crate) dtype: Dtype,
    /// Elements per access: 16 bytes, or one element.
    pub(crate) width: u32,
    /// Lanes per row.
    pub(crate) lanes: u32,
}

impl Tile {
    /// The distribution for rows of `features` elements. `aligned`: whether all matrices are
    /// 16-byte aligned.
    pub(crate) fn new(dtype: Dtype, features: u32, aligned: bool) -> Tile {
        let whole = aligned && features.is_multiple_of(dtype.per_vector());
        let width = if whole { dtype.per_vector() } else { 1 };
        let lanes = (features / width).clamp(1, 32).next_power_of_two();
        Tile { dtype, width, lanes }
    }

    pub(crate) fn kernel(self, entry: String) -> Kernel {
        Kernel::new(entry, Target::Sm80, THREADS).reserve_load_registers()
    }

    pub(crate) fn launch(self, rows: u64) -> Option<Launch> {
        let ctas = rows.div_ceil((THREADS / self.lanes).into());
        Launch::new([u32::try_from(ctas).unwrap_or(u32::MAX), 1, 1], THREADS)
    }

    pub(crate) fn name(self) -> String {
        let Tile { dtype, width, lanes } = self;
        format!("{}_w{width}_t{lanes}", dtype.name())
    }
}

/// A group of lanes, and its row.
pub(crate) struct Group<'k> {
    pub(crate) k: &'k Kernel,
    pub(crate) tile: Tile,
    pub(crate) row: U64<'k>,
    pub(crate) exists: Pred<'k>,
    pub(crate) lane: U32<'k>,
    features: U32<'k>,
}

impl<'k> Group<'k> {
    #[track_caller]
    pub(crate) fn new(k: &'k Kernel, tile: Tile, rows: U64<'k>, features: U32<'k>) -> Group<'k> {
        let in_cta = k.thread() >> tile.lanes.trailing_zeros();
        let row = k.cta().mul_wide(THREADS / tile.lanes) + in_cta.wide();
        Group { k, tile, row, exists: row.lt(rows), lane: k.thread() & (tile.lanes - 1), features }
    }

    /// The same group with another row. The `rows` rows are divided into `segments`, and consecutive
    /// groups have rows of different segments. Needs a group for each row of `segments` equal
    /// segments.
    #[track_caller]
    pub(crate) fn in_segments(self, rows: U32<'k>, segments: U32<'k>) -> Group<'k> {
        let of_segment = (rows + (segments - 1)) / segments;
        let in_segment = self.row.low() / segments;
        let segment = self.row.low() - in_segment * segments;
        let row = segment * of_segment + in_segment;
        Group { row: row.wide(), exists: in_segment.lt(of_segment) & row.lt(rows), ..self }
    }

    /// The address of a row of a matrix.
    #[track_caller]
    pub(crate) fn of_matrix(&self, matrix: GlobalAddress<'k>, row: U64<'k>) -> GlobalAddress<'k> {
        let elements = row * self.features.wide();
        matrix.byte_add(elements * u64::from(self.tile.dtype.size()))
    }

    /// Emits a loop over the row. Each iteration gets the first element of each of the lane's next
    /// `count` accesses, and whether it is in the row.
    #[track_caller]
    pub(crate) fn for_accesses(&self, count: u32, body: impl FnOnce(Vec<(U32<'k>, Pred<'k>)>)) {
        let Tile { width, lanes, .. } = self.tile;
        let (first, step) = (self.lane * width, lanes * width);
        self.k.for_range(first, self.features, step * count, |element| {
            let elements = (0..count).map(|i| match i {
                0 => element,
                _ => element + i * step,
            });
            body(elements.map(|it| (it, it.lt(self.features))).collect());
        });
    }

    /// The address of an element of a row.
    #[track_caller]
    pub(crate) fn at(&self, row: GlobalAddress<'k>, element: U32<'k>) -> GlobalAddress<'k> {
        row.byte_add(element.mul_wide(self.tile.dtype.size()))
    }

    /// Loads the elements of one access if the predicate is true; otherwise returns zeros.
    #[track_caller]
    pub(crate) fn load_if(&self, condition: Pred<'k>, from: GlobalAddress<'k>) -> Loaded<'k> {
        Loaded::new(self.tile.dtype, self.tile.width, condition, from)
    }

    /// Rounds and stores the elements of one access if the predicate is true.
    #[track_caller]
    pub(crate) fn store_if(&self, condition: Pred<'k>, to: GlobalAddress<'k>, values: &[F32<'k>]) {
        let dtype = self.tile.dtype;
        match values {
            [value] => dtype.store_if(condition, to, *value),
            _ => dtype.round(|i| values[i]).store_if(condition, to),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_rows_share_a_warp() {
        let tile = |features| Tile::new(Dtype::Bf16, features, true);
        assert_eq!((tile(64).width, tile(64).lanes), (8, 8));
        assert_eq!((tile(4096).width, tile(4096).lanes), (8, 32));
        assert_eq!((tile(7).width, tile(7).lanes), (1, 8));
        assert_eq!(Tile::new(Dtype::Bf16, 64, false).width, 1);
        assert_eq!(tile(64).launch(17).unwrap().grid, [2, 1, 1]);
        assert_eq!(tile(0).launch(0), None);
    }
}
