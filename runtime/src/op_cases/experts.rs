//! Mixtures of experts: routing, the order of tokens by expert, and grouped products.

use super::op_case::{OpCase, Source, accumulated, adding, case};
use crate::{Result, Tensor, ops};

/// The experts of each token.
struct Routed {
    probabilities: Tensor,
    weights: Tensor,
    chosen: Tensor,
}

fn routed(source: &dyn Source, [tokens, experts, count]: [usize; 3]) -> Result<Routed> {
    let probabilities = source.positive("probabilities", &[tokens, experts])?;
    let (weights, chosen) = ops::router_top_k(&probabilities, count, true, None)?;
    Ok(Routed { probabilities, weights, chosen })
}

/// Experts of a rank, and a capacity at which some slots get no row and some rows no slot.
fn ranks([tokens, experts, count]: [usize; 3]) -> [usize; 2] {
    let held = if experts.is_multiple_of(2) { 2 } else { 1 };
    [held, (tokens * count * held).div_ceil(experts)]
}

/// The choice of experts and the order of tokens by expert, for [tokens, experts, chosen per token].
pub fn routing(source: &dyn Source, extents: [usize; 3]) -> Result<Vec<OpCase>> {
    let [tokens, experts, count] = extents;
    let routed = routed(source, extents)?;
    let (probabilities, chosen) = (&routed.probabilities, &routed.chosen);
    let bias = accumulated(&source.numbers("bias", &[experts])?)?;
    let dweights = source.numbers("dweights", &[tokens, count])?;
    let sorted = ops::expert_order(chosen, experts, 0, experts)?;
    let (offsets, sorted_slots) = (&sorted.offsets, &sorted.order);
    let [held, capacity] = ranks(extents);
    let grad = [probabilities, chosen, &dweights];
    let given = source.indices("chosen", &[tokens, count], experts)?;
    let order = move |[chosen]: [&Tensor; 1]| {
        let order = ops::expert_order(chosen, experts, 0, experts)?;
        Ok((order.offsets, order.order, order.row_of_slot))
    };
    Ok(vec![
        case("router_top_k", [probabilities], move |[probabilities]| {
            ops::router_top_k(probabilities, count, true, None)
        }),
        case("router_top_k", [probabilities], move |[probabilities]| {
            ops::router_top_k(probabilities, count, false, None)
        })
        .named("router_top_k, not renormalized"),
        case("router_top_k_biased", [probabilities, &bias], move |[probabilities, bias]| {
            ops::router_top_k(probabilities, count, true, Some(bias))
        }),
        case("router_top_k_grad", grad, |[probabilities, chosen, dweights]| {
            ops::router_top_k_grad(probabilities, chosen, dweights, true)
        }),
        case("router_top_k_grad", grad, |[probabilities, chosen, dweights]| {
            ops::router_top_k_grad(probabilities, chosen, dweights, false)
        })
        .named("router_top_k_grad, not renormalized"),
        case("expert_order", [chosen], order),
        case("expert_order", [&given], order).named("expert_order, given indices"),
        case(
            "expert_places",
            [chosen, offsets, sorted_slots, &sorted.row_of_slot],
            move |[chosen, offsets, order, row_of_slot]| {
                let [offsets, order, row_of_slot] = [offsets, order, row_of_slot].map(Clone::clone);
                let sorted = ops::ExpertOrder { offsets, order, row_of_slot };
                let ops::ExpertPlaces { order, experts } =
                    ops::expert_places(chosen, &sorted, held, capacity)?;
                Ok((order.offsets, order.order, order.row_of_slot, experts))
            },
        ),
        case("expert_counts", [offsets], |[offsets]| ops::expert_counts(offsets)),
    ])
}

/// The permutation of tokens of `features` by expert and back, for [tokens, experts, chosen per token].
pub fn permutation(
    source: &dyn Source,
    extents: [usize; 3],
    features: usize,
) -> Result<Vec<OpCase>> {
    let [tokens, experts, count] = extents;
    let Routed { weights, chosen, .. } = routed(source, extents)?;
    let order = ops::expert_order(&chosen, experts, 0, experts)?;
    let [held, capacity] = ranks(extents);
    let places = ops::expert_places(&chosen, &order, held, capacity)?.order;
    let (offsets, row_of_slot, order) = (&order.offsets, &order.row_of_slot, &order.order);
    let x = source.numbers("x", &[tokens, features])?;
    let dout = source.numbers("dout", &[tokens, features])?;
    let y = source.numbers("y", &[tokens * count, features])?;
    let permute =
        move |[x, order, offsets]: [&Tensor; 3]| ops::permute_tokens(x, order, offsets, count);
    let permute_weighted = |[dout, weights, order, offsets]: [&Tensor; 4]| {
        ops::unpermute_tokens_grad_input(dout, weights, order, offsets)
    };
    Ok(vec![
        case("permute_tokens", [&x, order, offsets], permute),
        case("permute_tokens", [&x, &places.order, &places.offsets], permute)
            .named("permute_tokens, places"),
        case("permute_tokens_grad", [&y, row_of_slot], |[dy, row_of_slot]| {
            ops::permute_tokens_grad(dy, row_of_slot)
        }),
        case("unpermute_tokens", [&y, &weights, row_of_slot], |[y, weights, row_of_slot]| {
            ops::unpermute_tokens(y, weights, row_of_slot)
        }),
        case("unpermute_tokens_grad_input", [&dout, &weights, order, offsets], permute_weighted),
        case(
            "unpermute_tokens_grad_input",
            [&dout, &weights, &places.order, &places.offsets],
            permute_weighted,
        )
        .named("unpermute_tokens_grad_input, places"),
        case(
            "unpermute_tokens_grad_weights",
            [&dout, &y, row_of_slot],
            |[dout, y, row_of_slot]| ops::unpermute_tokens_grad_weights(dout, y, row_of_slot),
        ),
    ])
}

/// Products of `rows` with the matrices of their experts, and the gradients. The rows of expert g
/// are those from `offsets[g]` to `offsets[g + 1]`.
pub fn grouped(
    source: &dyn Source,
    offsets: &Tensor,
    [rows, inputs, outputs]: [usize; 3],
) -> Result<Vec<OpCase>> {
    let experts = offsets.elements() - 1;
    let x = source.numbers("x", &[rows, inputs])?;
    let dy = source.numbers("dy", &[rows, outputs])?;
    let w = source.numbers("w", &[experts, outputs, inputs])?;
    let sum = source.sums("dw", &[experts, outputs, inputs])?;
    Ok(vec![
        case("grouped_matmul_nt", [&x, &w, offsets], |[x, w, offsets]| {
            ops::grouped_matmul_nt(x, w, offsets)
        }),
        case("grouped_matmul_grad_input", [&dy, &w, offsets], |[dy, w, offsets]| {
            ops::grouped_matmul_grad_input(dy, w, offsets)
        }),
        adding(
            "grouped_matmul_grad_weight_into",
            [&dy, &x, offsets],
            &sum,
            |[dy, x, offsets], dw| ops::grouped_matmul_grad_weight_into(dy, x, offsets, dw),
        ),
    ])
}

/// Offsets of the rows of each expert, for [`grouped`].
pub fn expert_offsets(source: &dyn Source, extents: [usize; 3]) -> Result<Tensor> {
    let chosen = routed(source, extents)?.chosen;
    Ok(ops::expert_order(&chosen, extents[1], 0, extents[1])?.offsets)
}
