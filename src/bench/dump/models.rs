//! Cases of a dump: the remaining kernels of models.

use meshgrad::prelude::*;
use meshgrad::runtime::ops;
use meshgrad::runtime::ops::{AttentionMask, RopeStyle, Targets};
use meshgrad::runtime::{Accumulator, Key, Result, Shape};

use super::inputs::{Cases, Inputs};

/// Tokens, width, experts and experts per token; not multiples of tiles.
const TOKENS: usize = 77;
const WIDTH: usize = 72;
const EXPERTS: usize = 6;
const CHOSEN: usize = 2;

pub(crate) fn cases(inputs: &Inputs<'_>, dtype: DType, cases: &mut Cases) -> Result<()> {
    rows(inputs, dtype, cases)?;
    indices(inputs, dtype, cases)?;
    random(inputs, dtype, cases)?;
    positions(inputs, dtype, cases)?;
    experts(inputs, dtype, cases)?;
    attention(inputs, dtype, cases)?;
    losses(inputs, dtype, cases)
}

fn rows(inputs: &Inputs<'_>, dtype: DType, cases: &mut Cases) -> Result<()> {
    let x = inputs.normal("x", &[37, 1000], dtype)?;
    let dy = inputs.normal("dy", &[37, 1000], dtype)?;
    let y = ops::softmax(&x)?;
    cases.exact(format!("softmax_grad {dtype}"), ops::softmax_grad(&y, &dy)?);
    cases.exact(format!("softmax {dtype}"), y);
    cases.exact(format!("log_softmax {dtype}"), ops::log_softmax(&x)?);
    for (name, dims) in [("rows", &[1][..]), ("columns", &[0]), ("all", &[0, 1])] {
        cases.exact(format!("sum of {name} {dtype}"), ops::sum(&x, dims)?);
        cases.exact(format!("max of {name} {dtype}"), ops::max(&x, dims)?);
    }
    let (largest, _) = ops::top_k(&x, 9)?;
    cases.exact(format!("top_k {dtype}"), largest);

    let gate_up = ops::reshape(&x, &[37, 2, 500])?;
    let dy = inputs.normal("dy", &[37, 500], dtype)?;
    cases.exact(format!("swiglu {dtype}"), ops::swiglu(&gate_up)?);
    cases.exact(
        format!("swiglu_grad {dtype}"),
        ops::swiglu_grad(&gate_up, &dy)?,
    );
    Ok(())
}

fn indices(inputs: &Inputs<'_>, dtype: DType, cases: &mut Cases) -> Result<()> {
    let table = inputs.normal("table", &[50, WIDTH], dtype)?;
    let dy = inputs.normal("dy", &[TOKENS, WIDTH], dtype)?;
    let ids: Vec<i64> = (0..TOKENS as i64).map(|at| (at * at) % 50).collect();
    let ids = Tensor::from_slice(inputs.device, &[TOKENS], &ids)?;
    let mut sums = Accumulator::new(inputs.device, Shape::new(&[50, WIDTH])?, DType::F32)?;
    ops::embedding_grad_into(&dy, &ids, &mut sums)?;
    cases.exact(format!("embedding {dtype}"), ops::embedding(&table, &ids)?);
    cases.exact(format!("embedding_grad {dtype}"), sums.buffer().clone());
    Ok(())
}

fn random(inputs: &Inputs<'_>, dtype: DType, cases: &mut Cases) -> Result<()> {
    let (device, key) = (inputs.device, Key::new(11));
    let uniform = ops::uniform(device, &[4099], dtype, key, -1.0, 1.0)?;
    let normal = ops::normal(device, &[4099], dtype, key, 0.0, 1.0)?;
    cases.exact(format!("uniform {dtype}"), uniform);
    cases.exact(format!("normal {dtype}"), normal);
    Ok(())
}

