//! Rows of a matrix in registers, for kernels that normalize, scale or compare whole rows.
//!
//! Such a kernel is bound by memory. It should read every element once, in 16-byte accesses, and
//! issue all loads of a row before waiting for the first. The row then stays in registers until it
//! is written. A few lanes of a warp share a short row, so that no lane is idle and sums need no
//! shared memory; a whole CTA shares a long one.

mod form;
mod part;

pub(crate) use form::{Form, LongRow, LoopTile, element};
pub use part::chunk_of_rows;
pub(crate) use part::{Chunked, ENOUGH_CTAS, IN_FLIGHT, MAX_CHUNK, PART_THREADS, Part, PartTile};

use crate::assembler::{
    F32, GlobalAddress, Kernel, Launch, Pred, U64, block_reduce, block_sum, group_reduce, group_sum,
};
use crate::dtype::{Dtype, Vector};

/// Threads per CTA for short rows.
const SHORT_ROW_THREADS: u32 = 128;

/// Maximum number of accesses per thread to one row; more would not fit in registers.
const MAX_VECTORS: u32 = 4;

/// Maximum number of threads per row.
const MAX_LANES: u32 = 512;

/// How rows are distributed over threads. Known when the kernel is generated, so all loops unroll.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowTile {
    dtype: Dtype,
    features: u32,
    lanes: u32,
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
        Some(RowTile {
            dtype,
            features,
            lanes: wanted,
        })
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
        Launch::new(
            [u32::try_from(ctas).unwrap_or(u32::MAX), 1, 1],
            self.threads(),
        )
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

/// The row that a thread works on.
#[derive(Clone)]
pub struct Row<'k> {
    k: &'k Kernel,
    tile: RowTile,
    index: U64<'k>,
    /// Index in the row of the thread's first element.
    first: U64<'k>,
    /// For each of the thread's vectors: whether it is within an existing row.
    exists: Vec<Pred<'k>>,
    leads: Pred<'k>,
}

/// The elements of a row that a thread has loaded, as stored in memory.
pub struct LoadedRow<'k>(Vec<Vector<'k>>);

impl<'k> LoadedRow<'k> {
    /// The elements as f32; 0 where the row or the vector does not exist.
    #[track_caller]
    pub fn widen(&self) -> Vec<F32<'k>> {
        self.0.iter().flat_map(Vector::widen).collect()
    }

    /// The sum of two rows, rounded to their dtype.
    #[track_caller]
    pub fn plus(&self, other: &LoadedRow<'k>) -> LoadedRow<'k> {
        let vectors = self.0.iter().zip(&other.0);
        LoadedRow(vectors.map(|(a, b)| a.plus(b)).collect())
    }
}

impl<'k> Row<'k> {
    /// The row of this thread in a kernel of [`RowTile::threads`] threads.
    #[track_caller]
    pub fn new(k: &'k Kernel, tile: RowTile, rows: U64<'k>) -> Row<'k> {
        let (thread, per_vector) = (k.thread(), tile.dtype.per_vector());
        let in_cta = thread >> tile.lanes.trailing_zeros();
        let lane = thread & (tile.lanes - 1);
        let index = k.cta().mul_wide(tile.rows()) + in_cta.wide();

