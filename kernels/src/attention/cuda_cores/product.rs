//! The two products of a tile, through shared memory: scores of 64 rows with 64 others, and weights
//! with columns.

use super::super::ROWS_PER_CTA;
use super::super::cta_tile::{Common, CtaTile, Rows};
use super::{COLUMNS, THREADS};
use crate::assembler::{F32, Kernel, Pred, SharedAddress, U32, Variable};
use crate::dtype::Dtype;

/// Features per step of the scores.
const DEPTH: u32 = 32;

/// Pitch in words of staged features. Eight threads that read 16 bytes from consecutive rows, or
/// from one row, touch every bank once.
const DEPTH_PITCH: u32 = DEPTH + 4;

/// Pitch in words of staged weights and columns.
const PITCH: u32 = ROWS_PER_CTA + 4;

/// Rows per thread, and columns per thread.
const EACH: u32 = 4;

/// The accumulators of a thread: four rows of four columns.
pub(super) type Sums<'k> = Vec<[Variable<'k, f32>; 4]>;

/// The shared memory of a CTA, and the coordinates of a thread in its tiles. A thread holds rows
/// `4 y` to `4 y + 3`. Of scores it holds columns `x`, `x + 16`, `x + 32` and `x + 48`, of results
/// columns `4 x` to `4 x + 3`.
pub(super) struct Products<'k> {
    k: &'k Kernel,
    dtype: Dtype,
    head_dim: U32<'k>,
    pub(super) x: U32<'k>,
    pub(super) y: U32<'k>,
    /// Staged features of the rows and of the others, or staged columns.
    lines: SharedAddress<'k>,
    weights: SharedAddress<'k>,
}

