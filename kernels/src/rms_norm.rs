//! Formulas of root-mean-square normalization (Zhang & Sennrich 2019) that kernels share which fuse
//! it with other functions. The norm alone is a [function of rows](crate::row_map).

use crate::assembler::{F32, Variable};
use crate::row::Row;

/// 1 / sqrt(mean(x^2) + eps), from the sum of a thread's squares.
#[track_caller]
pub(crate) fn inv_rms<'k>(row: &Row<'k>, squares: Variable<'k, f32>, eps: F32<'k>) -> F32<'k> {
    (row.mean(squares.get()) + eps).sqrt().reciprocal()
}

/// inv_rms^3 mean(dy w x), from a thread's part of the sum: dx has this times -x.
#[track_caller]
pub(crate) fn along_x<'k>(row: &Row<'k>, dot: Variable<'k, f32>, inv_rms: F32<'k>) -> F32<'k> {
    row.mean(dot.get()) * inv_rms * inv_rms * inv_rms
}
