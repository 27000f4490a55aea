//! Functions of rows.

use std::array::from_fn;

use super::rows::{Flat, Rows, rows_at, rows_per_task, sum, update_columns};
use super::{blocks, for_parts};
use crate::{Float, Number, Result, RowFunction, Tensor};

/// `y` = the value of `f` at each element, and `numbers` = the computed numbers of each row, if
/// wanted. `operands` have `y`'s shape, and may be broadcast; `given` are contiguous.
pub(crate) fn map_rows<T: Float, const N: usize, const S: usize, F: RowFunction<N, S>>(
    f: &F,
    operands: [&Tensor; N],
    given: &[&Tensor],
    y: &mut [T],
    numbers: Vec<&mut [T::Wide]>,
) -> Result<()> {
    let operands: Vec<_> = operands.into_iter().map(Rows::<T>::new).collect::<Result<_>>()?;
    let given: Vec<_> = given.iter().map(|it| Flat::<T::Wide>::new(it)).collect::<Result<_>>()?;
    let numbers_of = |row: usize| from_fn(|at| given.get(at).map_or(T::Wide::ZERO, |it| it[row]));

    let columns = operands.first().map_or(0, Rows::columns);
    if columns == 0 {
        for (at, numbers) in numbers.into_iter().enumerate() {
            for (row, number) in numbers.iter_mut().enumerate() {
                *number = row_numbers::<T, N, S, F>(f, [&[]; N], numbers_of(row))[F::GIVEN + at];
            }
        }
        return Ok(());
    }

    let rows = rows_per_task(columns);
    let numbers: Vec<_> = numbers.into_iter().map(|it| blocks(it, rows)).collect();
    for_parts((blocks(y, rows * columns), numbers), |task, (y, mut numbers)| {
        vectorized!(T::Wide, || {
            for (at, y) in y.chunks_exact_mut(columns).enumerate() {
                let row = task * rows + at;
                let x = rows_at(&operands, row);
                let s = row_numbers(f, x, numbers_of(row));
                write_values(f, x, s, y);
                for (numbers, number) in numbers.iter_mut().zip(&s[F::GIVEN..]) {
                    numbers[at] = *number;
                }
            }
        });
    });
    Ok(())
}

/// All numbers of a row, `s` being those that are given.
#[inline(always)]
fn row_numbers<T: Float, const N: usize, const S: usize, F: RowFunction<N, S>>(
    f: &F,
    x: [&[T]; N],
    mut s: [T::Wide; S],
) -> [T::Wide; S] {
    for at in F::GIVEN..S {
        let before = s;
        s[at] = sum(
            x,
            #[inline(always)]
            |x| f.summand(at, x, before),
        );
        s[at] = f.number(at, s);
    }
    s
}

#[inline(always)]
fn write_values<T: Float, const N: usize, const S: usize, F: RowFunction<N, S>>(
    f: &F,
    x: [&[T]; N],
    s: [T::Wide; S],
    y: &mut [T],
) {
    update_columns(
        x,
        y,
        #[inline(always)]
        |_, x| T::narrow(f.value(x, s)),
    );
}