impl<'k> Products<'k> {
    #[track_caller]
    pub(super) fn new(k: &'k Kernel, dtype: Dtype, head_dim: U32<'k>) -> Products<'k> {
        Products {
            k,
            dtype,
            head_dim,
            x: k.thread() & 15,
            y: k.thread() >> 4,
            lines: k.shared::<f32>(2 * ROWS_PER_CTA * DEPTH_PITCH),
            weights: k.shared::<f32>(ROWS_PER_CTA * PITCH),
        }
    }

    /// Accumulators of 0.
    #[track_caller]
    pub(super) fn zeros(&self) -> Sums<'k> {
        let row = |_| [(); 4].map(|()| self.k.var(0.0_f32));
        (0..EACH).map(row).collect()
    }

    /// This thread's first row in the tile.
    #[track_caller]
    pub(super) fn row(&self) -> U32<'k> {
        self.y * EACH
    }

    /// The dot products of 64 rows with 64 others.
    #[track_caller]
    pub(super) fn scores(
        &self,
        (rows, row): (Rows<'k>, U32<'k>),
        (others, other): (Rows<'k>, U32<'k>),
    ) -> Sums<'k> {
        let (k, sums) = (self.k, self.zeros());
        let of_others = self.lines.offset(4 * ROWS_PER_CTA * DEPTH_PITCH);
        let own_row = self.lines.element::<f32>(self.y * (EACH * DEPTH_PITCH));
        let own_other = of_others.element::<f32>(self.x * DEPTH_PITCH);
        k.for_range(0u32, self.head_dim, DEPTH, |first| {
            k.barrier();
            self.copy(self.lines, (rows, row), first, (DEPTH, DEPTH_PITCH));
            self.copy(of_others, (others, other), first, (DEPTH, DEPTH_PITCH));
            k.barrier();
            k.for_range(0u32, 4 * DEPTH, 16, |bytes| {
                let at = |start: SharedAddress<'k>, line: u32| {
                    let line = start.offset(4 * line * DEPTH_PITCH);
                    line.load_vector::<f32, 4>()
                };
                let [own_row, own_other] = [own_row, own_other].map(|start| start.byte_add(bytes));
                let rows = [0, 1, 2, 3].map(|i| at(own_row, i));
                let others = [0, 16, 32, 48].map(|j| at(own_other, j));
                for (sums, row) in sums.iter().zip(rows) {
                    for (sum, other) in sums.iter().zip(others) {
                        for (a, b) in row.into_iter().zip(other) {
                            sum.add_product(a, b);
                        }
                    }
                }
            });
        });
        sums
    }

    /// Stores the weights for [`Products::add_weighted`]. The CTA must have passed a barrier since
    /// the last `add_weighted`.
    #[track_caller]
    pub(super) fn set_weights(&self, weights: &Sums<'k>) {
        let own = self.weights.element::<f32>(self.row() * PITCH + self.x);
        for (i, weights) in (0..).zip(weights) {
            for (j, weight) in (0..).zip(weights) {
                own.offset(4 * (i * PITCH + 16 * j)).store(**weight);
            }
        }
    }

    /// Adds the product of the staged weights and a block of columns of 64 rows.
    #[track_caller]
    pub(super) fn add_weighted(
        &self,
        sums: &Sums<'k>,
        rows: (Rows<'k>, U32<'k>),
        first_column: U32<'k>,
    ) {
        let k = self.k;
        k.barrier();
        self.copy(self.lines, rows, first_column, (COLUMNS, PITCH));
        k.barrier();
        let weights = self.weights.element::<f32>(self.row() * PITCH);
        let lines = self.lines.element::<f32>(self.x * EACH);
        k.for_range(0u32, ROWS_PER_CTA, 4, |first| {
            let weights = weights.byte_add(first * 4);
            let lines = lines.byte_add(first * (4 * PITCH));
            let weights = [0, 1, 2, 3].map(|i| {
                let line = weights.offset(4 * i * PITCH);
                line.load_vector::<f32, 4>()
            });
            let lines = [0, 1, 2, 3].map(|j| {
                let line = lines.offset(4 * j * PITCH);
                line.load_vector::<f32, 4>()
            });
            for (sums, weights) in sums.iter().zip(weights) {
                for (weight, line) in weights.into_iter().zip(lines) {
                    for (sum, value) in sums.iter().zip(line) {
                        sum.add_product(weight, value);
                    }
                }
            }
        });
    }

    /// Copies `columns` columns of 64 rows to shared memory, with zeros outside the matrix.
    /// Neighboring threads copy neighboring elements.
    #[track_caller]
    fn copy(
        &self,
        to: SharedAddress<'k>,
        (rows, first): (Rows<'k>, U32<'k>),
        first_column: U32<'k>,
        (columns, pitch): (u32, u32),
    ) {
        let (thread, size) = (self.k.thread(), self.dtype.size());
        let (line, column) = (thread / columns, thread % columns);
        let (row, pass) = (first + line, THREADS / columns);

        let inside = (first_column + column).lt(self.head_dim);
        let left = (rows.count - row).signed();
        let start = (first_column + column).mul_wide(size) + row.wide() * rows.stride;
        let step = rows.stride * u64::from(pass);
        let mut from = rows.start.byte_add(start);
        let to = to.element::<f32>(line * pitch + column);
        // Eight loads are in flight; more would need too many registers.
        for first in (0..ROWS_PER_CTA).step_by(8 * pass as usize) {
            let mut values: Vec<F32<'k>> = Vec::new();
            for i in 0..8 {
                let exists: Pred<'k> = inside & left.gt((first + i * pass) as i32);
                values.push(self.dtype.load_if(exists, from));
                from = from.byte_add(step);
            }
            for (i, value) in (0..).zip(values) {
                to.offset(4 * (first + i * pass) * pitch).store(value);
            }
        }
    }

    /// Stores this thread's four rows of four columns. The CTA's tile begins at the given row and
    /// column.
    #[track_caller]
    pub(super) fn store(
        &self,
        rows: Rows<'k>,
        [first_row, first_column]: [U32<'k>; 2],
        value: impl Fn(usize, usize) -> F32<'k>,
    ) {
        let (row, column) = (first_row + self.row(), first_column + self.x * EACH);
        let rows_left = (rows.count - row).signed();
        let columns_left = (self.head_dim - column).signed();
        let size = self.dtype.size();
        let mut to = rows.start.byte_add(row.wide() * rows.stride + column.mul_wide(size));
        for i in 0..EACH as usize {
            let exists = rows_left.gt(i as i32);
            for j in 0..EACH as usize {
                let inside = exists & columns_left.gt(j as i32);
                let to = to.offset(i64::from(size) * j as i64);
                self.dtype.store_if(inside, to, value(i, j));
            }
            to = to.byte_add(rows.stride);
        }
    }

    /// Calls `set(i, j, visible)` for each score of this thread, unless the whole tile is visible.
    ///
    /// Rows of scores are queries and columns are keys, or the other way around if `transposed`.
    /// The tile begins at `query` and `key`; its queries see the keys `common`.
    #[track_caller]
    pub(super) fn hide(
        &self,
        cta: &CtaTile<'k>,
        common: Common<'k>,
        [query, key]: [U32<'k>; 2],
        transposed: bool,
        set: impl Fn(usize, usize, Pred<'k>),
    ) {
        self.k.if_(!common.contain(key, ROWS_PER_CTA), || {
            let ([query, key], apart) = match transposed {
                true => ([query + self.x, key + self.row()], [16, 1]),
                false => ([query + self.row(), key + self.x], [1, 16]),
            };
            for i in 0..EACH {
                let seen = cta.seen(query + apart[0] * i).from(key);
                for j in 0..EACH {
                    let [row, column] = if transposed { [j, i] } else { [i, j] };
                    set(row as usize, column as usize, seen.contains(apart[1] * j));
                }
            }
        });
    }
}
