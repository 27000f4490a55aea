//! The functions on variables of the table's ops.

use meshgrad_autograd::{Result, Var, ops};
use meshgrad_runtime::ops::{self as runtime, AttentionMask, AttentionSequences, RopeStyle};
use meshgrad_runtime::{Key, Tensor};

use super::Cases;

const EPS: f64 = 1e-3;
const SCALE: f64 = 0.7;

pub(super) fn ops_of_the_table(cases: &mut Cases) -> Result<()> {
    elementwise(cases)?;
    views_and_reductions(cases)?;
    products(cases)?;
    rows(cases)?;
    positions(cases)?;
    indexing(cases)
}

type Binary = fn(&Var, &Var) -> Result<Var>;

/// Ops of two operands: their names, and those of their cases with broadcast operands.
pub(super) const BINARY: [(&str, &str, Binary); 6] = [
    ("add", "add, broadcast", ops::add),
    ("sub", "sub, broadcast", ops::sub),
    ("mul", "mul, broadcast", ops::mul),
    ("div", "div, broadcast", ops::div),
    ("maximum", "maximum, broadcast", ops::maximum),
    ("minimum", "minimum, broadcast", ops::minimum),
];

fn elementwise(cases: &mut Cases) -> Result<()> {
    for (listed, op) in runtime::UNARY.iter().zip(ops::unary()) {
        cases.op(listed.name, move |[x], []| op(x))?;
    }
    for (name, _, op) in BINARY {
        cases.op(name, move |[a, b], []| op(a, b))?;
    }
    for name in ["where_", "where_, broadcast"] {
        cases.op(name, |[a, b], [condition]| ops::where_(condition, a, b))?;
    }
    cases.op("neg", |[x], []| ops::neg(x))?;
    cases.op("affine", |[x], []| ops::affine(x, -1.7, 0.3))?;
    cases.op("clamp", |[x], []| ops::clamp(x, -0.6, 0.9))?;
    cases.op("dropout", |[x], []| ops::dropout(x, Key::new(5), 0.3))?;
    Ok(())
}

/// Views are squared, so that their gradients depend on the input.
fn views_and_reductions(cases: &mut Cases) -> Result<()> {
    cases.op("permute", |[x], []| ops::square(&ops::permute(x, &[2, 0, 1])?))?;
    cases.op("slice", |[x], []| ops::square(&ops::slice(x, 1, 1..3)?))?;
    cases.op("contiguous", |[x], []| ops::contiguous(&ops::transpose(x, 0, 1)?))?;
    cases.op("concat", |[a, b], []| ops::concat(&[a, b, a], 1))?;
    cases.op("sum", |[x], []| ops::sum(x, &[0, -1]))?;
    cases.op("mean", |[x], []| ops::mean(x, &[0, -1]))?;
    cases.op("max", |[x], []| ops::max(x, &[0, -1]))?;
    cases.op("min", |[x], []| ops::min(x, &[0, -1]))?;
    Ok(())
}

fn products(cases: &mut Cases) -> Result<()> {
    cases.op("linear", |[x, w], []| ops::linear(x, w))?.weights = &[1];
    cases.op("matmul", |[a, b], []| ops::matmul(a, b))?;
    let window = || AttentionMask { window: Some(3), ..AttentionMask::causal() };
    cases
        .op("attention", move |[q, k, v], []| ops::attention_with_lse(q, k, v, &window(), SCALE))?;
    cases.op("attention, cached keys", |[q, k, v], of| {
        ops::attention(q, k, v, &cached(of), SCALE)
    })?;
    let loss = cases.op("linear_cross_entropy", |[x, w], [labels]| {
        Ok(ops::linear_cross_entropy(x, w, labels, -100)?.0)
    })?;
    loss.weights = &[1];
    Ok(())
}

/// The causal mask of queries and keys at these positions.
pub(super) fn cached([q_offset, k_len]: &[Tensor; 2]) -> AttentionMask {
    AttentionMask {
        sequences: AttentionSequences::Cached { q_offset: q_offset.clone(), k_len: k_len.clone() },
        ..AttentionMask::causal()
    }
}

fn rows(cases: &mut Cases) -> Result<()> {
    let norm = cases.op("rms_norm", |[x, w], []| ops::rms_norm(x, w, EPS))?;
    norm.weights = &[1];
    let norm = cases.op("layer_norm", |[x, w, b], []| ops::layer_norm(x, w, b, EPS))?;
    norm.weights = &[1, 2];
    let norm = cases.op("add_rms_norm", |[x, added, w], []| ops::add_rms_norm(x, added, w, EPS))?;
    norm.weights = &[2];
    cases.op("softmax", |[x], []| ops::softmax(x))?;
    cases.op("log_softmax", |[x], []| ops::log_softmax(x))?;
    cases.op("swiglu", |[gate_up], []| ops::swiglu(gate_up))?;
    cases.op("cumsum", |[x], []| ops::cumsum(x, -1))?;
    cases.op("argsort", |[x], []| Ok(ops::sort(x, 0, false)?.0))?;
    cases.op("argsort, descending", |[x], []| Ok(ops::sort(x, 0, true)?.0))?;
    Ok(())
}

fn positions(cases: &mut Cases) -> Result<()> {
    for (rope, norm, style) in [
        ("rope", "rms_norm_rope", RopeStyle::Half),
        ("rope, interleaved", "rms_norm_rope, interleaved", RopeStyle::Interleaved),
    ] {
        cases.op(rope, move |[x], [cos, sin]| ops::rope(x, cos, sin, style))?;
        let norm = cases
            .op(norm, move |[x, w], [cos, sin]| ops::rms_norm_rope(x, w, cos, sin, style, EPS))?;
        norm.weights = &[1];
    }
    Ok(())
}

fn indexing(cases: &mut Cases) -> Result<()> {
    let embedding = cases.op("embedding", |[table], [ids]| ops::embedding(table, ids))?;
    embedding.weights = &[0];
    cases.op("index_select", |[x], [ids]| ops::index_select(x, 1, ids))?;
    cases.op("gather", |[x], [index]| ops::gather(x, 1, index))?;
    cases.op("scatter_add", |[src], [index]| ops::scatter_add(&[4, 3, 6], 1, index, src))?;
    for (name, renormalize) in [("router_top_k", true), ("router_top_k, not renormalized", false)] {
        cases.op(name, move |[x], []| Ok(ops::router_top_k(x, 2, renormalize, None)?.0))?;
    }
    Ok(())
}
