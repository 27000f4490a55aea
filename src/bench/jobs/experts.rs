//! Mixture of experts: routing, permutation and grouped products.

use meshgrad::prelude::*;
use meshgrad::runtime::Accumulator;
use meshgrad::runtime::ops;
use serde_json::json;

use super::{Amount, Group, Job};
use crate::bench::shapes::{self, Shapes};

pub(super) fn groups(shapes: &Shapes) -> Vec<Group> {
    let floats = shapes.floats();
    let of_dtype = |dtype| shapes.moe.iter().map(move |it| experts(it, dtype));
    floats.flat_map(of_dtype).collect()
}

/// Indices of operands in a set.
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

fn experts(shape: &shapes::Moe, dtype: DType) -> Group {
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
    let bytes = |elements: usize| Amount::Bytes(dtype.bytes(elements) as f64);
    let product = Amount::Flops(2.0 * (copies * hidden * 2 * inner) as f64);
    let routing = vec![
        Job::new(
            "router",
            dtype,
            bytes(tokens * experts),
            &extents,
            move |of| {
                let (weights, indices) = ops::router_top_k(&of[PROBABILITIES], chosen, true, None)?;
                Ok(vec![weights, indices])
            },
        ),
        Job::new(
            "router_grad",
            dtype,
            bytes(2 * tokens * experts),
            &extents,
            |of| {
                let [probabilities, indices, dweights] =
                    [PROBABILITIES, INDICES, WEIGHTS].map(|at| &of[at]);
                let d = ops::router_top_k_grad(probabilities, indices, dweights, true)?;
                Ok(vec![d])
            },
        ),
        Job::new(
            "expert_order",
            dtype,
            bytes(4 * copies),
            &extents,
            move |of| {
                let order = ops::expert_order(&of[INDICES], experts, 0, experts)?;
                Ok(vec![order.offsets, order.order, order.row_of_slot])
            },
        ),
    ];
    let rows = bytes((tokens + copies) * hidden);
    let moving = vec![
        Job::new("permute", dtype, rows, &extents, |of| {
            let [x, order, offsets] = [X, ORDER, OFFSETS].map(|at| &of[at]);
            Ok(vec![ops::permute_tokens(x, order, offsets)?])
        }),
        Job::new("permute_grad", dtype, rows, &extents, |of| {
            Ok(vec![ops::permute_tokens_grad(&of[PERMUTED], &of[PLACE])?])
        }),
        Job::new("unpermute", dtype, rows, &extents, |of| {
            let [y, weights, place] = [PERMUTED, WEIGHTS, PLACE].map(|at| &of[at]);
            Ok(vec![ops::unpermute_tokens(y, weights, place)?])
        }),
        Job::new("unpermute_grad_input", dtype, rows, &extents, |of| {
            let [dout, weights, order, offsets] = [X, WEIGHTS, ORDER, OFFSETS].map(|at| &of[at]);
            let dy = ops::unpermute_tokens_grad_input(dout, weights, order, offsets)?;
            Ok(vec![dy])
        }),
        Job::new("unpermute_grad_weights", dtype, rows, &extents, |of| {
            let [dout, y, place] = [X, PERMUTED, PLACE].map(|at| &of[at]);
            Ok(vec![ops::unpermute_tokens_grad_weights(dout, y, place)?])
        }),
    ];
    let products = vec![
        Job::new("grouped_gemm", dtype, product, &extents, |of| {
            let [x, w, offsets] = [PERMUTED, GATE_UP, OFFSETS].map(|at| &of[at]);
            Ok(vec![ops::grouped_matmul_nt(x, w, offsets)?])
        }),
        Job::new("grouped_gemm_grad_input", dtype, product, &extents, |of| {
            let [dy, w, offsets] = [DGATE_UP, GATE_UP, OFFSETS].map(|at| &of[at]);
            Ok(vec![ops::grouped_matmul_grad_input(dy, w, offsets)?])
        }),
        Job::new("grouped_gemm_grad_weight", dtype, product, &extents, |of| {
            let [dy, x, offsets] = [DGATE_UP, PERMUTED, OFFSETS].map(|at| &of[at]);
            let mut dw = Accumulator::new(x.device(), *of[GATE_UP].shape(), DType::F32)?;
            ops::grouped_matmul_grad_weight_into(dy, x, offsets, &mut dw)?;
            Ok(vec![dw.buffer().clone()])
        }),
    ];
    Group {
        title: format!(
            "{tokens} tokens, {chosen} of {experts} experts, {hidden} to {inner}: {what}"
        ),
        jobs: [routing, moving, products].into_iter().flatten().collect(),
        bytes: dtype.bytes(copies * hidden + experts * 2 * inner * hidden),
        operands: Box::new(move |source| {
            let x = source.random("x", &[tokens, hidden], dtype)?;
            let scores = source.random("scores", &[tokens, experts], dtype)?;
            let probabilities = ops::softmax(&ops::affine(&scores, 4.0, 0.0)?)?;
            let (weights, indices) = ops::router_top_k(&probabilities, chosen, true, None)?;
            let order = ops::expert_order(&indices, experts, 0, experts)?;
            let permuted = ops::permute_tokens(&x, &order.order, &order.offsets)?;
            let gate_up = source.random("gate_up", &[experts, 2 * inner, hidden], dtype)?;
            let dgate_up = source.random("dgate_up", &[copies, 2 * inner], dtype)?;
            Ok(vec![
                x,
                probabilities,
                indices,
                weights,
                order.offsets,
                order.order,
                order.row_of_slot,
                permuted,
                gate_up,
                dgate_up,
            ])
        }),
    }
}
