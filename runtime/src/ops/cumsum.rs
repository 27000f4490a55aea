//! Cumulative sums.

use crate::cpu::rows::{Rows, for_rows};
use crate::launch::cumsum as launch;
use crate::ops::{contiguous, dense_rows};
use crate::{Float, Number, Result, Signature, Tensor, for_float};

static CUMSUM: Signature =
    Signature::new("cumsum", "x: F[.. n!] -> y: F[.. n]", 1).linear_in(&["x"]);
static REVERSE_CUMSUM: Signature =
    Signature::new("reverse_cumsum", "x: F[.. n!] -> y: F[.. n]", 1).linear_in(&["x"]);

pub(super) static SIGNATURES: &[&Signature] = &[&CUMSUM, &REVERSE_CUMSUM];

/// The sum of the elements up to and including each element along dim `dim`, computed in f32 (f64
/// for f64). Each result is rounded once.
///
/// # Shapes
/// `x` any shape with at least one dim, float; returns the same. `dim` is not sharded.
///
/// # Errors
/// When there is no such dim.
pub fn cumsum(x: &Tensor, dim: isize) -> Result<Tensor> {
    scan(&CUMSUM, x, dim)
}

/// The sum of the elements from each element on along dim `dim`: the gradient of [`cumsum`].
///
/// # Shapes
/// As [`cumsum`].
///
/// # Errors
/// As [`cumsum`].
pub fn reverse_cumsum(x: &Tensor, dim: isize) -> Result<Tensor> {
    scan(&REVERSE_CUMSUM, x, dim)
}

fn scan(signature: &'static Signature, x: &Tensor, dim: isize) -> Result<Tensor> {
    let dim = x.dim(signature.name(), dim)? as isize;
    let reverse = std::ptr::eq(signature, &REVERSE_CUMSUM);
    let x = x.transpose(dim, -1)?;
    let mut call = signature.call(&[&x])?;
    let mut y = call.output(0)?;
    let columns = call.extent("n");
    if call.device().is_gpu() {
        let x = contiguous(&x)?;
        call.launch(|gpu| launch::cumsum(gpu, &x, columns, reverse, &y))?;
    } else {
        let x = dense_rows(&x)?;
        call.compute(|| for_float!(x.dtype(), T => sums::<T>(&x, columns, reverse, y.slice()?)))?;
    }
    y.finish().transpose(dim, -1)
}

fn sums<T: Float>(x: &Tensor, columns: usize, reverse: bool, y: &mut [T]) -> Result<()> {
    let x = Rows::<T>::new(x)?;
    for_rows!(y, columns, |row, y| {
        let mut sum = T::Wide::ZERO;
        let mut add = |y: &mut T, x: &T| {
            sum += x.wide();
            *y = T::narrow(sum);
        };
        let pairs = y.iter_mut().zip(x.row(row));
        match reverse {
            false => pairs.for_each(|(y, x)| add(y, x)),
            true => pairs.rev().for_each(|(y, x)| add(y, x)),
        }
    });
    Ok(())
}
