//! What a layer of a model is made of beside norms and plain products: attention, a mixture of
//! experts, the end of the model, the step of the optimizer.

use meshgrad::prelude::*;
use meshgrad::runtime::ops::{
    AdamW, AdamWOperands, AttentionMask, RopeStyle, StepScalars, Targets,
};
use meshgrad::runtime::{Accumulator, Key, Result};
use serde_json::{Value, json};

use crate::jobs::{Amount, FLOATS, Group, Job, Run, Source};
use crate::shapes::{self, Shapes};

const BF16: DType = DType::BF16;

pub(crate) fn groups(shapes: &Shapes) -> Vec<Group> {
    let attention = shapes.attention.iter();
    let attention = attention.flat_map(|it| FLOATS.map(|dtype| attention_of(it, dtype)));
    let positions = shapes.attention.iter().map(positions);
    let moe = shapes.moe.iter().map(experts);
    let ends = shapes.vocabulary.iter().map(end);
    let steps = shapes.adamw.iter().map(step);
    let layers = positions.chain(attention).chain(moe);
    layers.chain(ends).chain(steps).collect()
}

fn job(
    name: &'static str,
    dtype: DType,
    amount: Amount,
    extents: &Value,
    run: impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + 'static,
) -> Job {
    let mut request = extents.clone();
    request["what"] = json!(name);
    request["dtype"] = json!(dtype.name());
    Job {
        name,
        dtype,
        amount,
        request,
        compiles: false,
        run: Box::new(run) as Run,
    }
}

// ------------------------------------------------------------------------------------------------
// Attention

fn attention_of(shape: &shapes::Attention, dtype: DType) -> Group {
    let shapes::Attention {
        batch,
        tokens,
        heads,
        kv_heads,
        head_dim,
        what,
    } = shape.clone();
    let (queries, keys) = (
        [batch, tokens, heads, head_dim],
        [batch, tokens, kv_heads, head_dim],
    );
    let scale = 1.0 / (head_dim as f64).sqrt();
    let mask = || AttentionMask {
        causal: true,
        ..AttentionMask::default()
    };
    // Two products forward and five backward, of which the mask leaves half.
    let product = (batch * heads * tokens * tokens * head_dim) as f64;
    let extents = json!({
        "batch": batch, "tokens": tokens, "heads": heads, "kv_heads": kv_heads,
        "head_dim": head_dim,
    });
    let (forward, backward) = (mask(), mask());
    let amount = |products: f64| Amount::Flops(products * product);
    let jobs = vec![
        job("attention", dtype, amount(2.0), &extents, move |of| {
            let (out, lse) = values::attention(&of[0], &of[1], &of[2], &forward, scale)?;
            Ok(vec![out, lse])
        }),
        job("attention_grad", dtype, amount(5.0), &extents, move |of| {
            let [q, k, v, dout, out, lse] = [0, 1, 2, 3, 4, 5].map(|at| &of[at]);
            let (dq, dk, dv) = values::attention_grad(q, k, v, out, lse, dout, &backward, scale)?;
            Ok(vec![dq, dk, dv])
        }),
    ];
    let mask = mask();
    Group {
        title: format!("{queries:?}, {kv_heads} for keys, causal: {what}"),
        jobs,
        bytes: dtype.bytes(queries.iter().chain(&keys).product::<usize>() / tokens),
        operands: Box::new(move |source| {
            let q = source.random("q", &queries, dtype)?;
            let k = source.random("k", &keys, dtype)?;
            let v = source.random("v", &keys, dtype)?;
            let dout = source.random("dout", &queries, dtype)?;
            let (out, lse) = values::attention(&q, &k, &v, &mask, scale)?;
            Ok(vec![q, k, v, dout, out, lse])
        }),
    }
}

/// The turn of queries, alone and with the norm before it.
fn positions(shape: &shapes::Attention) -> Group {
    let shapes::Attention {
        batch,
        tokens,
        heads,
        head_dim,
        what,
        ..
    } = shape.clone();
    let queries = [batch, tokens, heads, head_dim];
    let elements: usize = queries.iter().product();
    let bytes = Amount::Bytes((4 * elements) as f64);
    let extents = json!({"batch": batch, "tokens": tokens, "heads": heads, "head_dim": head_dim});
    let mut jobs = vec![
        job("rope", BF16, bytes, &extents, |of| {
            Ok(vec![values::rope(&of[0], &of[1], &of[2], RopeStyle::Half)?])
        }),
        job("rms_norm_rope", BF16, bytes, &extents, |of| {
            let [x, cos, sin, w] = [0, 1, 2, 3].map(|at| &of[at]);
            let (y, inv_rms) = values::rms_norm_rope(x, w, cos, sin, RopeStyle::Half, 1e-6)?;
            Ok(vec![y, inv_rms])
        }),
    ];
    for job in &mut jobs {
        job.compiles = true;
    }
    Group {
        title: format!("{queries:?}: {what}"),
        jobs,
        bytes: BF16.bytes(elements),
        operands: Box::new(move |source| {
            let x = source.random("x", &queries, BF16)?;
            let w = source.random("w", &[head_dim], BF16)?;
            let at = values::arange(source.device, tokens, DType::I64)?.unsqueeze(0)?;
            let frequencies = source.random("frequencies", &[head_dim / 2], DType::F32)?;
            let (cos, sin) = values::rope_tables(&at, &frequencies, 1.0)?;
            let table = [batch, tokens, head_dim / 2];
            let (cos, sin) = (cos.broadcast_to(&table)?, sin.broadcast_to(&table)?);
            Ok(vec![x, cos, sin, w])
        }),
    }
}

