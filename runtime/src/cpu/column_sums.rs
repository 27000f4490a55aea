//! Sums over the rows of a function of elements.

use super::rows::{Flat, Rows, rows_at, rows_per_task, update_columns};
use super::{BLOCK, for_blocks};
use crate::{Float, Number, Result, RowFunction, Tensor};

/// Rows per partial sum of [`sum_rows`]: at least 64, to bound the memory of the partial sums.
pub(crate) fn rows_per_partial(columns: usize) -> usize {
    rows_per_task(columns).max(64)
}

/// sums = the sum over all rows of the value of `f`; overwrites `sums` if `empty`, else adds to it.
///
/// `partial` holds one sum for every [`rows_per_partial`] rows; these sums are added in order.
pub(crate) fn sum_rows<T: Float, const N: usize, const S: usize, F: RowFunction<N, S>>(
    f: &F,
    matrices: [&Tensor; N],
    numbers: [&Tensor; S],
    row_count: usize,
    partial: &mut [T::Wide],
    (sums, empty): (&mut [T::Wide], bool),
) -> Result<()> {
    let columns = sums.len();
    let matrices = matrices.into_iter().map(Rows::<T>::new);
    let matrices = matrices.collect::<Result<Vec<_>>>()?;
    let numbers = numbers.into_iter().map(Flat::<T::Wide>::new);
    let numbers = numbers.collect::<Result<Vec<_>>>()?;
    if columns == 0 {
        return Ok(());
    }

    let rows = rows_per_partial(columns);
    for_blocks(partial, columns, |start, sums| {
        let first = start / columns * rows;
        let last = row_count.min(first + rows);
        vectorized!(T::Wide, || {
            sums.fill(T::Wide::ZERO);
            for row in first..last {
                let mut s = [T::Wide::ZERO; S];
                for (s, numbers) in s.iter_mut().zip(&numbers) {
                    *s = numbers[row];
                }
                add_values(f, rows_at(&matrices, row), s, sums);
            }
        });
    });
    add_partials::<T>(partial, sums, empty);
    Ok(())
}

#[inline(always)]
fn add_values<T: Float, const N: usize, const S: usize, F: RowFunction<N, S>>(
    f: &F,
    x: [&[T]; N],
    s: [T::Wide; S],
    sums: &mut [T::Wide],
) {
    update_columns(
        x,
        sums,
        #[inline(always)]
        |sum, x| sum + f.value(x, s),
    );
}

/// Adds the rows of `partial` in order; overwrites `dw` if `empty`, else adds to it.
pub(super) fn add_partials<T: Float>(partial: &[T::Wide], dw: &mut [T::Wide], empty: bool) {
    let columns = dw.len();
    for_blocks(dw, BLOCK, |start, dw| {
        vectorized!(T::Wide, || {
            if empty {
                dw.fill(T::Wide::ZERO);
            }
            for sums in partial.chunks_exact(columns) {
                for (dw, sum) in dw.iter_mut().zip(&sums[start..]) {
                    *dw += *sum;
                }
            }
        });
    });
}
