//! Ops that are made of other ops, ops that are used together, and special inputs.

use meshgrad_autograd::{Result, ops};
use meshgrad_runtime::Tensor;
use meshgrad_runtime::op_cases::Source;
use meshgrad_runtime::ops::{self as runtime, AttentionMask};

use super::table::{BINARY, cached};
use super::{Cases, Inputs};

pub(super) fn compositions(at: &Inputs<'_>, cases: &mut Cases) -> Result<()> {
    special_inputs(at, cases)?;
    broadcasts(at, cases)?;
    of_views(at, cases)?;
    scored_attention(at, cases)?;
    experts(at, cases)?;

    let x = || at.numbers("x", &[2, 3, 4]);
    cases.composed("logsumexp", [x()?], [], |[x], []| ops::logsumexp(x, &[0, -1]))?;
    cases.composed("cumsum of the first dim", [x()?], [], |[x], []| ops::cumsum(x, 0))?;
    cases.composed("tril", [x()?], [], |[x], []| ops::tril(x, 1))?;
    cases.composed("triu", [x()?], [], |[x], []| ops::triu(x, -1))?;
    let labels = Tensor::from_slice(at.device, &[2, 3], &[3i64, -100, 0, 6, 6, -100])?;
    let logits = at.numbers("logits", &[2, 3, 7])?;
    cases.composed("cross_entropy", [logits], [labels], |[logits], [labels]| {
        Ok(ops::cross_entropy(logits, labels, -100)?.0)
    })?;
    Ok(())
}

fn special_inputs(at: &Inputs<'_>, cases: &mut Cases) -> Result<()> {
    let x = at.numbers("x", &[4])?;
    cases.composed("mul of an operand with itself", [x], [], |[x], []| ops::mul(x, x))?;
    let inputs = [at.numbers("a", &[0, 3])?, at.numbers("b", &[3])?];
    cases.composed("add, empty", inputs, [], |[a, b], []| ops::add(a, b))?;

    // The rows consist of whole 16-byte vectors in every float dtype.
    for (name, rows, features) in [("linear, aligned", 3, 16), ("linear, no rows", 0, 4)] {
        let inputs = [at.numbers("x", &[rows, features])?, at.numbers("w", &[8, features])?];
        let linear = cases.composed(name, inputs, [], |[x, w], []| ops::linear(x, w))?;
        linear.weights = &[1];
    }
    let inputs = [at.numbers("x", &[3, 16])?, at.positive("w", &[16])?];
    let norm =
        cases.composed("rms_norm, aligned", inputs, [], |[x, w], []| ops::rms_norm(x, w, 1e-3))?;
    norm.weights = &[1];

    let inputs = [at.numbers("x", &[3, 5])?, at.positive("w", &[5])?];
    let norm = cases.composed("residual_rms_norm", inputs, [], |[x, w], []| {
        ops::residual_rms_norm(x, w, 1e-3)
    })?;
    norm.weights = &[1];
    Ok(())
}

/// Gradients of broadcasts are sums. These have few terms, which do not cancel in bf16.
fn broadcasts(at: &Inputs<'_>, cases: &mut Cases) -> Result<()> {
    for (_, name, op) in BINARY {
        let inputs = [at.numbers("a", &[2, 1, 4])?, at.positive("b", &[3, 1])?];
        cases.composed(name, inputs, [], move |[a, b], []| op(a, b))?;
    }
    let x = at.numbers("x", &[3, 1])?;
    cases.composed("broadcast_to", [x], [], |[x], []| {
        ops::square(&ops::broadcast_to(x, &[2, 3, 5])?)
    })?;
    Ok(())
}

fn of_views(at: &Inputs<'_>, cases: &mut Cases) -> Result<()> {
    let x = || at.numbers("x", &[3, 4, 2]);
    cases.composed("sum of a transpose", [x()?], [], |[x], []| {
        ops::sum(&ops::transpose(x, 0, 1)?, &[0])
    })?;
    cases.composed("reshape of a transpose", [x()?], [], |[x], []| {
        ops::reshape(&ops::transpose(x, 0, 1)?, &[2, 12])
    })?;
    cases.composed("split_last, merge_last", [x()?], [], |[x], []| {
        ops::merge_last(&ops::split_last(&ops::transpose(x, 1, 2)?, 2)?)
    })?;
    cases.composed("split", [at.numbers("x", &[2, 5])?], [], |[x], []| {
        let parts = ops::split(x, &[2, 1, 2], 1)?;
        ops::mul(&parts[0], &parts[2])
    })?;
    let inputs = [at.numbers("a", &[2, 4, 3])?, at.numbers("b", &[2, 4, 5])?];
    cases.composed("matmul of a transpose", inputs, [], |[a, b], []| {
        ops::matmul(&ops::transpose(a, -1, -2)?, b)
    })?;
    Ok(())
}

/// Two heads share a key head.
fn scored_attention(at: &Inputs<'_>, cases: &mut Cases) -> Result<()> {
    let inputs = || -> Result<[Tensor; 4]> {
        Ok([
            at.numbers("q", &[2, 3, 4, 2])?,
            at.numbers("k", &[2, 5, 2, 2])?,
            at.numbers("v", &[2, 5, 2, 2])?,
            at.numbers("bias", &[4, 3, 5])?,
        ])
    };
    cases.composed("attention, bias", inputs()?, [], |[q, k, v, bias], []| {
        let mask = AttentionMask::default();
        ops::attention_with_scores([q, k, v], Some(bias), None, &mask, 0.7)
    })?;
    let lists = [[1i64, 2], [4, 5]].map(|list| Tensor::from_slice(at.device, &[2], &list));
    let [q_offset, k_len] = lists;
    cases.composed(
        "attention, soft cap, bias, cached keys",
        inputs()?,
        [q_offset?, k_len?],
        |[q, k, v, bias], of| {
            ops::attention_with_scores([q, k, v], Some(bias), Some(0.8), &cached(of), 0.7)
        },
    )?;
    Ok(())
}

/// Experts 1 and 2 of four are held; expert 2 has no tokens.
fn experts(at: &Inputs<'_>, cases: &mut Cases) -> Result<()> {
    let chosen = Tensor::from_slice(at.device, &[4, 2], &[1i64, 0, 3, 1, 0, 3, 1, 3])?;
    let inputs =
        [at.numbers("x", &[4, 3])?, at.numbers("w", &[2, 5, 3])?, at.numbers("weights", &[4, 2])?];
    let experts = cases.composed("experts", inputs, [chosen], |[x, w, weights], [chosen]| {
        let order = runtime::expert_order(chosen, 4, 1, 2)?;
        let rows = ops::permute_tokens(x, &order)?;
        let rows = ops::grouped_matmul(&rows, w, &order.offsets)?;
        ops::unpermute_tokens(&rows, weights, &order)
    })?;
    experts.weights = &[1];
    Ok(())
}
