//! Copies, casts, views, and parts of tensors.

use super::op_case::{OpCase, Source, case, changing, writable};
use crate::{DType, Result, Tensor, ops};

/// Copies and casts of a matrix.
pub fn copies(source: &dyn Source, [rows, columns]: [usize; 2]) -> Result<Vec<OpCase>> {
    let x = source.numbers("x", &[rows, columns])?;
    let transposed = source.numbers("x", &[columns, rows])?.transpose(0, 1)?;
    let into = writable(&source.numbers("into", &[rows, columns])?)?;
    let few = x.slice(1, 0..columns / 2)?;
    let at = Tensor::from_slice(source.device(), &[1], &[1i64])?;
    let other = match x.dtype() {
        DType::F32 => DType::BF16,
        _ => DType::F32,
    };
    Ok(vec![
        case("contiguous", [&x], |[x]| ops::copy(x)),
        case("contiguous", [&transposed], |[x]| ops::copy(x)).named("contiguous, transposed"),
        case("cast", [&x], move |[x]| ops::cast(x, other)),
        case("cast", [&x], |[x]| ops::cast(x, DType::I64)).named("cast to i64"),
        changing("copy_into", [&x], &into, |[x], into| ops::copy_into(x, into)),
        changing("fill_into", [], &into, |[], into| ops::fill_into(into, 2.0)),
        changing("copy_at_into", [&few, &at], &into, |[x, at], into| {
            ops::copy_at_into(x, into, at)
        }),
    ])
}

/// Views of a tensor whose last extent is a multiple of 3, and the gradient of a slice.
pub fn views(source: &dyn Source, shape: [usize; 3]) -> Result<Vec<OpCase>> {
    let x = source.numbers("x", &shape)?;
    let one = source.numbers("one", &[shape[0], 1, shape[2]])?;
    let middle = shape[1];
    Ok(vec![
        case("permute", [&x], |[x]| x.permute(&[2, 0, 1])),
        case("transpose", [&x], |[x]| x.transpose(0, 2)),
        case("unsqueeze", [&x], |[x]| x.unsqueeze(1)),
        case("slice", [&x], move |[x]| x.slice(1, 1..middle)),
        case("slice_grad", [&x], move |[dy]| {
            let shape = dy.global_shape().with(1, middle + 4);
            ops::slice_grad(dy, &shape, 1, 2..2 + middle)
        }),
        case("broadcast_to", [&one], |[x]| {
            let shape = x.global_shape();
            x.broadcast_to(&[2, shape[0], 5, shape[2]])
        }),
        case("reshape", [&x], |[x]| {
            let shape = x.global_shape();
            ops::reshape(x, &[shape[0] * shape[1], shape[2] / 3, 3])
        }),
        case("reshape", [&x], |[x]| ops::reshape(x, &[x.global_shape().elements()]))
            .named("reshape, flat"),
    ])
}

/// The concatenation of two tensors that differ in the extents of `dim`.
pub fn concat(
    source: &dyn Source,
    [a_shape, b_shape]: [&[usize]; 2],
    dim: isize,
) -> Result<Vec<OpCase>> {
    let (a, b) = (source.numbers("a", a_shape)?, source.numbers("b", b_shape)?);
    Ok(vec![case("concat", [&a, &b], move |parts| ops::concat(&parts, dim))])
}
