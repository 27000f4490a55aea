//! Attention of a rank's part of the queries: the mask in terms of this part.

use std::borrow::Cow;

use meshgrad_mesh::ShardingRule;

use super::{AttentionMask, AttentionSequences};
use crate::core::sharding::gate::Gate;
use crate::{DType, Device, Result, Tensor, ops};

static ATTENTION_MASK: &str = "attention";

/// How a tensor of the mask is laid out.
#[derive(Clone, Copy, PartialEq)]
enum List {
    /// One value per row of the batch, or a single one.
    PerRow,
    /// Offsets into the queries or keys, which must be whole.
    Offsets,
}

/// The index of this rank's first query in the global tensor.
pub(super) fn first_query(q: &Tensor) -> usize {
    let ranges = q.tag().and_then(|tag| tag.sharding().ranges(tag.rank()));
    ranges.map_or(0, |ranges| ranges[1].start)
}

/// `mask` for this rank's part of `q` and the whole of `keys` keys, with tensors without shardings.
///
/// # Errors
/// [`Error::Sharding`](crate::Error::Sharding) when a tensor of the mask does not fit the sharding
/// of `q`: values per row are sharded like the batch, and packed queries are whole.
pub(super) fn local_mask<'a>(
    q: &Tensor,
    keys: usize,
    mask: &'a AttentionMask,
) -> Result<Cow<'a, AttentionMask>> {
    use AttentionSequences::{Cached, Packed, Rows};
    check(q, &mask.sequences)?;
    let first = first_query(q);
    let sequences = match &mask.sequences {
        Rows if first == 0 => return Ok(Cow::Borrowed(mask)),
        Rows => Cached {
            q_offset: position(first)?,
            k_len: position(keys)?,
        },
        Cached { q_offset, k_len } => Cached {
            q_offset: shifted(&q_offset.local(), first)?,
            k_len: k_len.local(),
        },
        Packed {
            cu_seqlens_q,
            cu_seqlens_k,
        } => Packed {
            cu_seqlens_q: cu_seqlens_q.local(),
            cu_seqlens_k: cu_seqlens_k.local(),
        },
    };
    Ok(Cow::Owned(AttentionMask {
        sequences,
        ..mask.clone()
    }))
}

fn position(position: usize) -> Result<Tensor> {
    Tensor::from_slice(&Device::cpu(), &[1], &[position as i64])
}

/// `positions` + `by`. Positions are at most 2^24, which f32 represents exactly.
fn shifted(positions: &Tensor, by: usize) -> Result<Tensor> {
    if by == 0 {
        return Ok(positions.clone());
    }
    let wide = match positions.device().is_gpu() {
        true => DType::F32,
        false => DType::F64,
    };
    let sum = ops::affine(&ops::cast(positions, wide)?, 1.0, by as f64)?;
    ops::cast(&sum, DType::I64)
}

fn check(q: &Tensor, sequences: &AttentionSequences) -> Result<()> {
    let (names, lists, list) = match sequences {
        AttentionSequences::Rows => return Ok(()),
        AttentionSequences::Cached { q_offset, k_len } => {
            (["q_offset", "k_len"], [q_offset, k_len], List::PerRow)
        }
        AttentionSequences::Packed {
            cu_seqlens_q,
            cu_seqlens_k,
        } => (
            ["cu_seqlens_q", "cu_seqlens_k"],
            [cu_seqlens_q, cu_seqlens_k],
            List::Offsets,
        ),
    };
    for (name, x) in names.into_iter().zip(lists) {
        check_list(q, name, x, list)?;
    }
    Ok(())
}

/// Checks one tensor of the mask by the rule of an op that has it and `q` as operands.
fn check_list(q: &Tensor, name: &str, x: &Tensor, list: List) -> Result<()> {
    let is_single = x.global_shape().elements() == 1;
    let signature = match list {
        List::PerRow if is_single => format!("q[b t h d!], {name}[*] -> y[b t h d]"),
        List::PerRow => format!("q[b t h d!], {name}[b] -> y[b t h d]"),
        List::Offsets => format!("q[b! t! h d!], {name}[*] -> y[b t h d]"),
    };
    let gate = Gate {
        op: ATTENTION_MASK,
        id: std::ptr::from_ref(&ATTENTION_MASK) as usize,
        operands: &[q.tag(), x.tag()],
        name: &|at| ["q", name][at].to_owned(),
        last_is_open: false,
        arguments: &[usize::from(list == List::Offsets)],
    };
    gate.results(|| ShardingRule::new(ATTENTION_MASK, &signature))?;
    Ok(())
}