// ------------------------------------------------------------------------------------------------
// Experts

/// Where the operands are in a set.
const X: usize = 0;
const PROBABILITIES: usize = 1;
const INDICES: usize = 2;
const WEIGHTS: usize = 3;
const OFFSETS: usize = 4;
const ORDER: usize = 5;
const PLACE: usize = 6;
const PERMUTED: usize = 7;
const GATE_UP: usize = 8;
const DGATE_UP: usize = 9;

fn experts(shape: &shapes::Moe) -> Group {
    let shapes::Moe {
        tokens,
        hidden,
        inner,
        experts,
        chosen,
        what,
    } = shape.clone();
    let copies = tokens * chosen;
    let extents = json!({
        "tokens": tokens, "hidden": hidden, "inner": inner, "experts": experts, "chosen": chosen,
    });
    let bytes = |elements: usize| Amount::Bytes(elements as f64 * 2.0);
    let product = Amount::Flops(2.0 * (copies * hidden * 2 * inner) as f64);
    let jobs = vec![
        job(
            "router",
            BF16,
            bytes(tokens * experts),
            &extents,
            move |of| {
                let (weights, indices) =
                    values::router_top_k(&of[PROBABILITIES], chosen, true, None)?;
                Ok(vec![weights, indices])
            },
        ),
        job(
            "expert_order",
            BF16,
            bytes(4 * copies),
            &extents,
            move |of| {
                let order = values::expert_order(&of[INDICES], experts, 0, experts)?;
                Ok(vec![order.offsets, order.order, order.place])
            },
        ),
        job(
            "permute",
            BF16,
            bytes((tokens + copies) * hidden),
            &extents,
            |of| {
                let [x, order, offsets] = [X, ORDER, OFFSETS].map(|at| &of[at]);
                Ok(vec![values::permute_tokens(x, order, offsets)?])
            },
        ),
        job(
            "unpermute",
            BF16,
            bytes((tokens + copies) * hidden),
            &extents,
            |of| {
                let [y, weights, place] = [PERMUTED, WEIGHTS, PLACE].map(|at| &of[at]);
                Ok(vec![values::unpermute_tokens(y, weights, place)?])
            },
        ),
        job("grouped_gemm", BF16, product, &extents, |of| {
            let [x, w, offsets] = [PERMUTED, GATE_UP, OFFSETS].map(|at| &of[at]);
            Ok(vec![values::grouped_matmul_nt(x, w, offsets)?])
        }),
        job("grouped_gemm_grad_input", BF16, product, &extents, |of| {
            let [dy, w, offsets] = [DGATE_UP, GATE_UP, OFFSETS].map(|at| &of[at]);
            Ok(vec![values::grouped_matmul_grad_input(dy, w, offsets)?])
        }),
        job("grouped_gemm_grad_weight", BF16, product, &extents, |of| {
            let [dy, x, offsets] = [DGATE_UP, PERMUTED, OFFSETS].map(|at| &of[at]);
            let mut dw = Accumulator::new(x.device(), *of[GATE_UP].shape(), DType::F32)?;
            values::grouped_matmul_grad_weight_into(dy, x, offsets, &mut dw)?;
            Ok(vec![dw.buffer().clone()])
        }),
    ];
    Group {
        title: format!(
            "{tokens} tokens, {chosen} of {experts} experts, {hidden} to {inner}: {what}"
        ),
        jobs,
        bytes: BF16.bytes(copies * hidden + experts * 2 * inner * hidden),
        operands: Box::new(move |source| {
            let x = source.random("x", &[tokens, hidden], BF16)?;
            let scores = source.random("scores", &[tokens, experts], BF16)?;
            let probabilities = values::softmax(&values::affine(&scores, 4.0, 0.0)?)?;
            let (weights, indices) = values::router_top_k(&probabilities, chosen, true, None)?;
            let order = values::expert_order(&indices, experts, 0, experts)?;
            let permuted = values::permute_tokens(&x, &order.order, &order.offsets)?;
            let gate_up = source.random("gate_up", &[experts, 2 * inner, hidden], BF16)?;
            let dgate_up = source.random("dgate_up", &[copies, 2 * inner], BF16)?;
            Ok(vec![
                x,
                probabilities,
                indices,
                weights,
                order.offsets,
                order.order,
                order.place,
                permuted,
                gate_up,
                dgate_up,
            ])
        }),
    }
}

// ------------------------------------------------------------------------------------------------
// The end of a model

