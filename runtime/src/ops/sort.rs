//! The order of elements.

use std::cmp::Ordering;

use crate::cpu::blocks;
use crate::cpu::for_parts;
use crate::cpu::rows::{Flat, rows_per_task};
use crate::launch::sort as launch;
use crate::ops::contiguous;
use crate::{Float, Result, Signature, Tensor, for_float};

static ARGSORT: Signature = Signature::new("argsort", "x: F[.. n!] -> indices: i64[.. n]", 0);

pub(super) static SIGNATURES: &[&Signature] = &[&ARGSORT];

/// The indices along dim `dim` that sort `x`, with equal elements in their order. NaN is greater than
/// all numbers: last, or first if `descending`.
///
/// On a GPU, a radix sort of the whole tensor: four passes, and one for every 8 bits of the number
/// of rows.
///
/// # Shapes
/// `x` any shape with at least one dim, float; returns indices of the same shape, i64. `dim` is not
/// sharded.
///
/// # Errors
/// When there is no such dim; on a GPU for 2^31 elements or more.
pub fn argsort(x: &Tensor, dim: isize, descending: bool) -> Result<Tensor> {
    let dim = x.dim(ARGSORT.name(), dim)? as isize;
    let x = contiguous(&x.transpose(dim, -1)?)?;
    let mut call = ARGSORT.call(&[&x])?;
    let mut indices = call.output(0)?;
    let columns = call.extent("n");
    match call.device().is_gpu() {
        true => launch::argsort(&call, &x, columns, descending, &indices)?,
        false => call.compute(|| {
            for_float!(x.dtype(), T => sort_rows::<T>(&x, columns, descending, indices.slice()?))
        })?,
    }
    indices.finish().transpose(dim, -1)
}

fn sort_rows<T: Float>(
    x: &Tensor,
    columns: usize,
    descending: bool,
    indices: &mut [i64],
) -> Result<()> {
    let x = Flat::<T>::new(x)?;
    let x = &*x;
    if columns == 0 {
        return Ok(());
    }
    let rows = rows_per_task(columns);
    for_parts(blocks(indices, rows * columns), |task, part| {
        for (at, indices) in part.chunks_exact_mut(columns).enumerate() {
            let row = &x[(task * rows + at) * columns..][..columns];
            for (index, place) in (0..).zip(indices.iter_mut()) {
                *place = index;
            }
            let order = |a: &i64, b: &i64| ascending(row[*a as usize], row[*b as usize]);
            match descending {
                false => indices.sort_by(order),
                true => indices.sort_by(|a, b| order(b, a)),
            }
        }
    });
    Ok(())
}

fn ascending<T: Float>(a: T, b: T) -> Ordering {
    let (a, b) = (a.to_f64(), b.to_f64());
    let of_nans = || a.is_nan().cmp(&b.is_nan());
    a.partial_cmp(&b).unwrap_or_else(of_nans)
}
