//! Statistics of each shard of a sharded vocabulary.

use meshgrad_mesh::{Placement, Sharding, ShardingRule};

use super::{Targets, linear_cross_entropy};
use crate::core::sharding::gate::Gate;
use crate::{Result, Tensor};

static SHARDS: &str = "linear_cross_entropy_shards";

/// As [`linear_cross_entropy`], for a vocabulary that may be sharded. The results have one element
/// per row and shard of the vocabulary, and are sharded over it like the rows of `w`. Returns (max,
/// sum_exp, label_logit), of which the program computes
///
/// ```text
/// m    = max over shards of max                          (a partial maximum: redistribute it)
/// lse  = m + ln(sum over shards of sum_exp e^(max - m))  (a partial sum: redistribute it)
/// loss = lse - sum over shards of label_logit            (a partial sum: redistribute it)
/// ```
///
/// The gradient ops take this lse. `meshgrad_autograd::ops::linear_cross_entropy` does all of it.
///
/// # Shapes
/// `x` [.., D], `w` [V, D] of one float dtype, `labels` [..] of an index dtype; returns three [..,
/// N] in the accumulator dtype, for N shards; N = 1 without a sharding.
///
/// # Errors
/// As [`linear_cross_entropy`]; when the shardings do not fit.
pub fn linear_cross_entropy_shards(
    x: &Tensor,
    w: &Tensor,
    labels: &Tensor,
    ignore_index: i64,
) -> Result<(Tensor, Tensor, Tensor)> {
    let gate = Gate {
        op: SHARDS,
        id: std::ptr::from_ref(&SHARDS) as usize,
        operands: &[x.tag(), w.tag(), labels.tag()],
        name: &|at| ["x", "w", "labels"][at].to_owned(),
        last_is_open: false,
        arguments: &[],
    };
    let rule = "x[.. d!], w[v d!], labels[..] -> logits[.. v]";
    let logits = gate.results(&|| ShardingRule::new(SHARDS, rule))?;

    let (of_x, of_w, own_labels) = (x.local(), w.local(), labels.local());
    let targets = Targets { labels: &own_labels, ..Targets::new(labels, ignore_index, w) };
    let (max, sum_exp, label_logit) = linear_cross_entropy(&of_x, &of_w, targets)?;
    let rows = max.shape().len();
    let own = [max, sum_exp, label_logit].map(|statistic| statistic.unsqueeze(rows));
    let [max, sum_exp, label_logit] = own;
    let (max, sum_exp, label_logit) = (max?, sum_exp?, label_logit?);
    let Some(logits) = logits else {
        return Ok((max, sum_exp, label_logit));
    };

    let logits = logits.of_shape(0, max.shape())?;
    let sharding = per_shard(logits.sharding())?;
    let of_rank = |statistic: Tensor| statistic.with_sharding(&sharding, logits.rank());
    Ok((of_rank(max)?, of_rank(sum_exp)?, of_rank(label_logit)?))
}

/// The sharding of a tensor with one element per shard of the last dim.
fn per_shard(logits: &Sharding) -> Result<Sharding> {
    let mut shape = logits.shape().to_vec();
    let last = shape.len() - 1;
    shape[last] = 1;
    for axis in logits.axes_of_dim(last) {
        shape[last] *= logits.mesh().size(axis)?;
    }
    let placements = logits.placements().into_iter().map(|(axis, placement)| {
        let is_last = placement.dim() == Some(last);
        (axis, if is_last { Placement::shard(last) } else { placement })
    });
    let placements: Vec<_> = placements.collect();
    Sharding::new(logits.mesh(), placements, &shape)
}
