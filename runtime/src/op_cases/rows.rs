//! Ops on the rows of a tensor, and reductions.

use super::op_case::{OpCase, Source, adding, case};
use crate::{Result, Tensor, ops};

const EPS: f64 = 1e-6;

/// RMS and layer norms of [rows.., features].
pub fn norms(source: &dyn Source, rows: &[usize], features: usize) -> Result<Vec<OpCase>> {
    let shape = [rows, &[features]].concat();
    let [x, dy, added] = ["x", "dy", "added"].map(|name| source.numbers(name, &shape));
    let (x, dy, added) = (x?, dy?, added?);
    let (w, b) = (source.positive("w", &[features])?, source.numbers("b", &[features])?);
    let sum = source.sums("dw", &[features])?;
    let (_, inv_rms) = ops::rms_norm(&x, &w, EPS)?;
    let (_, mean, inv_std) = ops::layer_norm(&x, &w, &b, EPS)?;
    Ok(vec![
        case("rms_norm", [&x, &w], |[x, w]| ops::rms_norm(x, w, EPS)),
        case("rms_norm_grad_input", [&dy, &x, &w, &inv_rms], |[dy, x, w, inv_rms]| {
            ops::rms_norm_grad_input(dy, x, w, inv_rms)
        }),
        adding("rms_norm_grad_weight_into", [&dy, &x, &inv_rms], &sum, |[dy, x, inv_rms], dw| {
            ops::rms_norm_grad_weight_into(dy, x, inv_rms, dw)
        }),
        case("add_rms_norm", [&x, &added, &w], |[x, added, w]| ops::add_rms_norm(x, added, w, EPS)),
        case(
            "add_rms_norm_grad_input",
            [&added, &dy, &x, &w, &inv_rms],
            |[dsum, dy, sum, w, inv_rms]| ops::add_rms_norm_grad_input(dsum, dy, sum, w, inv_rms),
        ),
        case("layer_norm", [&x, &w, &b], |[x, w, b]| ops::layer_norm(x, w, b, EPS)),
        case(
            "layer_norm_grad_input",
            [&dy, &x, &w, &mean, &inv_std],
            |[dy, x, w, mean, inv_std]| ops::layer_norm_grad_input(dy, x, w, mean, inv_std),
        ),
        adding(
            "layer_norm_grad_weight_into",
            [&dy, &x, &mean, &inv_std],
            &sum,
            |[dy, x, mean, inv_std], dw| ops::layer_norm_grad_weight_into(dy, x, mean, inv_std, dw),
        ),
    ])
}

/// Softmax and log-softmax.
pub fn softmaxes(source: &dyn Source, shape: &[usize]) -> Result<Vec<OpCase>> {
    let (x, dy) = (source.numbers("x", shape)?, source.numbers("dy", shape)?);
    let (y, log_y) = (ops::softmax(&x)?, ops::log_softmax(&x)?);
    Ok(vec![
        case("softmax", [&x], |[x]| ops::softmax(x)),
        case("softmax_grad", [&y, &dy], |[y, dy]| ops::softmax_grad(y, dy)),
        case("log_softmax", [&x], |[x]| ops::log_softmax(x)),
        case("log_softmax_grad", [&log_y, &dy], |[y, dy]| ops::log_softmax_grad(y, dy)),
    ])
}

/// SwiGLU of [rows, 2, features].
pub fn swiglu(source: &dyn Source, rows: usize, features: usize) -> Result<Vec<OpCase>> {
    let gate_up = source.numbers("gate_up", &[rows, 2, features])?;
    let dy = source.numbers("dgated", &[rows, features])?;
    Ok(vec![
        case("swiglu", [&gate_up], |[gate_up]| ops::swiglu(gate_up)),
        case("swiglu_grad", [&gate_up, &dy], |[gate_up, dy]| ops::swiglu_grad(gate_up, dy)),
    ])
}

/// Cumulative sums and sorting of the last dim.
pub fn ordered(source: &dyn Source, shape: &[usize]) -> Result<Vec<OpCase>> {
    let x = source.numbers("x", shape)?;
    Ok(vec![
        case("cumsum", [&x], |[x]| ops::cumsum(x, -1)),
        case("reverse_cumsum", [&x], |[x]| ops::reverse_cumsum(x, -1)),
        case("argsort", [&x], |[x]| ops::argsort(x, -1, false)),
        case("argsort", [&x], |[x]| ops::argsort(x, -1, true)).named("argsort, descending"),
    ])
}

/// The `count` largest elements of the last dim.
pub fn top_k(source: &dyn Source, shape: &[usize], count: usize) -> Result<OpCase> {
    let x = source.numbers("x", shape)?;
    Ok(case("top_k", [&x], move |[x]| ops::top_k(x, count)))
}

/// Reductions of several dims.
pub fn reductions(
    source: &dyn Source,
    shape: &[usize],
    dims: &'static [isize],
) -> Result<Vec<OpCase>> {
    type Op = fn(&Tensor, &[isize]) -> Result<Tensor>;
    let table: [(&str, Op); 4] =
        [("sum", ops::sum), ("mean", ops::mean), ("max", ops::max), ("min", ops::min)];
    let x = source.numbers("x", shape)?;
    let cases = table.map(|(name, op)| case(name, [&x], move |[x]| op(x, dims)));
    Ok(cases.into())
}

/// The positions of extremes along `dim`.
pub fn arg_reductions(source: &dyn Source, shape: &[usize], dim: isize) -> Result<Vec<OpCase>> {
    let x = source.numbers("x", shape)?;
    Ok(vec![
        case("argmax", [&x], move |[x]| ops::argmax(x, dim)),
        case("argmin", [&x], move |[x]| ops::argmin(x, dim)),
    ])
}
