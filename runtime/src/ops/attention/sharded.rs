//! Attention of a rank's part of the queries: the mask in terms of this part.

use std::borrow::Cow;
use std::ops::Range;

use meshgrad_error::ensure;
use meshgrad_mesh::ShardingRule;

use super::{AttentionMask, AttentionSequences};
use crate::core::sharding::gate::Gate;
use crate::{DType, Result, Tensor};

static ATTENTION_MASK: &str = "attention";

/// How a tensor of the mask is laid out.
#[derive(Clone, Copy, PartialEq)]
enum List {
    /// One value per row of the batch, or a single one.
    PerRow,
    /// A pair per query.
    PerQuery,
}

/// The queries of this rank that follow each other in the global tensor.
pub(super) struct Queries {
    /// The index of the first one in the global tensor.
    pub(super) first: usize,
    /// Their indices in this rank's part.
    pub(super) own: Range<usize>,
}

/// The ranges of queries that this rank has, at least one.
pub(super) fn queries(q: &Tensor) -> Vec<Queries> {
    let Some(tag) = q.tag() else {
        let own = 0..q.shape()[1];
        return vec![Queries { first: 0, own }];
    };
    let mut end = 0;
    let ranges = tag.region().dims()[1].ranges().iter().map(|range| {
        end += range.len();
        Queries { first: range.start, own: end - range.len()..end }
    });
    ranges.collect()
}

/// `mask` with tensors without shardings, for an op whose result `result` has the shape of `q`.
///
/// # Errors
/// When a tensor of the mask does not fit the sharding of `q`: values per row are sharded like the
/// batch, and values per query like the queries; when ranges have another shape or dtype.
pub(super) fn local_mask<'a>(
    op: &'static str,
    result: &str,
    q: &Tensor,
    mask: &'a AttentionMask,
) -> Result<Cow<'a, AttentionMask>> {
    use AttentionSequences::{Cached, Ranges, Rows};
    let checked = |name: &str, x: &Tensor, list: List| -> Result<Tensor> {
        check(op, result, q, (name, x, list))?;
        Ok(x.local())
    };
    let sequences = match &mask.sequences {
        Rows => return Ok(Cow::Borrowed(mask)),
        Cached { q_offset, k_len } => Cached {
            q_offset: checked("q_offset", q_offset, List::PerRow)?,
            k_len: checked("k_len", k_len, List::PerRow)?,
        },
        Ranges(ranges) => {
            let ranges = checked("ranges", ranges, List::PerQuery)?;
            let [b, t] = [q.shape()[0], q.shape()[1]];
            ensure!(
                ranges.shape()[..] == [b, t, 2] && ranges.dtype() == DType::I32,
                Invalid,
                "{op}: `ranges` is {} {}, but {b} rows of {t} queries need i32 [{b}, {t}, 2]; pass \
                 the first key and the end of each query",
                ranges.dtype(),
                ranges.shape()
            );
            Ranges(ranges)
        }
    };
    Ok(Cow::Owned(AttentionMask { sequences, causal: mask.causal, window: mask.window }))
}

/// The mask of some of the queries of a rank.
pub(super) fn of_queries<'a>(
    mask: &'a AttentionMask,
    own: &Range<usize>,
) -> Result<Cow<'a, AttentionMask>> {
    let AttentionSequences::Ranges(ranges) = &mask.sequences else {
        return Ok(Cow::Borrowed(mask));
    };
    let sequences = AttentionSequences::Ranges(ranges.slice(1, own.clone())?);
    Ok(Cow::Owned(AttentionMask { sequences, causal: mask.causal, window: mask.window }))
}

/// Checks one tensor of the mask by the rule of an op that has it and `q` as operands.
fn check(
    op: &'static str,
    result: &str,
    q: &Tensor,
    (name, x, list): (&str, &Tensor, List),
) -> Result<()> {
    let gate = Gate {
        op,
        id: std::ptr::from_ref(&ATTENTION_MASK) as usize,
        operands: &[q.tag(), x.tag()],
        name: &|at| ["q", name][at].to_owned(),
        last_is_open: false,
        arguments: &[usize::from(list == List::PerQuery)],
    };
    gate.results(&|| {
        let is_single = x.global_shape().elements() == 1;
        let signature = match list {
            List::PerRow if is_single => format!("q[b t h d!], {name}[*] -> {result}[b t h d]"),
            List::PerRow => format!("q[b t h d!], {name}[b] -> {result}[b t h d]"),
            List::PerQuery => format!("q[b t h d!], {name}[b t r!] -> {result}[b t h d]"),
        };
        ShardingRule::new(op, &signature)
    })?;
    Ok(())
}
