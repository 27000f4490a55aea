//! Triangles of matrices.

use meshgrad_runtime::{DType, Tensor, ops};

use super::where_;
use crate::{Operand, Result};

/// The lower triangles of matrices: elements above `diagonal` are 0. Diagonal 0 is the main one, and
/// positive ones are above it.
///
/// # Shapes
/// `x` [.., M, N] float, M and N below 2^24 and not sharded; returns the same.
///
/// # Errors
/// For fewer than two dims; as [`meshgrad_runtime::ops::where_`].
pub fn tril<V: Operand>(x: &V, diagonal: isize) -> Result<V> {
    let kept = |row: &Tensor, column: &Tensor| ops::le(column, row);
    triangle(x, diagonal, kept)
}

/// The upper triangles of matrices: elements below `diagonal` are 0. As [`tril`].
///
/// # Shapes
/// As [`tril`].
///
/// # Errors
/// As [`tril`].
pub fn triu<V: Operand>(x: &V, diagonal: isize) -> Result<V> {
    let kept = |row: &Tensor, column: &Tensor| ops::ge(column, row);
    triangle(x, diagonal, kept)
}

fn triangle<V: Operand>(
    x: &V,
    diagonal: isize,
    kept: impl Fn(&Tensor, &Tensor) -> Result<Tensor>,
) -> Result<V> {
    let device = x.value().device();
    let index = |dim: isize| -> Result<Tensor> {
        let count = x.value().global_extent(dim)?;
        ops::cast(&ops::arange(device, count, DType::I64)?, DType::F32)
    };
    // On the diagonal, the column is the row + `diagonal`.
    let rows = ops::affine(&index(-2)?, 1.0, diagonal as f64)?.unsqueeze(1)?;
    let kept = kept(&rows, &index(-1)?)?;
    let zero = V::from_var(crate::Var::constant(x.value().zeros_beside(&[])?));
    where_(&kept, x, &zero)
}
