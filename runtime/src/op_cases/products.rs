//! Matrix products.

use super::op_case::{OpCase, Source, adding, case};
use crate::{Result, Tensor, ops};

/// A linear layer of x [rows.., inputs], and its gradients.
pub fn linear(
    source: &dyn Source,
    rows: &[usize],
    [inputs, outputs]: [usize; 2],
) -> Result<Vec<OpCase>> {
    let x = source.numbers("x", &[rows, &[inputs]].concat())?;
    let dy = source.numbers("dy", &[rows, &[outputs]].concat())?;
    let w = source.numbers("w", &[outputs, inputs])?;
    let sum = source.sums("dw", &[outputs, inputs])?;
    Ok(vec![
        case("linear", [&x, &w], |[x, w]| ops::linear(x, w)),
        case("linear_grad_input", [&dy, &w], |[dy, w]| ops::linear_grad_input(dy, w)),
        adding("linear_grad_weight_into", [&dy, &x], &sum, |[dy, x], dw| {
            ops::linear_grad_weight_into(dy, x, dw)
        }),
    ])
}

/// The product of a [batch.., m, k] and b [batch.., k, n]. Each is stored as its transpose if its
/// letter of `transposes` is `t`, such as in `nt`.
pub fn matmul(
    source: &dyn Source,
    batch: &[usize],
    [m, n, k]: [usize; 3],
    transposes: &str,
) -> Result<Vec<OpCase>> {
    let operand = |name: &str, [rows, columns]: [usize; 2], transposed: bool| -> Result<Tensor> {
        match transposed {
            true => {
                let stored = source.numbers(name, &[batch, &[columns, rows]].concat())?;
                stored.transpose(-2, -1)
            }
            false => source.numbers(name, &[batch, &[rows, columns]].concat()),
        }
    };
    let a = operand("a", [m, k], transposes.starts_with('t'))?;
    let b = operand("b", [k, n], transposes.ends_with('t'))?;
    let sum = source.sums("c", &[batch, &[m, n]].concat())?;
    Ok(vec![
        case("matmul", [&a, &b], |[a, b]| ops::matmul(a, b)),
        adding("matmul_into", [&a, &b], &sum, |[a, b], c| ops::matmul_into(a, b, c)),
    ])
}
