//! Cross entropy fused with the linear layer that computes the logits. Logits are computed one tile
//! at a time, in forward and again in backward, never for a whole batch (Wijmans et al. 2024).
//!
//! The rows of `w` may be one shard of a vocabulary. Forward returns statistics of the shard, from
//! which the loss of a row is
//!
//! ```text
//! lse  = m + ln(sum over shards of sum_exp e^(max - m)),  m = largest max
//! loss = lse - sum over shards of label_logit
//! ```
//!
//! and max + ln(sum_exp) - label_logit for a single shard.
//!
//! Legend: D features, V classes of this shard; rows are all leading dims.

mod shards;

pub use shards::linear_cross_entropy_shards;

use meshgrad_error::bail;

use super::embedding::index_list;
use super::summed_in;
pub use crate::core::arguments::cross_entropy::Targets;
use crate::cpu::cross_entropy::{self as kernels, Gradient, Labels, Tiles};
use crate::launch::cross_entropy as launch;
use crate::{Accumulator, Call, Result, Signature, Tensor, UninitTensor, for_float, ops};

static LINEAR_CROSS_ENTROPY: Signature = Signature::new(
    "linear_cross_entropy",
    "x: F[.. d!], w: F[v! d!], labels: I[..] -> max: A[..], sum_exp: A[..], label_logit: A[..]",
    2,
);
static GRAD_INPUT: Signature = Signature::new(
    "linear_cross_entropy_grad_input",
    "x: F[.. d!], w: F[v d!], labels: I[..], lse: A[..], dloss: A[..] -> dx: F[.. d]",
    4,
)
.linear_in(&["dloss"]);
static GRAD_WEIGHT_INTO: Signature = Signature::new(
    "linear_cross_entropy_grad_weight_into",
    "x: F[.. d!], w: F[v d!], labels: I[..], lse: A[..], dloss: A[..], dw: A[v d] -> dw: A[v d]",
    4,
)
.linear_in(&["dloss"]);
static GRAD_BOTH_INTO: Signature = Signature::new(
    "linear_cross_entropy_grad_both_into",
    "x: F[.. d!], w: F[v d!], labels: I[..], lse: A[..], dloss: A[..], dw: A[v d] \
     -> dx: F[.. d], dw: A[v d]",
    6,
)
.linear_in(&["dloss"]);
static CROSS_ENTROPY_SUM: Signature = Signature::new(
    "cross_entropy_sum",
    "lse: F[..], label_logit: F[..], labels: I[..] -> loss: F[], count: F[]",
    2,
);

pub(super) static SIGNATURES: &[&Signature] =
    &[&LINEAR_CROSS_ENTROPY, &GRAD_INPUT, &GRAD_WEIGHT_INTO, &GRAD_BOTH_INTO, &CROSS_ENTROPY_SUM];

/// Statistics of the logits x w^T of this shard, per row: the maximum, the sum of e^(logit - max),
/// and the logit of the label (0 if the label is in another shard or ignored). Returns (max,
/// sum_exp, label_logit).
///
/// Logits are f32 (f64 for f64). Only one tile is stored at a time: 512 rows by 2048 classes (4
/// MiB) on the CPU, 4096 by 4096 (64 MiB) on a GPU.
///
/// # Shapes
/// `x` [.., D], `w` [V, D] of one float dtype, labels [..]; returns three [..] in the accumulator
/// dtype. For V = 0, max is minus infinity and sum_exp 0.
///
/// # Errors
/// For a label that is neither a class of the vocabulary nor ignored (a GPU treats it as another
/// shard's, and reports it at the next synchronization); when the shard exceeds the vocabulary.
pub fn linear_cross_entropy(
    x: &Tensor,
    w: &Tensor,
    targets: Targets<'_>,
) -> Result<(Tensor, Tensor, Tensor)> {
    let mut call = LINEAR_CROSS_ENTROPY.call(&[x, w, targets.labels])?;
    check_shard(&call, w, targets)?;
    let (x, w) = (ops::contiguous(x)?, ops::contiguous(w)?);
    let labels = label_list(targets.labels)?;
    let [mut max, mut sum_exp, mut label_logit] =
        [call.output(0)?, call.output(1)?, call.output(2)?];
    if call.device().is_gpu() {
        let out = [&max, &sum_exp, &label_logit];
        call.launch(|gpu| launch::statistics(gpu, &call, [&x, &w, &labels], targets, out))?;
        return Ok((max.finish(), sum_exp.finish(), label_logit.finish()));
    }
    let tiles = tiles_of(&call);
    let mut logits = call.workspace(tiles.elements(), x.dtype().accumulator())?;

    call.compute(|| {
        let labels = Labels::new(call.name(), &labels, targets)?;
        for_float!(x.dtype(), T => {
            let out = [max.slice()?, sum_exp.slice()?, label_logit.slice()?];
            kernels::statistics::<T>(&x, &w, &labels, &tiles, logits.slice()?, out)
        })
    })?;
    Ok((max.finish(), sum_exp.finish(), label_logit.finish()))
}

