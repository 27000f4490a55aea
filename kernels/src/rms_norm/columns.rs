//! Sums down the columns of a matrix, in an order that depends on its shape alone.

use crate::assembler::{F32, Kernel, Pred, U32, U64, Variable};

/// Threads of a CTA.
pub(super) const THREADS: u32 = 256;

/// Rows of a thread whose loads are in flight together.
const ROWS_IN_FLIGHT: u32 = 4;

/// How columns are spread over the threads of a CTA: `across` threads side by side, each with
/// `width` neighbouring columns, and as many times below each other as the CTA has room. Narrow
/// matrices thus keep all threads busy, by many rows at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ColumnTile {
    pub(super) across: u32,
    pub(super) width: u32,
}

/// What a thread knows of its columns.
pub(super) struct Columns<'k> {
    k: &'k Kernel,
    tile: ColumnTile,
    across: U32<'k>,
    below: U32<'k>,
    /// Its first column.
    pub(super) first: U32<'k>,
    /// Whether its columns are in the matrix.
    pub(super) exist: Pred<'k>,
}

impl ColumnTile {
    /// Columns of a CTA.
    pub(super) fn columns(self) -> u32 {
        self.across * self.width
    }

    /// Threads below each other.
    fn lanes(self) -> u32 {
        THREADS / self.across
    }
}

impl<'k> Columns<'k> {
    #[track_caller]
    pub(super) fn new(k: &'k Kernel, tile: ColumnTile, features: U32<'k>) -> Columns<'k> {
        let across = k.thread() & (tile.across - 1);
        let below = k.thread() >> tile.across.trailing_zeros();
        let first = (k.cta() * tile.across + across) * tile.width;
        Columns {
            k,
            tile,
            across,
            below,
            first,
            exist: first.lt(features),
        }
    }

    /// The sums over rows from `start` to before `end` of what `load` gives for a row, where its
    /// predicate holds, and zeros elsewhere. Complete in threads that [`Columns::lead`].
    #[track_caller]
    pub(super) fn sums(
        &self,
        start: U64<'k>,
        end: U64<'k>,
        load: impl Fn(U64<'k>, Pred<'k>) -> Vec<F32<'k>>,
    ) -> Vec<F32<'k>> {
        let lanes = u64::from(self.tile.lanes());
        let sums: Vec<Variable<'k, f32>> =
            (0..self.tile.width).map(|_| self.k.var(0.0_f32)).collect();

        let step = lanes * u64::from(ROWS_IN_FLIGHT);
        self.k
            .for_range(start + self.below.wide(), end, step, |row| {
                let rows = (0..u64::from(ROWS_IN_FLIGHT)).map(|i| {
                    let row = row + i * lanes;
                    load(row, self.exist & row.lt(end))
                });
                for values in rows.collect::<Vec<_>>() {
                    for (sum, value) in sums.iter().zip(values) {
                        sum.add(value);
                    }
                }
            });
        self.over_lanes(&sums)
    }

    /// Whether this thread has the sums of its columns.
    #[track_caller]
    pub(super) fn lead(&self) -> Pred<'k> {
        self.exist & self.below.equals(0)
    }

    /// Adds what the threads below each other have, from top to bottom.
    #[track_caller]
    fn over_lanes(&self, sums: &[Variable<'k, f32>]) -> Vec<F32<'k>> {
        let (across, lanes) = (self.tile.across, self.tile.lanes());
        let own = sums.iter().map(Variable::get).collect();
        if lanes == 1 {
            return own;
        }

        // One plane for each column of a thread: neighbours write neighbouring words.
        let shared = self.k.shared::<f32>(THREADS * self.tile.width);
        let place = shared.element::<f32>(self.below.mad(across, self.across));
        for (plane, sum) in (0..).zip(&own) {
            place.offset(4 * THREADS * plane).store(*sum);
        }
        self.k.barrier();

        let top = shared.element::<f32>(self.across);
        let total = |plane: u32| {
            let of_lane = |lane| {
                top.offset(4 * (THREADS * plane + lane * across))
                    .load::<f32>()
            };
            (1..lanes).fold(of_lane(0), |sum, lane| sum + of_lane(lane))
        };
        (0..self.tile.width).map(total).collect()
    }
}
