//! Attention and its gradients.

use super::op_case::{CaseOperands, OpCase, Results, Source, case};
use crate::ops::{self, AttentionMask, AttentionSequences};
use crate::{Result, Tensor};

/// Attention of queries and keys [batch, tokens, heads, features], with scores scaled by `scale`.
pub fn attention(
    source: &dyn Source,
    [q_shape, k_shape]: [[usize; 4]; 2],
    mask: &AttentionMask,
    scale: f64,
) -> Result<Vec<OpCase>> {
    let (q, dout) = (source.numbers("q", &q_shape)?, source.numbers("dout", &q_shape)?);
    let (k, v) = (source.numbers("k", &k_shape)?, source.numbers("v", &k_shape)?);
    let (out, lse) = ops::attention(&q, &k, &v, mask, scale)?;
    let dlse = source.sums("dlse", lse.shape())?;
    let attention = vec![q, k, v];
    let grad = [&attention[..], &[out, lse, dout]].concat();
    let lse_grad = [&grad[..], &[dlse]].concat();

    let masks = [mask.clone(), mask.clone(), mask.clone()];
    let [of_attention, of_grad, of_lse_grad] = masks;
    Ok(vec![
        OpCase::new("attention", attention, move |of| {
            let [q, k, v] = of.first();
            Ok(ops::attention(q, k, v, &local(&of_attention, of)?, scale)?.list())
        }),
        OpCase::new("attention_grad", grad, move |of| {
            let ([q, k, v, out, lse, dout], mask) = (of.first(), local(&of_grad, of)?);
            Ok(ops::attention_grad(q, k, v, out, lse, dout, &mask, scale)?.list())
        }),
        OpCase::new("attention_lse_grad", lse_grad, move |of| {
            let ([q, k, v, out, lse, dout, dlse], mask) = (of.first(), local(&of_lse_grad, of)?);
            Ok(ops::attention_lse_grad(q, k, v, out, lse, dout, dlse, &mask, scale)?.list())
        }),
    ])
}

/// The mask of some of the queries. Those without a sharding state their position.
fn local(mask: &AttentionMask, of: &CaseOperands) -> Result<AttentionMask> {
    let [q, k] = of.first();
    let is_whole = q.sharding().is_some() || q.shape()[1] == k.shape()[1];
    let sequences = match &mask.sequences {
        AttentionSequences::Rows if !is_whole => {
            let list = |value| Tensor::from_slice(q.device(), &[1], &[value as i64]);
            AttentionSequences::Cached {
                q_offset: list(of.starts[0][1])?,
                k_len: list(k.shape()[1])?,
            }
        }
        other => other.clone(),
    };
    Ok(AttentionMask { sequences, ..mask.clone() })
}

/// Causal attention of two rows over a window of 3 keys in a cache. The second row has two keys less.
pub fn cached_attention(
    source: &dyn Source,
    [q_shape, k_shape]: [[usize; 4]; 2],
) -> Result<OpCase> {
    let keys = [k_shape[1], k_shape[1] - 2].map(|count| count as i64);
    let first = keys.map(|count| count - q_shape[1] as i64);
    let list = |values: [i64; 2]| Tensor::from_slice(source.device(), &[2], &values);
    let operands = vec![
        source.numbers("q", &q_shape)?,
        source.numbers("k", &k_shape)?,
        source.numbers("v", &k_shape)?,
        list(first)?,
        list(keys)?,
    ];
    let case = OpCase::new("attention", operands, |of| {
        let [q, k, v, q_offset, k_len] = of.first();
        let first = match q.sharding() {
            Some(_) => 0,
            None => of.starts[0][1],
        };
        let q_offset = match first {
            0 => q_offset.clone(),
            _ => {
                let offsets = q_offset.to_vec::<i64>()?;
                let offsets: Vec<i64> = offsets.iter().map(|at| at + first as i64).collect();
                Tensor::from_slice(q.device(), q_offset.shape(), &offsets)?
            }
        };
        let sequences = AttentionSequences::Cached { q_offset, k_len: k_len.clone() };
        let mask = AttentionMask { window: Some(3), sequences, ..AttentionMask::causal() };
        Ok(ops::attention(q, k, v, &mask, 0.5)?.list())
    });
    Ok(case.named("attention, cached keys"))
}

/// Attention to the last two keys of given ranges: rows of documents of three and of two tokens.
pub fn attention_to_ranges(source: &dyn Source, q_shape: [usize; 4]) -> Result<OpCase> {
    let [batch, tokens, _, _] = q_shape;
    let ranges: Vec<i32> = documents([batch, tokens])
        .flat_map(|[document, position, token]| [token - position, token + 1 - document % 2])
        .collect();
    let operands = vec![
        source.numbers("q", &q_shape)?,
        source.numbers("k", &q_shape)?,
        source.numbers("v", &q_shape)?,
        Tensor::from_slice(source.device(), &[batch, tokens, 2], &ranges)?,
    ];
    let case = OpCase::new("attention", operands, |of| {
        let [q, k, v, ranges] = of.first();
        let sequences = AttentionSequences::Ranges(ranges.clone());
        let mask = AttentionMask { window: Some(2), sequences, ..AttentionMask::default() };
        Ok(ops::attention(q, k, v, &mask, 0.5)?.list())
    });
    Ok(case.named("attention, ranges of keys"))
}

/// The words of the tokens of documents, and the keys that they see over a window of two. The keys
/// lack the first token.
pub fn visible_keys(source: &dyn Source, [batch, tokens]: [usize; 2]) -> Result<Vec<OpCase>> {
    let list = |at: usize| {
        let values: Vec<i64> = documents([batch, tokens]).map(|it| i64::from(it[at])).collect();
        Tensor::from_slice(source.device(), &[batch, tokens], &values)
    };
    let (documents, positions) = (list(0)?, list(1)?);
    let queries = ops::token_words(&documents, &positions)?;
    let keys = ops::contiguous(&queries.slice(1, 1..tokens)?)?;
    Ok(vec![
        case("token_words", [&documents, &positions], |[documents, positions]| {
            ops::token_words(documents, positions)
        }),
        case("visible_keys", [&queries, &keys], |[queries, keys]| {
            ops::visible_keys(queries, keys, Some(2))
        }),
    ])
}

/// Document, position and token of rows of documents of three tokens, then of two, in turn.
fn documents([batch, tokens]: [usize; 2]) -> impl Iterator<Item = [i32; 3]> {
    let of_row = move |row: usize| {
        let length = 3 - row % 2;
        (0..tokens).map(move |token| [token / length, token % length, token].map(|it| it as i32))
    };
    (0..batch).flat_map(of_row)
}