/// The gradient of a loss with respect to `x`, through this shard's logits: (softmax -
/// onehot(label)) dloss w, with softmax = e^(logit - lse), and zero for ignored rows. Logits are
/// recomputed tile by tile. For bf16, the gradient of the logits is rounded to bf16, and matrix
/// products accumulate in f32.
///
/// # Shapes
/// `x` [.., D], `w` [V, D], labels [..], `lse` and `dloss` (the gradient of each row's loss) [..]
/// in the accumulator dtype; returns `x`'s shape and dtype.
///
/// # Errors
/// As [`linear_cross_entropy`].
pub fn linear_cross_entropy_grad_input(
    x: &Tensor,
    w: &Tensor,
    targets: Targets<'_>,
    lse: &Tensor,
    dloss: &Tensor,
) -> Result<Tensor> {
    let mut call = GRAD_INPUT.call(&[x, w, targets.labels, lse, dloss])?;
    let mut dx = call.output(0)?;
    gradients(&call, [x, w, lse, dloss], targets, Some(&mut dx), None)?;
    Ok(dx.finish())
}

/// dw += sum over rows of (softmax - onehot(label)) dloss x: the gradient of a loss with respect to
/// `w`.
///
/// # Shapes
/// As [`linear_cross_entropy_grad_input`]; `dw` [V, D] of any float dtype.
///
/// # Errors
/// As [`linear_cross_entropy`]; while `dw` is in use.
pub fn linear_cross_entropy_grad_weight_into(
    x: &Tensor,
    w: &Tensor,
    targets: Targets<'_>,
    lse: &Tensor,
    dloss: &Tensor,
    dw: &mut Accumulator,
) -> Result<()> {
    summed_in(lse.dtype(), dw, |dw| {
        let call = dw.call(&GRAD_WEIGHT_INTO, &[x, w, targets.labels, lse, dloss])?;
        gradients(&call, [x, w, lse, dloss], targets, None, Some(dw))
    })
}

/// Computes both gradients, and recomputes the logits only once. The results equal those of
/// [`linear_cross_entropy_grad_input`] and [`linear_cross_entropy_grad_weight_into`] bit for bit.
///
/// # Shapes
/// As for those ops.
///
/// # Errors
/// As for those ops.
pub fn linear_cross_entropy_grad_both_into(
    x: &Tensor,
    w: &Tensor,
    targets: Targets<'_>,
    lse: &Tensor,
    dloss: &Tensor,
    dw: &mut Accumulator,
) -> Result<Tensor> {
    let mut made = None;
    summed_in(lse.dtype(), dw, |dw| {
        let mut call = dw.call(&GRAD_BOTH_INTO, &[x, w, targets.labels, lse, dloss])?;
        let dx = made.insert(call.output(0)?);
        gradients(&call, [x, w, lse, dloss], targets, Some(dx), Some(dw))
    })?;
    // `summed_in` either called the closure or returned its error.
    Ok(made.map_or_else(|| unreachable!(), UninitTensor::finish))
}

/// The sum of lse - label_logit over the rows that are not ignored, and the number of these rows.
/// Returns (loss, count).
///
/// The sum is accumulated in f64, in row order, and rounded once.
///
/// # Shapes
/// `lse` and `label_logit` [..] of one float dtype, `labels` [..]; returns two scalars of that
/// dtype.
pub fn cross_entropy_sum(
    lse: &Tensor,
    label_logit: &Tensor,
    labels: &Tensor,
    ignore_index: i64,
) -> Result<(Tensor, Tensor)> {
    let mut call = CROSS_ENTROPY_SUM.call(&[lse, label_logit, labels])?;
    let (lse, label_logit) = (ops::contiguous(lse)?, ops::contiguous(label_logit)?);
    let labels = label_list(labels)?;
    let (mut loss, mut count) = (call.output(0)?, call.output(1)?);
    match call.device().is_gpu() {
        true => call.launch(|gpu| {
            let operands = [&lse, &label_logit, &labels];
            launch::sum(gpu, operands, ignore_index, [&loss, &count])
        }),
        false => call.compute(|| {
            for_float!(lse.dtype(), T => {
                let (sum, counted) =
                    kernels::row_losses::<T>(&lse, &label_logit, &labels, ignore_index)?;
                loss.slice()?[0] = sum;
                count.slice()?[0] = counted;
                Ok(())
            })
        }),
    }?;
    Ok((loss.finish(), count.finish()))
}

