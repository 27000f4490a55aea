//! Mixture-of-experts layers: choosing experts, sorting tokens by expert, moving rows to the
//! experts and back.
//!
//! Legend: N tokens, E experts, K of them for each token, H features, C = N K rows: as many as
//! there can be.
//!
//! How many tokens an expert gets is known on the device alone. So the sorted rows live in a buffer
//! of C rows, cut by offsets in a tensor: expert g owns the rows `offsets[g]..offsets[g + 1]`. A
//! rank that holds some of the experts uses fewer than C rows. Rows beyond the last offset mean
//! nothing and no op here reads them; on the CPU they are zero.

use crate::cpu::moe as kernels;
use crate::cpu::rows::Flat;
use crate::ops::{cast, contiguous};
use crate::{Call, DType, Error, Number, Result, Signature, Tensor, for_float, for_index};

static ROUTER_TOP_K: Signature = Signature::new(
    "router_top_k",
    "probabilities: F[n e!] -> weights: F[n k], indices: i32[n k]",
    1,
);
static ROUTER_TOP_K_BIASED: Signature = Signature::new(
    "router_top_k_biased",
    "probabilities: F[n e!], bias: A[e!] -> weights: F[n k], indices: i32[n k]",
    1,
);
static ROUTER_TOP_K_GRAD: Signature = Signature::new(
    "router_top_k_grad",
    "probabilities: F[n e!], indices: i32[n k!], dweights: F[n k!] -> dprobabilities: F[n e!]",
    0,
)
.linear_in(&["dweights"]);
static EXPERT_ORDER: Signature = Signature::new(
    "expert_order",
    "indices: I[n! k!] -> offsets: i64[g], order: i32[c], place: i32[n k]",
    0,
);
static EXPERT_COUNTS: Signature =
    Signature::new("expert_counts", "offsets: i64[g!] -> counts: f32[e]", 0);
static PERMUTE: Signature = Signature::new(
    "permute_tokens",
    "x: F[n! h], order: i32[c!], offsets: i64[g!] -> y: F[c h]",
    0,
)
.linear_in(&["x"]);
static PERMUTE_GRAD: Signature = Signature::new(
    "permute_tokens_grad",
    "dy: F[c! h], place: i32[n k] -> dx: F[n h]",
    0,
)
.linear_in(&["dy"]);
static UNPERMUTE: Signature = Signature::new(
    "unpermute_tokens",
    "y: F[c! h], weights: G[n k], place: i32[n k] -> out: F[n h]",
    0,
)
.linear_in(&["y", "weights"]);
static UNPERMUTE_GRAD_INPUT: Signature = Signature::new(
    "unpermute_tokens_grad_input",
    "dout: F[n! h], weights: G[n! k!], order: i32[c!], offsets: i64[g!] -> dy: F[c h]",
    0,
)
.linear_in(&["dout", "weights"]);
static UNPERMUTE_GRAD_WEIGHTS: Signature = Signature::new(
    "unpermute_tokens_grad_weights",
    "dout: F[n h], y: F[c! h], place: i32[n k] -> dweights: A[n k]",
    0,
)
.linear_in(&["dout", "y"]);

pub(super) static SIGNATURES: &[&Signature] = &[
    &ROUTER_TOP_K,
    &ROUTER_TOP_K_BIASED,
    &ROUTER_TOP_K_GRAD,
    &EXPERT_ORDER,
    &EXPERT_COUNTS,
    &PERMUTE,
    &PERMUTE_GRAD,
    &UNPERMUTE,
    &UNPERMUTE_GRAD_INPUT,
    &UNPERMUTE_GRAD_WEIGHTS,
];

/// The `k` most probable experts of each token, in descending order, and their weights: their
/// probabilities, divided by their sum if `renormalise` (Qwen3-MoE's `norm_topk_prob`). Equals go
/// to the lower index; NaN ranks first.
///
/// `bias` is added for the choice alone and never reaches the weights: it balances the load without
/// a loss (DeepSeek-V3, section 2.1.2).
///
/// # Shapes
/// `probabilities` [N, E] float (softmax or sigmoid of the router's logits), `bias` \[E\] f32 (f64
/// for f64); returns weights [N, K] of the same float and indices [N, K] i32.
///
/// # Errors
/// [`Error::Signature`]; [`Error::Argument`] unless 1 <= `k` <= E.
pub fn router_top_k(
    probabilities: &Tensor,
    k: usize,
    renormalise: bool,
    bias: Option<&Tensor>,
) -> Result<(Tensor, Tensor)> {
    let mut call = match bias {
        None => ROUTER_TOP_K.call(&[probabilities])?,
        Some(bias) => ROUTER_TOP_K_BIASED.call(&[probabilities, bias])?,
    };
    let experts = call.extent("e");
    if k == 0 || k > experts {
        let problem = format!("cannot choose k = {k} of {experts} experts; k is at least 1");
        return Err(Error::Argument {
            op: call.name(),
            problem,
        });
    }

    call.set_extent("k", k);
    let (mut weights, mut indices) = (call.output(0)?, call.output(1)?);
    let probabilities = contiguous(probabilities)?;
    let bias = bias.map(contiguous).transpose()?;
    call.compute(|| {
        for_float!(probabilities.dtype(), T => {
            let bias = bias.as_ref().map(Flat::new).transpose()?;
            kernels::router_top_k::<T>(
                &Flat::new(&probabilities)?,
                bias.as_deref(),
                experts,
                k,
                renormalise,
                weights.slice()?,
                indices.slice()?,
            );
            Ok(())
        })
    })?;
    Ok((weights.finish(), indices.finish()))
}

