//! Attention whose scores are capped or get a bias, composed of other ops.

use meshgrad_error::error;
use meshgrad_runtime::ops::{self, AttentionMask, AttentionSequences};
use meshgrad_runtime::{DType, Device, Error, Tensor};

use super::{add, affine, cast, contiguous, matmul, permute, reshape, softmax, tanh, where_};
use crate::{Operand, Result, Var};

/// As [`attention`](super::attention), with changed scores: `soft_cap` c replaces a score s by c
/// tanh(s / c) (Gemma 2), then `bias` is added (T5, `ALiBi`). The scores are in memory in the
/// accumulator dtype, so this takes far more memory than [`attention`](super::attention).
///
/// # Shapes
/// As [`attention`](super::attention); `bias` of any shape that broadcasts to [B, H, T, S], in the
/// dtype of `q`. Queries and keys are not sharded.
///
/// # Errors
/// When H is not a multiple of G or `soft_cap` is not above 0; as [`matmul`].
pub fn attention_with_scores<V: Operand>(
    [q, k, v]: [&V; 3],
    bias: Option<&V>,
    soft_cap: Option<f64>,
    mask: &AttentionMask,
    scale: f64,
) -> Result<V> {
    let (dtype, from) = (q.dtype().accumulator(), q.dtype());
    let ([b, t, h, d], [_, s, g, _]) = (extents("q", q)?, extents("k", k)?);
    if g == 0 || h % g != 0 {
        return Err(refused(format!("{h} query heads are not a multiple of {g} key heads")));
    }

    // Query heads that share a key head are rows of one product.
    let by_head = |x: &V, order: &[usize]| permute(&cast(x, dtype)?, order);
    let q = reshape(&by_head(q, &[0, 2, 1, 3])?, &[b, g, h / g * t, d])?;
    let scores = affine(&matmul(&q, &by_head(k, &[0, 2, 3, 1])?)?, scale, 0.0)?;
    let mut scores = reshape(&scores, &[b, h, t, s])?;
    if let Some(cap) = soft_cap {
        if cap.is_nan() || cap <= 0.0 {
            return Err(refused(format!("soft_cap = {cap} is not above 0")));
        }
        scores = affine(&tanh(&affine(&scores, 1.0 / cap, 0.0)?)?, cap, 0.0)?;
    }
    if let Some(bias) = bias {
        scores = add(&scores, &cast(bias, dtype)?)?;
    }

    let weights = masked_softmax(&scores, mask, [t, s])?;
    let weights = reshape(&weights, &[b, g, h / g * t, s])?;
    let out = matmul(&weights, &by_head(v, &[0, 2, 1, 3])?)?;
    let out = permute(&reshape(&out, &[b, h, t, d])?, &[0, 2, 1, 3])?;
    contiguous(&cast(&out, from)?)
}

/// The softmax over the keys that `mask` allows; 0 for other keys, and for queries without keys.
fn masked_softmax<V: Operand>(scores: &V, mask: &AttentionMask, [t, s]: [usize; 2]) -> Result<V> {
    let Some(allowed) = allowed(scores.value().device(), mask, [t, s])? else {
        return softmax(scores);
    };
    let zero = scores.value().zeros_beside(&[])?;
    let lowest = ops::affine(&zero, 1.0, -1e30)?;
    let [zero, lowest] = [zero, lowest].map(|it| V::from_var(Var::constant(it)));
    where_(&allowed, &softmax(&where_(&allowed, scores, &lowest)?)?, &zero)
}

/// Whether each query attends to each key, \[B or 1, 1, T, S\]; `None` if all do.
fn allowed(device: &Device, mask: &AttentionMask, extents: [usize; 2]) -> Result<Option<Tensor>> {
    let Positions { queries, keys, visible, causal } = Positions::new(device, mask, extents)?;
    let mut conditions: Vec<Tensor> = visible.into_iter().collect();
    if causal {
        conditions.push(ops::le(&keys, &queries)?);
    }
    if let Some(window) = mask.window {
        let last_masked = ops::affine(&queries, 1.0, -(window as f64))?;
        conditions.push(ops::gt(&keys, &last_masked)?);
    }

    let numbers = conditions.iter().map(|it| ops::cast(it, DType::F32));
    let Some(all) = numbers.reduce(|a, b| ops::mul(&a?, &b?)) else {
        return Ok(None);
    };
    let all = ops::cast(&all?, DType::Bool)?;
    // With a value per row of the batch, the shape is [B, T, S], else [T, S].
    Ok(Some(match all.shape().len() {
        3 => all.unsqueeze(1)?,
        _ => all,
    }))
}

/// The positions of queries and keys in their sequences, in f32, which holds all below 2^24.
struct Positions {
    /// [T, 1], or [B, T, 1].
    queries: Tensor,
    /// \[S\].
    keys: Tensor,
    /// Whether a query's sequence has the key, if some sequence lacks one.
    visible: Option<Tensor>,
    /// Whether keys after a query's position are masked.
    causal: bool,
}

impl Positions {
    fn new(device: &Device, mask: &AttentionMask, [t, s]: [usize; 2]) -> Result<Positions> {
        let index = |count: usize| -> Result<Tensor> {
            let index = ops::arange(device, count, DType::I64)?;
            ops::cast(&index, DType::F32)
        };
        let (queries, keys) = (index(t)?.unsqueeze(1)?, index(s)?);
        match &mask.sequences {
            AttentionSequences::Rows => {
                Ok(Positions { queries, keys, visible: None, causal: mask.causal })
            }
            AttentionSequences::Cached { q_offset, k_len } => {
                let per_row = |x: &Tensor| -> Result<Tensor> {
                    ops::cast(x, DType::F32)?.unsqueeze(1)?.unsqueeze(2)
                };
                Ok(Positions {
                    queries: ops::add(&queries, &per_row(q_offset)?)?,
                    visible: Some(ops::lt(&keys, &per_row(k_len)?)?),
                    keys,
                    causal: mask.causal,
                })
            }
            AttentionSequences::Ranges(ranges) => {
                let ranges = ops::cast(ranges, DType::F32)?;
                let (first, end) = (ranges.slice(2, 0..1)?, ranges.slice(2, 1..2)?);
                // The last key of a query is at the query's position.
                Ok(Positions {
                    queries: ops::affine(&end, 1.0, -1.0)?,
                    visible: Some(ops::ge(&keys, &first)?),
                    keys,
                    causal: true,
                })
            }
        }
    }
}

fn extents<V: Operand>(name: &str, x: &V) -> Result<[usize; 4]> {
    let shape = x.global_shape();
    let extents = <[usize; 4]>::try_from(&*shape);
    extents.map_err(|_| refused(format!("{name} has shape {shape} instead of four dims")))
}

fn refused(problem: String) -> Error {
    error!(Invalid, "attention_with_scores: {problem}")
}
