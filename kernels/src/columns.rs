//! Column-wise reductions of a matrix, in an order that depends only on its shape.

use crate::assembler::{F32, Kernel, Pred, U32, U64, Variable};
use crate::reduce_op::ReduceOp;

/// Threads per CTA.
pub(crate) const THREADS: u32 = 256;

/// Rows per thread whose loads are in flight together.
const ROWS_IN_FLIGHT: u32 = 4;

/// The distribution of columns over the threads of a CTA. `across` threads share a row; each has
/// `width` consecutive columns. The other threads of the CTA process other rows, so narrow matrices
/// keep all threads busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ColumnTile {
    pub(crate) across: u32,
    pub(crate) width: u32,
}

/// A thread's columns.
pub(crate) struct Columns<'k> {
    k: &'k Kernel,
    tile: ColumnTile,
    across: U32<'k>,
    below: U32<'k>,
    /// The thread's first column.
    pub(crate) first: U32<'k>,
    /// Whether the thread's columns are in the matrix.
    pub(crate) exist: Pred<'k>,
}

impl ColumnTile {
    /// Columns per CTA.
    pub(crate) fn columns(self) -> u32 {
        self.across * self.width
    }

    /// Rows that a CTA processes together.
    fn lanes(self) -> u32 {
        THREADS / self.across
    }
}

impl<'k> Columns<'k> {
    #[track_caller]
    pub(crate) fn new(k: &'k Kernel, tile: ColumnTile, features: U32<'k>) -> Columns<'k> {
        let across = k.thread() & (tile.across - 1);
        let below = k.thread() >> tile.across.trailing_zeros();
        let first = (k.cta() * tile.across + across) * tile.width;
        Columns { k, tile, across, below, first, exist: first.lt(features) }
    }

    /// Reduces `values(load(row))` over rows `start..end`. All rows of a step are loaded before the
    /// first is used. If a row's predicate is false, `values` must return the identity of `op`. The
    /// result is complete in threads for which [`Columns::lead`] is true.
    #[track_caller]
    pub(crate) fn fold<Loaded>(
        &self,
        [start, end]: [U64<'k>; 2],
        op: ReduceOp,
        load: impl Fn(U64<'k>, Pred<'k>) -> Loaded,
        values: impl Fn(Loaded, Pred<'k>) -> Vec<F32<'k>>,
    ) -> Vec<F32<'k>> {
        let lanes = u64::from(self.tile.lanes());
        let folded = (0..self.tile.width).map(|_| self.k.var(op.identity()));
        let folded: Vec<Variable<'k, f32>> = folded.collect();

        let step = lanes * u64::from(ROWS_IN_FLIGHT);
        self.k.for_range(start + self.below.wide(), end, step, |row| {
            let rows = (0..u64::from(ROWS_IN_FLIGHT)).map(|i| {
                let row = row + i * lanes;
                let exists = self.exist & row.lt(end);
                (load(row, exists), exists)
            });
            for (loaded, exists) in rows.collect::<Vec<_>>() {
                for (folded, value) in folded.iter().zip(values(loaded, exists)) {
                    op.accumulate(folded, value);
                }
            }
        });
        self.over_lanes(&folded, op)
    }

    /// Whether this thread has the complete results of its columns.
    #[track_caller]
    pub(crate) fn lead(&self) -> Pred<'k> {
        self.exist & self.below.equals(0)
    }

    /// Merges the results of threads with the same columns, in row order.
    #[track_caller]
    fn over_lanes(&self, folded: &[Variable<'k, f32>], op: ReduceOp) -> Vec<F32<'k>> {
        let (across, lanes) = (self.tile.across, self.tile.lanes());
        let own = folded.iter().map(Variable::get).collect();
        if lanes == 1 {
            return own;
        }

        // One plane for each of a thread's columns, so that neighboring threads write neighboring
        // words.
        let shared = self.k.shared::<f32>(THREADS * self.tile.width);
        let address = shared.element::<f32>(self.below.mad(across, self.across));
        for (plane, value) in (0..).zip(&own) {
            address.offset(4 * THREADS * plane).store(*value);
        }
        self.k.barrier();

        let top = shared.element::<f32>(self.across);
        let total = |plane: u32| {
            let of_lane = |lane| top.offset(4 * (THREADS * plane + lane * across)).load::<f32>();
            (1..lanes).fold(of_lane(0), |total, lane| op.apply(total, of_lane(lane)))
        };
        (0..self.tile.width).map(total).collect()
    }
}