        let in_matrix = index.lt(rows);
        let exists = (0..tile.vectors()).map(|vector| {
            let last = tile.features - vector * tile.lanes * per_vector;
            match last >= tile.lanes * per_vector {
                true => in_matrix,
                false => in_matrix & (lane * per_vector).lt(last),
            }
        });
        Row {
            k,
            tile,
            index,
            first: (lane * per_vector).wide(),
            exists: exists.collect(),
            leads: in_matrix & lane.equals(0),
        }
    }

    /// Loads this row of a matrix.
    #[track_caller]
    pub fn load(&self, matrix: GlobalAddress<'k>) -> LoadedRow<'k> {
        self.load_from(self.of_matrix(matrix))
    }

    /// Loads the elements of a \[D\] vector in the columns of this thread.
    #[track_caller]
    pub fn load_vector(&self, vector: GlobalAddress<'k>) -> LoadedRow<'k> {
        self.load_from(vector.byte_add(self.first * u64::from(self.tile.dtype.size())))
    }

    /// Loads this row's element of an f32 vector with one element per row.
    #[track_caller]
    pub fn load_scalar(&self, vector: GlobalAddress<'k>) -> F32<'k> {
        let address = vector.element_wide::<f32>(self.index);
        address.load_if(self.exists[0])
    }

    /// Rounds and stores this row of a matrix; `value(i)` belongs to element `i` of
    /// [`LoadedRow::widen`].
    #[track_caller]
    pub fn store(&self, matrix: GlobalAddress<'k>, value: impl Fn(usize) -> F32<'k>) {
        let (start, dtype) = (self.of_matrix(matrix), self.tile.dtype);
        for (vector, exists) in self.exists.iter().enumerate() {
            let first = vector * dtype.per_vector() as usize;
            let values = dtype.round(|i| value(first + i));
            values.store_if(*exists, start.offset(self.bytes_to(vector)));
        }
    }

    /// Stores a row without conversion.
    #[track_caller]
    pub fn store_loaded(&self, matrix: GlobalAddress<'k>, row: &LoadedRow<'k>) {
        let start = self.of_matrix(matrix);
        for (vector, (exists, values)) in self.exists.iter().zip(&row.0).enumerate() {
            values.store_if(*exists, start.offset(self.bytes_to(vector)));
        }
    }

    /// Stores this row's element of an f32 vector with one element per row.
    #[track_caller]
    pub fn store_scalar(&self, vector: GlobalAddress<'k>, value: F32<'k>) {
        let address = vector.element_wide::<f32>(self.index);
        address.store_if(self.leads, value);
    }

    /// The sum over the threads of this row, in all of them. All threads of the CTA must call it.
    #[track_caller]
    pub fn sum(&self, value: F32<'k>) -> F32<'k> {
        match self.tile.lanes {
            lanes @ ..=32 => group_sum(self.k, value, lanes),
            _ => block_sum(self.k, value),
        }
    }

    /// The maximum over the threads of this row, in all of them; NaN if any value is NaN. All
    /// threads of the CTA must call it.
    #[track_caller]
    pub fn max(&self, value: F32<'k>) -> F32<'k> {
        match self.tile.lanes {
            lanes @ ..=32 => group_reduce(self.k, value, lanes, F32::max),
            _ => block_reduce(self.k, value, F32::max),
        }
    }

    /// The values of [`LoadedRow::widen`], and `other` where the row or the vector does not exist.
    #[track_caller]
    pub fn widen_or(&self, row: &LoadedRow<'k>, other: f32) -> Vec<F32<'k>> {
        let vectors = row.0.iter().zip(&self.exists);
        let widened = vectors.flat_map(|(vector, exists)| {
            let values = vector.widen().into_iter();
            values.map(|value| exists.select(value, other))
        });
        widened.collect()
    }

    #[track_caller]
    fn load_from(&self, start: GlobalAddress<'k>) -> LoadedRow<'k> {
        let vectors = self.exists.iter().enumerate();
        let load = |(vector, exists): (usize, &Pred<'k>)| {
            let from = start.offset(self.bytes_to(vector));
            self.tile.dtype.load_vector_if(*exists, from)
        };
        LoadedRow(vectors.map(load).collect())
    }

    #[track_caller]
    fn of_matrix(&self, matrix: GlobalAddress<'k>) -> GlobalAddress<'k> {
        let element = self.index * u64::from(self.tile.features) + self.first;
        matrix.byte_add(element * u64::from(self.tile.dtype.size()))
    }

    /// Consecutive threads own consecutive vectors, so accesses are coalesced.
    fn bytes_to(&self, vector: usize) -> i64 {
        vector as i64 * i64::from(self.tile.lanes) * 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every element of a row belongs to exactly one thread, and no thread has more vectors than
    /// fit. A row that needs more than one warp has its own CTA, over which [`Row::sum`] sums.
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
                assert!(
                    reach >= tile.features && tile.vectors() <= MAX_VECTORS,
                    "{tile:?}"
                );
                assert!(
                    reach - tile.features < tile.lanes * dtype.per_vector(),
                    "{tile:?}"
                );
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