/// The gradient of [`router_top_k`]'s weights with respect to the probabilities. The choice has
/// none.
///
/// # Shapes
/// `probabilities` [N, E], `indices` [N, K] as chosen, `dweights` [N, K]; returns [N, E].
///
/// # Errors
/// [`Error::Signature`]; [`Error::IndexOutOfRange`].
pub fn router_top_k_grad(
    probabilities: &Tensor,
    indices: &Tensor,
    dweights: &Tensor,
    renormalise: bool,
) -> Result<Tensor> {
    let call = ROUTER_TOP_K_GRAD.call(&[probabilities, indices, dweights])?;
    let (experts, k) = (call.extent("e"), call.extent("k"));
    let mut call = call.with_flops(4 * dweights.elements() as u64);
    let mut dprobabilities = call.output(0)?;

    let (probabilities, dweights) = (contiguous(probabilities)?, contiguous(dweights)?);
    let indices = contiguous(indices)?;
    call.compute(|| {
        for_float!(probabilities.dtype(), T => {
            let indices = Flat::<i32>::new(&indices)?;
            kernels::check_indices(call.name(), &indices, experts, false)?;
            kernels::router_top_k_grad::<T>(
                &Flat::new(&probabilities)?,
                &indices,
                &Flat::new(&dweights)?,
                experts,
                k,
                renormalise,
                dprobabilities.slice()?,
            );
            Ok(())
        })
    })?;
    Ok(dprobabilities.finish())
}

/// Where each (token, choice) goes when they are sorted by expert. A *slot* is the
/// number token * K + choice.
#[derive(Clone, Debug)]
pub struct ExpertOrder {
    /// [held + 1] i64: held expert g owns the rows `offsets[g]..offsets[g + 1]`.
    pub offsets: Tensor,
    /// \[C\] i32: the slot that lies in each row below the last offset; -1 in the others.
    pub order: Tensor,
    /// [N, K] i32: the row of each slot; -1 where its expert is not held.
    pub place: Tensor,
}

/// Sorts the slots by expert, those of one expert in their own order. Of the `experts` experts,
/// `held` of them from `first_expert` on are held here; slots of others get no row.
///
/// # Shapes
/// `indices` [N, K] of an index dtype, each in 0..`experts`.
///
/// # Errors
/// [`Error::Signature`]; [`Error::IndexOutOfRange`]; [`Error::Argument`] when the held experts are
/// not among the experts, or there are more slots than an i32 counts.
pub fn expert_order(
    indices: &Tensor,
    experts: usize,
    first_expert: usize,
    held: usize,
) -> Result<ExpertOrder> {
    let mut call = EXPERT_ORDER.call(&[indices])?;
    let refuse = |problem| {
        Err(Error::Argument {
            op: EXPERT_ORDER.name(),
            problem,
        })
    };
    if first_expert
        .checked_add(held)
        .is_none_or(|end| end > experts)
    {
        return refuse(format!(
            "{held} experts from {first_expert} on are not among {experts} experts"
        ));
    }
    if indices.elements() > i32::MAX as usize {
        return refuse(format!(
            "{:?} has more elements than an i32 counts",
            indices.shape()
        ));
    }

    call.set_extent("g", held + 1);
    call.set_extent("c", indices.elements());
    let (mut offsets, mut order) = (call.output(0)?, call.output(1)?);
    let mut place = call.output(2)?;
    let indices = contiguous(indices)?;
    call.compute(|| {
        for_index!(indices.dtype(), I => {
            let indices = Flat::<I>::new(&indices)?;
            kernels::check_indices(call.name(), &indices, experts, false)?;
            let (offsets, order) = (offsets.slice()?, order.slice()?);
            kernels::expert_order(&indices, first_expert, offsets, order, place.slice()?);
            Ok(())
        })
    })?;
    let (offsets, order) = (offsets.finish(), order.finish());
    Ok(ExpertOrder {
        offsets,
        order,
        place: place.finish(),
    })
}

