//! Elementwise ops.

use super::op_case::{OpCase, Source, adding, case};
use crate::ops::{self, Domain};
use crate::{Result, Tensor};

/// The ops of one number, and their gradients.
pub fn unary(source: &dyn Source, shape: &[usize]) -> Result<Vec<OpCase>> {
    let (x, dy) = (source.numbers("x", shape)?, source.numbers("dy", shape)?);
    let positive = source.positive("x", shape)?;
    let mut cases = vec![case("neg", [&x], |[x]| ops::neg(x))];
    for op in ops::UNARY {
        let x = match op.domain {
            Domain::Real => &x,
            Domain::Positive => &positive,
        };
        cases.push(case(op.name, [x], |[x]| (op.value)(x)));
        cases.push(case(op.grad_name, [x, &dy], |[x, dy]| (op.grad)(x, dy)));
    }
    Ok(cases)
}

/// The ops with constants, and the sum of a gradient.
pub fn with_constants(source: &dyn Source, shape: &[usize]) -> Result<Vec<OpCase>> {
    let (x, dy) = (source.numbers("x", shape)?, source.numbers("dy", shape)?);
    let into = source.sums("into", shape)?;
    Ok(vec![
        case("affine", [&x], |[x]| ops::affine(x, 2.0, 1.0)),
        case("affine", [&x], |[x]| ops::affine(x, 2.0, 0.0)).named("affine, no shift"),
        case("clamp", [&x], |[x]| ops::clamp(x, -0.6, 0.9)),
        case("clamp_grad", [&x, &dy], |[x, dy]| ops::clamp_grad(x, dy, -0.6, 0.9)),
        adding("add_into", [&x], &into, |[x], into| ops::add_into(x, into)),
    ])
}

/// The ops of two operands whose shapes broadcast. The second operand is positive.
pub fn binary(source: &dyn Source, a_shape: &[usize], b_shape: &[usize]) -> Result<Vec<OpCase>> {
    type Op = fn(&Tensor, &Tensor) -> Result<Tensor>;
    let table: [(&str, Op); 13] = [
        ("add", ops::add),
        ("sub", ops::sub),
        ("mul", ops::mul),
        ("div", ops::div),
        ("maximum", ops::maximum),
        ("minimum", ops::minimum),
        ("maximum_grad", ops::maximum_grad),
        ("eq", ops::eq),
        ("ne", ops::ne),
        ("lt", ops::lt),
        ("le", ops::le),
        ("gt", ops::gt),
        ("ge", ops::ge),
    ];
    let (a, b) = (source.numbers("a", a_shape)?, source.positive("b", b_shape)?);
    let cases = table.map(|(name, op)| case(name, [&a, &b], move |[a, b]| op(a, b)));

    let condition = ops::lt(&source.numbers("left", b_shape)?, &source.numbers("right", b_shape)?)?;
    let choice =
        case("where_", [&condition, &a, &b], |[condition, a, b]| ops::where_(condition, a, b));
    Ok(cases.into_iter().chain([choice]).collect())
}
