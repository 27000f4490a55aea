//! Ops that take indices.

use super::op_case::{OpCase, Source, adding, case};
use crate::{Result, ops};

/// The rows `ids` of a table [rows, features].
pub fn embedding(
    source: &dyn Source,
    [rows, features]: [usize; 2],
    ids: &[usize],
) -> Result<Vec<OpCase>> {
    let table = source.numbers("table", &[rows, features])?;
    let dy = source.numbers("dy", &[ids, &[features]].concat())?;
    let ids = source.indices("ids", ids, rows)?;
    let sum = source.sums("dtable", &[rows, features])?;
    Ok(vec![
        case("embedding", [&table, &ids], |[table, ids]| ops::embedding(table, ids)),
        adding("embedding_grad_into", [&dy, &ids], &sum, |[dy, ids], dtable| {
            ops::embedding_grad_into(dy, ids, dtable)
        }),
    ])
}

/// `count` slices along `dim`.
pub fn selection(
    source: &dyn Source,
    shape: &[usize],
    dim: usize,
    count: usize,
) -> Result<Vec<OpCase>> {
    let extent = shape[dim];
    let x = source.numbers("x", shape)?;
    let dy = source.numbers("dy", &with(shape, dim, count))?;
    let ids = source.indices("ids", &[count], extent)?;
    let dim = dim as isize;
    Ok(vec![
        case("index_select", [&x, &ids], move |[x, ids]| ops::index_select(x, dim, ids)),
        case("index_select_grad", [&dy, &ids], move |[dy, ids]| {
            ops::index_select_grad(dy, dim, ids, extent)
        }),
    ])
}

/// `count` elements along `dim`, at other indices for each index of the other dims.
pub fn gathering(
    source: &dyn Source,
    shape: &[usize],
    dim: usize,
    count: usize,
) -> Result<Vec<OpCase>> {
    let extent = shape[dim];
    let index_shape = with(shape, dim, count);
    let (x, src) = (source.numbers("x", shape)?, source.numbers("src", &index_shape)?);
    let index = source.indices("index", &index_shape, extent)?;
    Ok(vec![
        case("gather", [&x, &index], move |[x, index]| ops::gather(x, dim as isize, index)),
        case("scatter_add", [&src, &index], move |[src, index]| {
            let shape = src.global_shape().with(dim, extent);
            ops::scatter_add(&shape, dim as isize, index, src)
        }),
    ])
}

fn with(shape: &[usize], dim: usize, extent: usize) -> Vec<usize> {
    let mut shape = shape.to_vec();
    shape[dim] = extent;
    shape
}
