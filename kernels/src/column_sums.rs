//! Sums over the rows of a function of elements: gradients of weights that all rows share.
//!
//! With atomics the bits of a sum would depend on the order in which CTAs finish, so it takes two
//! kernels: each CTA sums a block of rows into its own row of a workspace, and a second kernel adds
//! these rows in order. The bits depend on the numbers of rows and columns alone.

use crate::assembler::{
    F32, GlobalAddress, In, Kernel, Launch, List, Out, Pred, Ptx, Target, U64, Variant,
};
use crate::columns::{ColumnTile, Columns, THREADS};
use crate::dtype::{Dtype, Loaded};
use crate::elementwise::evaluate;
use crate::expression::{Expression, short_name};
use crate::params;
use crate::reduce_op::ReduceOp;
use crate::row::element;
use crate::row_map::RowMap;

/// Maximum number of partial sums, so that the second kernel is short.
const MAX_PARTIALS: u64 = 128;

/// Minimum rows per partial sum, so that the workspace is small compared with the operands.
const MIN_ROWS: u64 = 64;

/// The most threads that share a row: 64, with 16 bytes each.
const MAX_ACROSS: u32 = 64;

/// Rows that one partial sum covers; the last may have fewer. The workspace holds
/// `rows.div_ceil(rows_per_partial(rows)) * features` f32.
pub fn rows_per_partial(rows: u64) -> u64 {
    rows.div_ceil(MAX_PARTIALS).max(MIN_ROWS)
}

/// partial_pd = sum over the rows r of block p of value(matrices_rd, numbers_r).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ColumnSums {
    dtype: Dtype,
    tile: ColumnTile,
    matrices: usize,
    numbers: usize,
    value: Expression,
}

impl ColumnSums {
    /// The kernel for rows of a dtype and a number of features; `aligned`: whether all matrices
    /// begin at multiples of 16 bytes. The operands of `value` are the elements of that many
    /// `matrices`, then that many `numbers` of the row.
    pub fn new(
        (dtype, features, aligned): (Dtype, usize, bool),
        [matrices, numbers]: [usize; 2],
        value: Expression,
    ) -> ColumnSums {
        let vector = dtype.per_vector();
        let vectorized = aligned && features.is_multiple_of(vector as usize);
        let width = if vectorized { vector } else { 1 };
        let needed = features.div_ceil(width as usize).min(MAX_ACROSS as usize) as u32;
        let across = needed.next_power_of_two();
        ColumnSums { dtype, tile: ColumnTile { across, width }, matrices, numbers, value }
    }

    /// The launch; `None` if there are no rows or no features.
    pub fn launch(&self, rows: u64, features: u32) -> Option<Launch> {
        let partials = rows.div_ceil(rows_per_partial(rows)) as u32;
        let across = features.div_ceil(self.tile.columns());
        Launch::new([across, partials, 1], THREADS)
    }

    /// Loads this thread's columns of a row; zeros where the predicate is false.
    #[track_caller]
    fn load<'k>(
        &self,
        call: &Call<'k>,
        columns: &Columns<'k>,
        row: U64<'k>,
        exists: Pred<'k>,
    ) -> Row<'k> {
        let index = row * call.features.wide() + columns.first.wide();
        let number = |of: &GlobalAddress<'k>| of.element_wide::<f32>(row).load_if(exists);
        let numbers = call.numbers.iter().map(number).collect();
        let load = |matrix: &GlobalAddress<'k>| {
            let from = matrix.byte_add(index * u64::from(self.dtype.size()));
            Loaded::new(self.dtype, self.tile.width, exists, from)
        };
        let matrices = call.matrices.iter().map(load).collect();
        Row { matrices, numbers }
    }

    /// The value of each column of a row, 0 where the predicate is false.
    #[track_caller]
    fn values<'k>(
        &self,
        call: &Call<'k>,
        Row { matrices, numbers }: &Row<'k>,
        exists: Pred<'k>,
    ) -> Vec<F32<'k>> {
        let elements: Vec<_> = matrices.iter().map(Loaded::widen).collect();
        let value = |column: usize| {
            let operands = elements.iter().map(|of_matrix| of_matrix[column]);
            let operands: Vec<_> = operands.chain(numbers.iter().copied()).collect();
            let value = evaluate(exists.kernel(), &self.value, &operands, &call.scalars);
            exists.select(value, 0.0)
        };
        (0..self.tile.width as usize).map(value).collect()
    }
}

params! {
    /// Arguments of [`ColumnSums`].
    pub struct ColumnSumsArguments => Call for variant: ColumnSums {
        /// \[R, D\] each.
        matrices: List<In, { RowMap::MAX_OPERANDS }> = variant.matrices,
        /// \[R\] of f32 each.
        numbers: List<In, { RowMap::MAX_NUMBERS }> = variant.numbers,
        /// \[P, D\] of f32; P = R.div_ceil(rows_per_partial(R)).
        partials: Out,
        /// The scalars of the expression.
        scalars: List<f32, { RowMap::MAX_SCALARS }> = variant.value.scalars(),
        /// R.
        rows: u64,
        /// Rows per partial sum, from [`rows_per_partial`].
        rows_per_partial: u64,
        /// D.
        features: u32,
    }
}

