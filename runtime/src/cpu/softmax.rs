//! Kernels of softmax and log-softmax, row by row.

use super::rows::{Rows, for_rows, max, sum};
use crate::{Float, Number, Result, Tensor};

pub(crate) fn softmax<T: Float>(x: &Tensor, columns: usize, y: &mut [T]) -> Result<()> {
    let x = Rows::<T>::new(x)?;
    for_rows!(y, columns, |row, y, exps| softmax_row(x.row(row), y, exps));
    Ok(())
}

#[inline(always)]
fn softmax_row<T: Float>(x: &[T], y: &mut [T], exps: &mut [T::Wide]) {
    let max = max(x);
    for (exp, x) in exps.iter_mut().zip(x) {
        *exp = (x.wide() - max).exp();
    }
    let scale = T::Wide::ONE / sum([&*exps], |[exp]| exp);
    for (y, exp) in y.iter_mut().zip(exps) {
        *y = T::narrow(*exp * scale);
    }
}

pub(crate) fn log_softmax<T: Float>(x: &Tensor, columns: usize, y: &mut [T]) -> Result<()> {
    let x = Rows::<T>::new(x)?;
    for_rows!(y, columns, |row, y| log_softmax_row(x.row(row), y));
    Ok(())
}

#[inline(always)]
fn log_softmax_row<T: Float>(x: &[T], y: &mut [T]) {
    let max = max(x);
    let ln_sum = sum([x], |[x]| (x - max).exp()).ln();
    for (y, x) in y.iter_mut().zip(x) {
        *y = T::narrow(x.wide() - max - ln_sum);
    }
}