/// How many rows each held expert has: statistics of the load, in the dtype that statistics are
/// kept in.
///
/// # Shapes
/// `offsets` [held + 1] i64; returns \[held\] f32, exact up to 2^24.
///
/// # Errors
/// [`Error::Signature`]; [`Error::Argument`] without any offset.
pub fn expert_counts(offsets: &Tensor) -> Result<Tensor> {
    let mut call = EXPERT_COUNTS.call(&[offsets])?;
    let Some(held) = offsets.elements().checked_sub(1) else {
        let problem = "there is one offset more than there are experts, so at least one".into();
        return Err(Error::Argument {
            op: call.name(),
            problem,
        });
    };

    call.set_extent("e", held);
    let mut counts = call.output(0)?;
    let offsets = contiguous(offsets)?;
    call.compute(|| {
        let offsets = Flat::<i64>::new(&offsets)?;
        for (count, ends) in counts.slice::<f32>()?.iter_mut().zip(offsets.windows(2)) {
            *count = (ends[1] - ends[0]) as f32;
        }
        Ok(())
    })?;
    Ok(counts.finish())
}

/// Brings each token to its experts: row r of the result is `x[order[r] / K]`.
///
/// # Shapes
/// `x` [N, H], `order` \[C\] and `offsets` of an [`ExpertOrder`] with C = N K; returns [C, H]. Rows
/// beyond the last offset are unspecified.
///
/// # Errors
/// [`Error::Signature`]; [`Error::IndexOutOfRange`]; [`Error::Argument`] for offsets that fall or
/// leave the rows.
pub fn permute_tokens(x: &Tensor, order: &Tensor, offsets: &Tensor) -> Result<Tensor> {
    let operands = [x, order, offsets];
    let mut call = PERMUTE.call(&operands)?;
    let top_k = slots_a_token(&PERMUTE, &operands, call.extent("c"), call.extent("n"))?;
    let width = call.extent("h");
    let mut y = call.output(0)?;

    let (x, rows) = (contiguous(x)?, Rows::new(order, offsets)?);
    call.compute(|| {
        rows.read(&call, |order| {
            for_float!(x.dtype(), T => {
                kernels::permute_tokens::<T>(&Flat::new(&x)?, width, top_k, order, y.slice()?);
                Ok(())
            })
        })
    })?;
    Ok(y.finish())
}

/// The gradient of [`permute_tokens`]: each token sums the rows that its slots went to, in their
/// order.
///
/// # Shapes
/// `dy` [C, H], `place` [N, K]; returns [N, H].
///
/// # Errors
/// [`Error::Signature`]; [`Error::IndexOutOfRange`].
pub fn permute_tokens_grad(dy: &Tensor, place: &Tensor) -> Result<Tensor> {
    let call = PERMUTE_GRAD.call(&[dy, place])?;
    let (width, top_k) = (call.extent("h"), call.extent("k"));
    let mut call = call.with_flops((place.elements() * width) as u64);
    let mut dx = call.output(0)?;

    let (dy, place) = (contiguous(dy)?, contiguous(place)?);
    call.compute(|| {
        let place = checked_places(&call, &place)?;
        for_float!(dy.dtype(), T => {
            let dy = Flat::<T>::new(&dy)?;
            kernels::collect::<T>(&dy, width, top_k, &place, |_| Number::ONE, dx.slice()?);
            Ok(())
        })
    })?;
    Ok(dx.finish())
}

/// Brings the experts' results back: each token is the sum of the rows that its slots went to,
/// weighed, in their order, summed in f32 (f64 for f64) and rounded once. Slots whose expert is not
/// held count as zero.
///
/// # Shapes
/// `y` [C, H], `weights` [N, K] of any float dtype, `place` [N, K]; returns [N, H] of `y`'s dtype.
///
/// # Errors
/// [`Error::Signature`]; [`Error::IndexOutOfRange`].
pub fn unpermute_tokens(y: &Tensor, weights: &Tensor, place: &Tensor) -> Result<Tensor> {
    let call = UNPERMUTE.call(&[y, weights, place])?;
    let (width, top_k) = (call.extent("h"), call.extent("k"));
    let mut call = call.with_flops((2 * place.elements() * width) as u64);
    let mut out = call.output(0)?;

    let (y, place, weights) = (
        contiguous(y)?,
        contiguous(place)?,
        widened(weights, y.dtype())?,
    );
    call.compute(|| {
        let place = checked_places(&call, &place)?;
        for_float!(y.dtype(), T => {
            let (y, weights) = (Flat::<T>::new(&y)?, Flat::new(&weights)?);
            kernels::collect::<T>(&y, width, top_k, &place, |slot| weights[slot], out.slice()?);
            Ok(())
        })
    })?;
    Ok(out.finish())
}

