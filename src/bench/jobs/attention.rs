//! Attention, and the rotary embedding of queries and keys.

use meshgrad::prelude::*;
use meshgrad::runtime::ops;
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
    // Two products forward and five backward, half of each with the causal mask.
    let product = (batch * heads * tokens * tokens * head_dim) as f64;
    let extents = json!({
        "batch": batch, "tokens": tokens, "heads": heads, "kv_heads": kv_heads,
        "head_dim": head_dim,
    });
    let (forward, backward) = (mask(), mask());
    let amount = |products: f64| Amount::Flops(products * product);
    let jobs = vec![
        Job::new("attention", dtype, amount(2.0), &extents, move |of| {
            let (out, lse) = ops::attention(&of[0], &of[1], &of[2], &forward, scale)?;
            Ok(vec![out, lse])
        }),
        Job::new("attention_grad", dtype, amount(5.0), &extents, move |of| {
            let [q, k, v, dout, out, lse] = [0, 1, 2, 3, 4, 5].map(|at| &of[at]);
            let (dq, dk, dv) = ops::attention_grad(q, k, v, out, lse, dout, &backward, scale)?;
            Ok(vec![dq, dk, dv])
        }),
    ];
    let mask = mask();
    Group {
        title: format!("{queries:?}, {kv_heads} for keys, causal: {what}"),
        jobs,
        bytes: dtype
            .bytes(3 * queries.iter().product::<usize>() + 2 * keys.iter().product::<usize>()),
        operands: Box::new(move |source| {
            let q = source.random("q", &queries, dtype)?;
            let k = source.random("k", &keys, dtype)?;
            let v = source.random("v", &keys, dtype)?;
            let dout = source.random("dout", &queries, dtype)?;
            let (out, lse) = ops::attention(&q, &k, &v, &mask, scale)?;
            Ok(vec![q, k, v, dout, out, lse])
        }),
    }
}

/// The rotary embedding of queries, alone and fused with the norm.
fn positions(shape: &shapes::Attention, dtype: DType) -> Group {
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
    let bytes = Amount::Bytes((2 * dtype.bytes(elements)) as f64);
    let extents = json!({"batch": batch, "tokens": tokens, "heads": heads, "head_dim": head_dim});
    let jobs = vec![
        Job::new("rope", dtype, bytes, &extents, |of| {
            Ok(vec![ops::rope(&of[0], &of[1], &of[2], RopeStyle::Half)?])
        })
        .compiled(),
        Job::new("rms_norm_rope", dtype, bytes, &extents, |of| {
            let [x, cos, sin, w] = [0, 1, 2, 3].map(|at| &of[at]);
            let (y, inv_rms) = ops::rms_norm_rope(x, w, cos, sin, RopeStyle::Half, 1e-6)?;
            Ok(vec![y, inv_rms])
        })
        .compiled(),
    ];
    Group {
        title: format!("{queries:?}: {what}"),
        jobs,
        bytes: dtype.bytes(elements),
        operands: Box::new(move |source| {
            let x = source.random("x", &queries, dtype)?;
            let w = source.random("w", &[head_dim], dtype)?;
            let at = ops::arange(source.device, tokens, DType::I64)?.unsqueeze(0)?;
            let frequencies = source.random("frequencies", &[head_dim / 2], DType::F32)?;
            let (cos, sin) = ops::rope_tables(&at, &frequencies, 1.0)?;
            let table = [batch, tokens, head_dim / 2];
            let (cos, sin) = (cos.broadcast_to(&table)?, sin.broadcast_to(&table)?);
            Ok(vec![x, cos, sin, w])
        }),
    }
}
