//! Mixture of experts: routing, permutation and grouped products.

use meshgrad::prelude::*;
use meshgrad::runtime::op_cases::{expert_offsets, grouped, permutation, routing};
use serde_json::json;

use super::{Amount, Family, Group, Job};
use crate::bench::shapes::{self, Shapes};

pub(super) fn groups(shapes: &Shapes) -> Vec<Group> {
    let floats = shapes.floats();
    let of_dtype = |dtype| shapes.moe.iter().flat_map(move |it| experts(it, dtype));
    floats.flat_map(of_dtype).collect()
}

fn experts(shape: &shapes::Moe, dtype: DType) -> [Group; 3] {
    let shapes::Moe { tokens, hidden, inner, experts, chosen, what } = shape.clone();
    let copies = tokens * chosen;
    let extents = json!({
        "tokens": tokens, "hidden": hidden, "inner": inner, "experts": experts, "chosen": chosen,
    });
    let job = |name, cases, amount| Job::new(name, cases, dtype, amount, &extents);
    let bytes = |elements: usize| Amount::Bytes(dtype.bytes(elements) as f64);
    let of_routing = vec![
        job("router", &["router_top_k"], bytes(tokens * experts)),
        job("router_grad", &["router_top_k_grad"], bytes(2 * tokens * experts)),
        job("expert_order", &["expert_order"], bytes(4 * copies)),
    ];
    let rows = bytes((tokens + copies) * hidden);
    let of_permutation = vec![
        job("permute", &["permute_tokens"], rows),
        job("permute_grad", &["permute_tokens_grad"], rows),
        job("unpermute", &["unpermute_tokens"], rows),
        job("unpermute_grad_input", &["unpermute_tokens_grad_input"], rows),
        job("unpermute_grad_weights", &["unpermute_tokens_grad_weights"], rows),
    ];
    let product = Amount::Flops(2.0 * (copies * hidden * 2 * inner) as f64);
    let of_products = vec![
        job("grouped_gemm", &["grouped_matmul_nt"], product),
        job("grouped_gemm_grad_input", &["grouped_matmul_grad_input"], product),
        job("grouped_gemm_grad_weight", &["grouped_matmul_grad_weight_into"], product),
    ];

    let group = |jobs: Vec<Job>, family: Family| Group {
        title: format!(
            "{tokens} tokens, {chosen} of {experts} experts, {hidden} to {inner}: {what}"
        ),
        jobs,
        bytes: dtype.bytes(copies * hidden + experts * 2 * inner * hidden),
        family,
    };
    let extents = [tokens, experts, chosen];
    let products: Family = Box::new(move |source| {
        let offsets = expert_offsets(source, extents)?;
        grouped(source, &offsets, [copies, hidden, 2 * inner])
    });
    [
        group(of_routing, Box::new(move |source| routing(source, extents))),
        group(of_permutation, Box::new(move |source| permutation(source, extents, hidden))),
        group(of_products, products),
    ]
}