fn end(shape: &shapes::Vocabulary) -> Group {
    let shapes::Vocabulary {
        tokens,
        hidden,
        vocabulary,
        what,
    } = shape.clone();
    let extents = json!({"tokens": tokens, "hidden": hidden, "vocabulary": vocabulary});
    let product = 2.0 * (tokens * hidden * vocabulary) as f64;
    let amount = |products: f64| Amount::Flops(products * product);
    let jobs = vec![
        job("linear_cross_entropy", BF16, amount(1.0), &extents, |of| {
            let targets = targets(&of[1], &of[2]);
            let (max, sum, logit) = values::linear_cross_entropy(&of[0], &of[1], targets)?;
            Ok(vec![max, sum, logit])
        }),
        // Useful products; ours computes the logits again, which is one more.
        job(
            "linear_cross_entropy_grads",
            BF16,
            amount(2.0),
            &extents,
            |of| {
                let [x, w, lse, dloss] = [0, 1, 3, 4].map(|at| &of[at]);
                let mut dw = Accumulator::new(x.device(), *w.shape(), DType::F32)?;
                let dx = values::linear_cross_entropy_grad_both_into(
                    x,
                    w,
                    targets(w, &of[2]),
                    lse,
                    dloss,
                    &mut dw,
                )?;
                Ok(vec![dx, dw.buffer().clone()])
            },
        ),
    ];
    Group {
        title: format!("{tokens} tokens, {hidden} to {vocabulary}: {what}"),
        jobs,
        bytes: BF16.bytes((tokens + vocabulary) * hidden),
        operands: Box::new(move |source| {
            let x = source.random("x", &[tokens, hidden], BF16)?;
            let w = source.random("w", &[vocabulary, hidden], BF16)?;
            let labels: Vec<i64> = (0..tokens)
                .map(|at| ((at * 7919) % vocabulary) as i64)
                .collect();
            let labels = Tensor::from_slice(source.device, &[tokens], &labels)?;
            let (max, sum, _) = values::linear_cross_entropy(&x, &w, targets(&w, &labels))?;
            let lse = values::add(&max, &values::ln(&sum)?)?;
            let dloss = values::full(source.device, &[tokens], DType::F32, 1.0)?;
            Ok(vec![x, w, labels, lse, dloss])
        }),
    }
}

fn targets<'a>(w: &Tensor, labels: &'a Tensor) -> Targets<'a> {
    Targets {
        labels,
        ignore_index: -100,
        vocab_start: 0,
        vocab_total: w.shape()[0],
    }
}

// ------------------------------------------------------------------------------------------------
// The step of the optimizer

/// Tensors of a set for each parameter: it, its gradient, two running means; then three scalars.
const OF_PARAMETER: usize = 4;

fn step(shape: &shapes::AdamW) -> Group {
    let shapes::AdamW {
        tensors,
        elements,
        what,
    } = shape.clone();
    let extents = json!({"tensors": tensors, "elements": elements});
    // The parameter and both means are read and written, the gradient is read.
    let bytes = Amount::Bytes((tensors * elements) as f64 * 28.0);
    let jobs = vec![job("adamw", DType::F32, bytes, &extents, adamw)];
    Group {
        title: format!("{tensors} tensors of {elements}: {what}"),
        jobs,
        bytes: tensors * elements * 16,
        operands: Box::new(move |source| {
            let mut all = Vec::new();
            for tensor in 0..tensors {
                for (kind, name) in [
                    (Kind::Parameter, "param"),
                    (Kind::Gradient, "gradient"),
                    (Kind::OptimizerState, "mean"),
                    (Kind::OptimizerState, "square"),
                ] {
                    all.push(changeable(
                        source,
                        &format!("{name} {tensor}"),
                        elements,
                        kind,
                    )?);
                }
            }
            for value in [1e-4, 10.0, 1.0] {
                all.push(values::full(source.device, &[], DType::F32, value)?);
            }
            Ok(all)
        }),
    }
}

fn adamw(of: &[Tensor]) -> Result<Vec<Tensor>> {
    let (parameters, scalars) = of.split_at(of.len() - 3);
    let operands = parameters
        .chunks_exact(OF_PARAMETER)
        .map(|of| AdamWOperands {
            param: &of[0],
            gradient: &of[1],
            mean: &of[2],
            square: &of[3],
            constants: AdamW {
                beta1: 0.9,
                beta2: 0.95,
                eps: 1e-8,
                weight_decay: 0.1,
            },
            rounding: None,
        });
    let scalars = StepScalars {
        learning_rate: &scalars[0],
        step: &scalars[1],
        scale: &scalars[2],
    };
    values::adamw_step_many(&operands.collect::<Vec<_>>(), scalars)?;
    Ok(Vec::new())
}

/// Random values, squared, in memory that may change.
fn changeable(source: &Source<'_>, name: &str, elements: usize, kind: Kind) -> Result<Tensor> {
    let key = Key::new(source.set as u64).fold_name(name);
    let x = values::uniform(source.device, &[elements], DType::F32, key, 0.0, 1.0)?;
    let to = Tensor::zeros(source.device, &[elements], DType::F32, kind)?;
    values::copy_into(&x, &to)?;
    Ok(to)
}