impl Variant for ColumnSums {
    type Arguments = ColumnSumsArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS).reserve_load_registers();
        let call = self.parameters(k);

        let partial = k.cta_y();
        let start = partial.wide() * call.rows_per_partial;
        let end = (start + call.rows_per_partial).min(call.rows);
        let columns = Columns::new(k, self.tile, call.features);
        let load = |row, exists| self.load(&call, &columns, row, exists);
        let sums = columns.fold([start, end], ReduceOp::Add, load, |row, exists| {
            self.values(&call, &row, exists)
        });

        let to = call.partials.element_wide::<f32>(partial.mul_wide(call.features));
        let to = element(Dtype::F32, to, columns.first);
        store_sums(to, columns.lead(), &sums);
        k.finish()
    }

    fn entry(&self) -> String {
        let ColumnTile { across, width } = self.tile;
        let (dtype, value) = (self.dtype.name(), short_name(self.value.to_string()));
        let (matrices, numbers) = (self.matrices, self.numbers);
        format!("column_sums_{dtype}_w{width}_t{across}_m{matrices}_n{numbers}_of_{value}")
    }
}

/// The elements of a row that a thread has loaded, and the numbers of the row.
struct Row<'k> {
    matrices: Vec<Loaded<'k>>,
    numbers: Vec<F32<'k>>,
}

/// Stores a single f32, or vectors of four.
#[track_caller]
fn store_sums<'k>(to: GlobalAddress<'k>, condition: Pred<'k>, sums: &[F32<'k>]) {
    if let [sum] = sums {
        return to.store_if(condition, *sum);
    }
    for (four, sums) in (0..).zip(sums.as_chunks::<4>().0) {
        to.offset(16 * four).store_vector_if(condition, *sums);
    }
}

/// to_d = sum over p of partial_pd, in order; or to_d = to_d + that sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SumPartials {
    accumulate: bool,
}

impl SumPartials {
    /// 32 columns per CTA, one per lane; its eight warps process different rows.
    const TILE: ColumnTile = ColumnTile { across: 32, width: 1 };

    /// The kernel that adds the sum to the old value if `accumulate`, and otherwise replaces the
    /// value.
    pub fn new(accumulate: bool) -> SumPartials {
        SumPartials { accumulate }
    }

    /// The launch; `None` if there are no features. With no rows the sum is 0.
    pub fn launch(&self, features: u32) -> Option<Launch> {
        Launch::new([features.div_ceil(Self::TILE.columns()), 1, 1], THREADS)
    }
}

params! {
    /// Arguments of [`SumPartials`].
    pub struct SumPartialsArguments => SumPartialsCall {
        /// \[P, D\] of f32.
        partials: In,
        /// \[D\] of f32.
        to: Out,
        /// P.
        rows: u64,
        /// D.
        features: u32,
    }
}

impl Variant for SumPartials {
    type Arguments = SumPartialsArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS).reserve_load_registers();
        let SumPartialsCall { partials, to, rows, features } = self.parameters(k);

        let columns = Columns::new(k, Self::TILE, features);
        let sums = columns.fold(
            [k.constant(0u64), rows],
            ReduceOp::Add,
            |row, exists| {
                let index = row * features.wide() + columns.first.wide();
                partials.element_wide::<f32>(index).load_if(exists)
            },
            |value, _| vec![value],
        );

        let to = element(Dtype::F32, to, columns.first);
        let sum = match self.accumulate {
            true => to.load_if::<f32>(columns.lead()) + sums[0],
            false => sums[0],
        };
        to.store_if(columns.lead(), sum);
        k.finish()
    }

    fn entry(&self) -> String {
        match self.accumulate {
            true => "sum_partials_accumulate".to_owned(),
            false => "sum_partials".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// At most 128 partial sums, which bounds the grid's second dimension and the workspace.
    #[test]
    fn the_number_of_partial_sums_is_limited() {
        let variant = ColumnSums::new((Dtype::Bf16, 4096, true), [1, 0], Expression::operand(0));
        for rows in [1, 63, 64, 65, 8191, 8192, 8193, 1 << 40] {
            let [across, partials, _] = variant.launch(rows, 4096).unwrap().grid;
            assert_eq!(across, 8);
            assert!((1..=128).contains(&partials));
            let covered = u64::from(partials) * rows_per_partial(rows);
            assert!(covered >= rows && covered - rows < rows_per_partial(rows));
        }
        assert_eq!(variant.launch(0, 4096), None);
        assert_eq!(variant.launch(7, 0), None);
    }
}
