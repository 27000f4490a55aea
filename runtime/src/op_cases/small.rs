//! All families at small, uneven extents.

use super::op_case::{OpCase, Source};
use super::{
    adamw, arg_reductions, attention, attention_to_ranges, binary, cached_attention, concat,
    copies, embedding, expert_offsets, gathering, gradient_norm, grouped, linear, losses, matmul,
    norms, ordered, permutation, positions, random, reductions, routing, selection, softmaxes,
    swiglu, top_k, unary, views, visible_keys, with_constants,
};
use crate::ops::{AttentionMask, RopeStyle};
use crate::{Key, Result};

/// Cases of every op, at small and uneven extents. No two have the same name.
pub fn small(source: &dyn Source) -> Result<Vec<OpCase>> {
    let shape = [4, 3, 6];
    let families = [
        unary(source, &[5, 4])?,
        with_constants(source, &[5, 4])?,
        binary(source, &[5, 4], &[5, 4])?,
        noted(binary(source, &[5, 4], &[4])?, "rows"),
        noted(binary(source, &[5, 1], &[3, 1, 4])?, "broadcast"),
        copies(source, [5, 4])?,
        views(source, shape)?,
        concat(source, [&shape, &[4, 2, 6]], 1)?,
        random(source, &[5, 4], &Key::new(7).into())?,
        norms(source, &[3, 5], 4)?,
        softmaxes(source, &[3, 5, 4])?,
        swiglu(source, 3, 5)?,
        ordered(source, &[3, 5, 4])?,
        vec![top_k(source, &[3, 5, 4], 2)?],
        reductions(source, &shape, &[0, 2])?,
        arg_reductions(source, &shape, 1)?,
        linear(source, &[2, 5], [4, 6])?,
        matmul(source, &[2], [3, 5, 4], "nn")?,
        rotated(source)?,
        attentions(source)?,
        losses(source, [5, 3, 7])?,
        experts(source)?,
        embedding(source, [7, 4], &[3, 5])?,
        selection(source, &shape, 1, 5)?,
        gathering(source, &shape, 1, 2)?,
        vec![adamw(source, 1, &[5], None)?],
        gradient_norm(source, &[7, 3])?,
    ];
    Ok(families.into_iter().flatten().collect())
}

/// The cases with `note` after their names.
fn noted(cases: Vec<OpCase>, note: &str) -> Vec<OpCase> {
    let with_note = |case: OpCase| {
        let name = format!("{}, {note}", case.name);
        case.named(&name)
    };
    cases.into_iter().map(with_note).collect()
}

/// All features are rotated, and two of three pairs.
fn rotated(source: &dyn Source) -> Result<Vec<OpCase>> {
    let interleaved = positions(source, [2, 5, 3, 6], 2, RopeStyle::Interleaved)?;
    let mut cases = positions(source, [2, 5, 3, 4], 2, RopeStyle::Half)?;
    cases.extend(noted(interleaved, "interleaved"));
    Ok(cases)
}

/// Two query heads per key head, one query head per key head, and one key head for all.
fn attentions(source: &dyn Source) -> Result<Vec<OpCase>> {
    let of_heads = |heads, key_heads| {
        let extents = [[2, 5, heads, 2], [2, 5, key_heads, 2]];
        attention(source, extents, &AttentionMask::causal(), 0.5)
    };
    let mut cases = of_heads(4, 2)?;
    cases.extend(noted(of_heads(3, 3)?, "all key heads"));
    cases.extend(noted(of_heads(4, 1)?, "one key head"));
    cases.push(cached_attention(source, [[2, 3, 4, 2], [2, 6, 2, 2]])?);
    cases.push(attention_to_ranges(source, [2, 5, 2, 2])?);
    cases.extend(visible_keys(source, [2, 5])?);
    Ok(cases)
}

/// Five tokens, each routed to two of three experts.
fn experts(source: &dyn Source) -> Result<Vec<OpCase>> {
    let extents = [5, 3, 2];
    let mut cases = routing(source, extents)?;
    cases.extend(permutation(source, extents, 4)?);
    cases.extend(grouped(source, &expert_offsets(source, extents)?, [10, 4, 6])?);
    Ok(cases)
}
