//! Attention, and the rotary embedding of queries and keys.

use meshgrad::prelude::*;
use meshgrad::runtime::op_cases;
use meshgrad::runtime::ops::{AttentionMask, RopeStyle};
use serde_json::json;

use super::{Amount, Group, Job};
use crate::bench::shapes::{self, Shapes};

pub(super) fn groups(shapes: &Shapes) -> Vec<Group> {
    let mut groups = Vec::new();
    for dtype in shapes.floats() {
        let layers = shapes.attention.iter();
        groups.extend(layers.flat_map(|it| [positions(it, dtype), attention(it, dtype)]));
    }
    groups
}

fn attention(shape: &shapes::Attention, dtype: DType) -> Group {
    let shapes::Attention { batch, tokens, heads, kv_heads, head_dim, what } = shape.clone();
    let extents = json!({
        "batch": batch, "tokens": tokens, "heads": heads, "kv_heads": kv_heads,
        "head_dim": head_dim,
    });
    // Two products forward and five backward, half of each with the causal mask.
    let product = (batch * heads * tokens * tokens * head_dim) as f64;
    let job = |name, cases, products: f64| {
        Job::new(name, cases, dtype, Amount::Flops(products * product), &extents)
    };
    let elements = batch * tokens * head_dim;
    Group {
        title: format!(
            "[{batch}, {tokens}, {heads}, {head_dim}], {kv_heads} for keys, causal: {what}"
        ),
        jobs: vec![
            job("attention", &["attention"], 2.0),
            job("attention_grad", &["attention_grad"], 5.0),
        ],
        bytes: dtype.bytes(elements * (3 * heads + 2 * kv_heads)),
        family: Box::new(move |source| {
            let extents = [heads, kv_heads].map(|heads| [batch, tokens, heads, head_dim]);
            let scale = 1.0 / (head_dim as f64).sqrt();
            op_cases::attention(source, extents, &AttentionMask::causal(), scale)
        }),
    }
}

/// The rotary embedding of queries, alone and fused with the norm.
fn positions(shape: &shapes::Attention, dtype: DType) -> Group {
    let shapes::Attention { batch, tokens, heads, head_dim, what, .. } = shape.clone();
    let elements = batch * tokens * heads * head_dim;
    let bytes = Amount::Bytes((2 * dtype.bytes(elements)) as f64);
    let extents = json!({"batch": batch, "tokens": tokens, "heads": heads, "head_dim": head_dim});
    let job = |name, cases| Job::new(name, cases, dtype, bytes, &extents).compiled();
    Group {
        title: format!("[{batch}, {tokens}, {heads}, {head_dim}]: {what}"),
        jobs: vec![job("rope", &["rope"]), job("rms_norm_rope", &["rms_norm_rope"])],
        bytes: dtype.bytes(elements),
        family: Box::new(move |source| {
            let shape = [batch, tokens, heads, head_dim];
            op_cases::positions(source, shape, head_dim / 2, RopeStyle::Half)
        }),
    }
}
