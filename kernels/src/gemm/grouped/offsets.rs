//! Group offsets, read by the kernel.

use crate::assembler::{GlobalAddress, In, Kernel, Pred, S64, U32, U64};
use crate::faults::{FaultSite, Faults};
use crate::gemm::{GemmArguments, Tile};
use crate::params;

params! {
    /// Arguments of a grouped product.
    pub struct GroupedArguments => Parameters {
        /// The matrices:
        ///
        /// - For [`GroupedM`](super::GroupedM), m is R, which includes rows that no group owns. Each group has a B,
        ///   `batch_b` apart.
        /// - For [`GroupedK`](super::GroupedK), k is R, and `lda` is the distance between two of the R rows of A. Each
        ///   group has a C, `batch_c` apart.
        ///
        /// The other batch strides are not used.
        product: GemmArguments,
        /// The start of each group and the end of the last: i64, `groups + 1` values.
        offsets: In,
        /// Stride of the offsets, in elements.
        offsets_stride: i64,
        /// Number of groups.
        groups: u32,
        /// The fault site for invalid offsets.
        faults: FaultSite,
    }
}

/// The offsets and their valid range.
pub(super) struct Offsets<'k> {
    k: &'k Kernel,
    start: GlobalAddress<'k>,
    /// Stride of the offsets, in bytes.
    stride: U64<'k>,
    /// Number of groups.
    pub(super) groups: U32<'k>,
    /// The number of rows, including those that no group owns.
    rows: U32<'k>,
    faults: Faults<'k>,
}

/// The rows of a CTA's tile.
pub(super) struct Found<'k> {
    /// Whether the CTA has a tile. The same for all its threads.
    pub(super) exists: Pred<'k>,
    /// Its group, or `groups` for rows that no group owns.
    pub(super) group: U32<'k>,
    /// The first row of the group.
    pub(super) start: U32<'k>,
    /// The number of rows of the group.
    pub(super) rows: U32<'k>,
    /// The tile's first row, relative to the group.
    pub(super) row: U32<'k>,
}

impl<'k> Offsets<'k> {
    #[track_caller]
    pub(super) fn new(parameters: &Parameters<'k>, rows: U32<'k>) -> Offsets<'k> {
        Offsets {
            k: rows.kernel(),
            start: parameters.offsets,
            stride: parameters.offsets_stride.unsigned() * 8,
            groups: parameters.groups,
            rows,
            faults: parameters.faults,
        }
    }

    /// The number of rows of all tiles together, enough for any division into groups.
    #[track_caller]
    pub(super) fn padded_rows(&self, tile: Tile) -> U32<'k> {
        let side = tile.rows();
        let whole = (self.rows + (side - 1)) & !(side - 1);
        self.groups.mad(side, whole)
    }

    /// The first row and the row count of a group; no rows if its offsets are invalid.
    #[track_caller]
    pub(super) fn rows_of(&self, group: U32<'k>) -> (U32<'k>, U32<'k>) {
        let always = self.k.constant(true);
        let [start, end] = [self.load(group, always), self.load(group + 1, always)];
        let begins = start.ge(0) & start.le(self.most(group));
        let right = begins & end.ge(start) & end.le(self.rows.wide().signed());
        self.faults.report(!right, begins.select(end, start));

        let rows = (end - start).unsigned().low();
        (start.unsigned().low(), right.select(rows, 0u32))
    }

    /// Finds the tile whose number is `padded_row` divided by the rows of a tile. All threads must
    /// call it. If any offset is invalid, no group owns a row.
    #[track_caller]
    pub(super) fn find(&self, padded_row: U32<'k>, tile: Tile) -> Found<'k> {
        let (k, shift) = (self.k, tile.rows().trailing_zeros());
        let number = padded_row >> shift;
        let first_number = |group: U32<'k>, start: U32<'k>| (start >> shift) + group;

        let (begun, wrong) = (k.var(0u32), k.var(0u32));
        k.for_range(0u32, self.groups + 1, k.threads(), |first| {
            let index = first + k.thread();
            let (exists, later) = (index.le(self.groups), index.gt(0));
            let offset = self.load(index, exists);
            let before = self.load(index - 1, exists & later);
            let right = offset.ge(before) & offset.le(self.most(index));
            self.faults.report(exists & !right, offset);

            let begins = first_number(index, offset.unsigned().low()).le(number);
            begun.add(k.barrier_count(exists & right & begins));
            wrong.add(k.barrier_count(exists & !right));
        });

        let right = wrong.equals(0);
        let group = right.select(*begun - 1, self.groups);
        let start = self.load(group, right).unsigned().low();
        let owned = group.lt(self.groups);
        let end = self.load(group + 1, owned).unsigned().low();
        let end = owned.select(end, self.rows);
        let row = (number - right.select(first_number(group, start), 0u32)) << shift;
        Found { exists: row.lt(end - start), group, start, rows: end - start, row }
    }

    /// The offset at an index if `exists`; otherwise 0.
    #[track_caller]
    fn load(&self, index: U32<'k>, exists: Pred<'k>) -> S64<'k> {
        let address = self.start.byte_add(index.wide() * self.stride);
        address.load_if::<i64>(exists)
    }

    /// The largest valid offset at an index: 0 for the first, otherwise the number of rows.
    #[track_caller]
    fn most(&self, index: U32<'k>) -> S64<'k> {
        let rows = index.gt(0).select(self.rows, 0u32);
        rows.wide().signed()
    }
}