/// The gradient of [`unpermute_tokens`] with respect to its rows: row r is `weights[order[r]] *
/// dout[order[r] / K]`.
///
/// # Shapes
/// `dout` [N, H], `weights` [N, K], `order` \[C\] and `offsets` of an [`ExpertOrder`]; returns [C,
/// H] of `dout`'s dtype. Rows beyond the last offset are unspecified.
///
/// # Errors
/// As [`permute_tokens`].
pub fn unpermute_tokens_grad_input(
    dout: &Tensor,
    weights: &Tensor,
    order: &Tensor,
    offsets: &Tensor,
) -> Result<Tensor> {
    let operands = [dout, weights, order, offsets];
    let call = UNPERMUTE_GRAD_INPUT.call(&operands)?;
    let (width, top_k) = (call.extent("h"), call.extent("k"));
    let capacity = call.extent("c");
    if weights.elements() != capacity {
        let problem = format!(
            "`order` needs {} elements, one a weight",
            weights.elements()
        );
        return Err(UNPERMUTE_GRAD_INPUT.error(&operands, problem));
    }

    let mut call = call.with_flops((capacity * width) as u64);
    let mut dy = call.output(0)?;
    let (dout, weights) = (contiguous(dout)?, widened(weights, dout.dtype())?);
    let rows = Rows::new(order, offsets)?;
    call.compute(|| {
        rows.read(&call, |order| {
            for_float!(dout.dtype(), T => {
                let (dout, weights) = (Flat::<T>::new(&dout)?, Flat::new(&weights)?);
                kernels::permute_tokens_weighted::<T>(&dout, &weights, width, top_k, order, dy.slice()?);
                Ok(())
            })
        })
    })?;
    Ok(dy.finish())
}

/// The gradient of [`unpermute_tokens`] with respect to its weights: of slot (n, k), the dot
/// product of `dout[n]` with the row that the slot went to; zero where the expert is not held.
///
/// # Shapes
/// `dout` [N, H], `y` [C, H], `place` [N, K]; returns [N, K] f32 (f64 for f64).
///
/// # Errors
/// [`Error::Signature`]; [`Error::IndexOutOfRange`].
pub fn unpermute_tokens_grad_weights(dout: &Tensor, y: &Tensor, place: &Tensor) -> Result<Tensor> {
    let call = UNPERMUTE_GRAD_WEIGHTS.call(&[dout, y, place])?;
    let (width, top_k) = (call.extent("h"), call.extent("k"));
    let mut call = call.with_flops((2 * place.elements() * width) as u64);
    let mut dweights = call.output(0)?;

    let (dout, y, place) = (contiguous(dout)?, contiguous(y)?, contiguous(place)?);
    call.compute(|| {
        let place = checked_places(&call, &place)?;
        for_float!(y.dtype(), T => {
            let (dout, y) = (Flat::<T>::new(&dout)?, Flat::new(&y)?);
            kernels::dots::<T>(&dout, &y, width, top_k, &place, dweights.slice()?);
            Ok(())
        })
    })?;
    Ok(dweights.finish())
}

/// K, from C = N K.
fn slots_a_token(
    signature: &Signature,
    operands: &[&Tensor],
    capacity: usize,
    tokens: usize,
) -> Result<usize> {
    if capacity.is_multiple_of(tokens) {
        return Ok(capacity.checked_div(tokens).unwrap_or(0));
    }
    let problem = format!("`order` needs a multiple of {tokens} elements, as many for each token");
    Err(signature.error(operands, problem))
}

/// Weights in the dtype that rows of `dtype` are summed in.
fn widened(weights: &Tensor, dtype: DType) -> Result<Tensor> {
    contiguous(&cast(weights, dtype.accumulator())?)
}

/// The places, checked against the rows (`c`) of the call.
fn checked_places<'a>(call: &Call, place: &'a Tensor) -> Result<Flat<'a, i32>> {
    let place = Flat::new(place)?;
    kernels::check_indices(call.name(), &place, call.extent("c"), true)?;
    Ok(place)
}

/// The slots of the rows that are in use.
struct Rows {
    order: Tensor,
    offsets: Tensor,
}

impl Rows {
    fn new(order: &Tensor, offsets: &Tensor) -> Result<Rows> {
        Ok(Rows {
            order: contiguous(order)?,
            offsets: contiguous(offsets)?,
        })
    }

    /// Calls `f` with the checked slots, from the first row to the last that is in use.
    fn read(&self, call: &Call, f: impl FnOnce(&[i32]) -> Result<()>) -> Result<()> {
        let order = Flat::<i32>::new(&self.order)?;
        let offsets = Flat::<i64>::new(&self.offsets)?;
        let used = kernels::check_offsets(call.name(), &offsets, order.len())?;

        let order = &order[..used];
        kernels::check_indices(call.name(), order, self.order.elements(), false)?;
        f(order)
    }
}

#[cfg(test)]
mod tests;