fn positions(inputs: &Inputs<'_>, dtype: DType, cases: &mut Cases) -> Result<()> {
    let positions = ops::arange(inputs.device, 19, DType::I64)?.unsqueeze(0)?;
    let frequencies: Vec<f32> = (0..32).map(|at| 1e4f32.powf(-(at as f32) / 32.0)).collect();
    let frequencies = Tensor::from_slice(inputs.device, &[32], &frequencies)?;
    let (cos, sin) = ops::rope_tables(&positions, &frequencies, 1.0)?;
    let x = inputs.normal("x", &[1, 19, 3, 64], dtype)?;
    let y = ops::rope(&x, &cos, &sin, RopeStyle::Half)?;
    cases.exact(format!("rope {dtype}"), y);
    cases.exact(format!("cosines for {dtype}"), cos);
    Ok(())
}

fn experts(inputs: &Inputs<'_>, dtype: DType, cases: &mut Cases) -> Result<()> {
    let x = inputs.normal("x", &[TOKENS, WIDTH], dtype)?;
    let scores = inputs.normal("scores", &[TOKENS, EXPERTS], dtype)?;
    let w = inputs.normal("w", &[EXPERTS, 40, WIDTH], dtype)?;
    let probabilities = ops::softmax(&scores)?;
    let (weights, chosen) = ops::router_top_k(&probabilities, CHOSEN, true, None)?;
    let order = ops::expert_order(&chosen, EXPERTS, 0, EXPERTS)?;
    let permuted = ops::permute_tokens(&x, &order.order, &order.offsets)?;
    let product = ops::grouped_matmul_nt(&permuted, &w, &order.offsets)?;
    let back = ops::unpermute_tokens(&permuted, &weights, &order.row_of_slot)?;

    cases.exact(format!("router_top_k {dtype}"), weights);
    cases.exact(format!("permute_tokens {dtype}"), permuted);
    cases.exact(format!("unpermute_tokens {dtype}"), back);
    of_products(cases, dtype, format!("grouped_matmul_nt {dtype}"), product);
    Ok(())
}

/// f32 is a chain of fused multiply-adds; bf16 uses tensor cores.
fn of_products(cases: &mut Cases, dtype: DType, name: String, result: Tensor) {
    match dtype {
        DType::F32 => cases.exact(name, result),
        _ => cases.measured(name, result),
    }
}

fn attention(inputs: &Inputs<'_>, dtype: DType, cases: &mut Cases) -> Result<()> {
    let q = inputs.normal("q", &[2, 70, 4, 64], dtype)?;
    let k = inputs.normal("k", &[2, 70, 2, 64], dtype)?;
    let v = inputs.normal("v", &[2, 70, 2, 64], dtype)?;
    let dout = inputs.normal("dout", &[2, 70, 4, 64], dtype)?;
    let mask = AttentionMask {
        causal: true,
        window: Some(40),
        ..AttentionMask::default()
    };
    let (out, lse) = ops::attention(&q, &k, &v, &mask, 0.125)?;
    let (dq, dk, dv) = ops::attention_grad(&q, &k, &v, &out, &lse, &dout, &mask, 0.125)?;
    for (name, result) in [
        ("", out),
        ("'s lse", lse),
        ("'s dq", dq),
        ("'s dk", dk),
        ("'s dv", dv),
    ] {
        cases.measured(format!("attention{name} {dtype}"), result);
    }
    Ok(())
}

fn losses(inputs: &Inputs<'_>, dtype: DType, cases: &mut Cases) -> Result<()> {
    let x = inputs.normal("x", &[TOKENS, WIDTH], dtype)?;
    let w = inputs.normal("w", &[130, WIDTH], dtype)?;
    let labels: Vec<i64> = (0..TOKENS as i64).map(|at| (at * 31) % 130).collect();
    let labels = Tensor::from_slice(inputs.device, &[TOKENS], &labels)?;
    let targets = Targets {
        labels: &labels,
        ignore_index: -100,
        vocab_start: 0,
        vocab_total: 130,
    };
    let (max, sum, logit) = ops::linear_cross_entropy(&x, &w, targets)?;
    of_products(
        cases,
        dtype,
        format!("linear_cross_entropy's max {dtype}"),
        max,
    );
    of_products(
        cases,
        dtype,
        format!("linear_cross_entropy's sum {dtype}"),
        sum,
    );
    of_products(
        cases,
        dtype,
        format!("linear_cross_entropy's logit {dtype}"),
        logit,
    );
    let norm = ops::global_norm(&[&x, &w])?;
    cases.exact(format!("global_norm {dtype}"), norm);
    Ok(())
}