fn gradients(
    call: &Call,
    [x, w, lse, dloss]: [&Tensor; 4],
    targets: Targets<'_>,
    mut dx: Option<&mut UninitTensor>,
    dw: Option<&mut Accumulator>,
) -> Result<()> {
    check_shard(call, w, targets)?;
    let (x, w) = (ops::contiguous(x)?, ops::contiguous(w)?);
    let (lse, dloss) = (ops::contiguous(lse)?, ops::contiguous(dloss)?);
    let labels = label_list(targets.labels)?;
    let range = dw.as_ref().map(|dw| dw.buffer().contiguous_range(call.name())).transpose()?;
    if call.device().is_gpu() {
        let gradients =
            launch::Gradients { x: &x, w: &w, labels: &labels, lse: &lse, dloss: &dloss, targets };
        let into = dw.as_ref().map(|dw| (dw.buffer(), dw.is_empty()));
        call.launch(|gpu| gradients.launch(gpu, call, dx.as_deref(), into))?;
        return dw.map_or(Ok(()), |dw| dw.filled_by(call));
    }

    let tiles = tiles_of(call);
    let mut logits = call.workspace(tiles.elements(), lse.dtype())?;
    let mut dlogits = call.workspace(tiles.elements(), x.dtype())?;
    let mut dx_sums = match &dx {
        Some(_) => Some(call.workspace(tiles.rows() * call.extent("d"), lse.dtype())?),
        None => None,
    };

    call.compute(|| {
        let labels = Labels::new(call.name(), &labels, targets)?;
        for_float!(x.dtype(), T => {
            let mut written = match &dw {
                Some(dw) => Some(dw.buffer().write(call.name())?),
                None => None,
            };
            let empty = dw.as_ref().is_some_and(|dw| dw.is_empty());
            let gradient = Gradient::<T> {
                operands: [&x, &w, &lse, &dloss],
                labels: &labels,
                tiles: &tiles,
                logits: logits.slice()?,
                dlogits: dlogits.slice()?,
            };
            let dx = match (&mut dx, &mut dx_sums) {
                (Some(dx), Some(sums)) => Some((dx.slice()?, sums.slice()?)),
                _ => None,
            };
            let dw = written.as_mut().zip(range).map(|(dw, range)| (&mut dw[range], empty));
            gradient.compute(dx, dw)
        })
    })?;
    dw.map_or(Ok(()), |dw| dw.filled_by(call))
}

/// Contiguous labels, converted to i64 on the CPU. GPU kernels read any index dtype.
fn label_list(labels: &Tensor) -> Result<Tensor> {
    match labels.device().is_gpu() {
        true => ops::contiguous(labels),
        false => index_list(labels),
    }
}

fn tiles_of(call: &Call) -> Tiles {
    Tiles { rows: call.rows(), classes: call.extent("v"), features: call.extent("d") }
}

/// Checks that the classes of `w` are in the vocabulary and, if `w` is sharded, fit its sharding.
fn check_shard(call: &Call, w: &Tensor, targets: Targets<'_>) -> Result<()> {
    if w.tag().is_some() {
        let own = w.sharded_shape().indices(call.name(), 0)?;
        let (start, total) = (own.first, own.total);
        // An empty shard has no first class.
        let is_own = targets.vocab_start == start || w.shape()[0] == 0;
        if !is_own || targets.vocab_total != total {
            bail!(
                Invalid,
                "{}: vocab_start = {} and vocab_total = {}, but the sharding of `w` gives {start} \
                 and {total}",
                call.name(),
                targets.vocab_start,
                targets.vocab_total
            );
        }
    }
    let (start, classes) = (targets.vocab_start, call.extent("v"));
    let total = targets.vocab_total;
    if start.checked_add(classes).is_some_and(|end| end <= total) {
        return Ok(());
    }
    bail!(
        Invalid,
        "{}: w has {classes} classes from vocab_start = {start} on, which exceeds vocab_total = \
         {total}",
        call.name()
    )
}
