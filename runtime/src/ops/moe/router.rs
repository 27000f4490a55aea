//! Routing: selects the experts of each token.

use meshgrad_error::bail;

use crate::cpu::moe as kernels;
use crate::cpu::rows::Flat;
use crate::launch::moe as launch;
use crate::ops::contiguous;
use crate::{Result, Signature, Tensor, for_float};

pub(super) static ROUTER_TOP_K: Signature = Signature::new(
    "router_top_k",
    "probabilities: F[n e!] -> weights: F[n k], indices: i32[n k]",
    1,
);
pub(super) static ROUTER_TOP_K_BIASED: Signature = Signature::new(
    "router_top_k_biased",
    "probabilities: F[n e!], bias: A[e!] -> weights: F[n k], indices: i32[n k]",
    1,
);
pub(super) static ROUTER_TOP_K_GRAD: Signature = Signature::new(
    "router_top_k_grad",
    "probabilities: F[n e!], indices: i32[n k!], dweights: F[n k!] -> dprobabilities: F[n e!]",
    0,
)
.linear_in(&["dweights"]);

/// The weights and indices of the `k` most probable experts of each token, in descending order. A
/// weight is the expert's probability, divided by the sum over the `k` experts if `renormalize`
/// (Qwen3-MoE's `norm_topk_prob`). Ties go to the lower index; NaN sorts first.
///
/// If a `bias` is given, experts are selected by probability + bias, but the bias does not change
/// the weights. It balances the load without an auxiliary loss (DeepSeek-V3, section 2.1.2).
///
/// # Shapes
/// `probabilities` [N, E] float (softmax or sigmoid of the router's logits), `bias` \[E\] f32 (f64
/// for f64); returns weights [N, K] of the same float and indices [N, K] i32.
///
/// # Errors
/// Unless 1 <= `k` <= E.
pub fn router_top_k(
    probabilities: &Tensor,
    k: usize,
    renormalize: bool,
    bias: Option<&Tensor>,
) -> Result<(Tensor, Tensor)> {
    let mut call = match bias {
        None => ROUTER_TOP_K.call(&[probabilities])?,
        Some(bias) => ROUTER_TOP_K_BIASED.call(&[probabilities, bias])?,
    };
    let experts = call.extent("e");
    if k == 0 || k > experts {
        bail!(Invalid, "{}: k = {k} is not in 1..={experts}, the number of experts", call.name());
    }

    call.set_extent("k", k);
    let (mut weights, mut indices) = (call.output(0)?, call.output(1)?);
    let probabilities = contiguous(probabilities)?;
    let bias = bias.map(contiguous).transpose()?;
    match call.device().is_gpu() {
        true => call.launch(|gpu| {
            let results = [&weights, &indices];
            launch::router_top_k(gpu, &probabilities, bias.as_ref(), renormalize, results)
        }),
        false => call.compute(|| {
            for_float!(probabilities.dtype(), T => {
                let bias = bias.as_ref().map(Flat::new).transpose()?;
                kernels::router_top_k::<T>(
                    &Flat::new(&probabilities)?,
                    bias.as_deref(),
                    experts,
                    k,
                    renormalize,
                    weights.slice()?,
                    indices.slice()?,
                );
                Ok(())
            })
        }),
    }?;
    Ok((weights.finish(), indices.finish()))
}

/// The gradient of the weights of [`router_top_k`] with respect to the probabilities. The selection
/// of experts has no gradient.
///
/// # Shapes
/// `probabilities` [N, E], `indices` [N, K] as [`router_top_k`] returned them, `dweights` [N, K];
/// returns [N, E].
///
/// # Errors
/// When an index is out of range.
pub fn router_top_k_grad(
    probabilities: &Tensor,
    indices: &Tensor,
    dweights: &Tensor,
    renormalize: bool,
) -> Result<Tensor> {
    let call = ROUTER_TOP_K_GRAD.call(&[probabilities, indices, dweights])?;
    let (experts, k) = (call.extent("e"), call.extent("k"));
    let mut call = call.with_flops(4 * dweights.elements() as u64);
    let mut dprobabilities = call.output(0)?;

    let (probabilities, dweights) = (contiguous(probabilities)?, contiguous(dweights)?);
    let indices = contiguous(indices)?;
    match call.device().is_gpu() {
        true => call.launch(|gpu| {
            let operands = [&probabilities, &indices, &dweights];
            launch::router_top_k_grad(gpu, operands, renormalize, &dprobabilities)
        }),
        false => call.compute(|| {
            for_float!(probabilities.dtype(), T => {
                let indices = Flat::<i32>::new(&indices)?;
                kernels::check_indices(call.name(), &indices, experts, false)?;
                kernels::router_top_k_grad::<T>(
                    &Flat::new(&probabilities)?,
                    &indices,
                    &Flat::new(&dweights)?,
                    experts,
                    k,
                    renormalize,
                    dprobabilities.slice()?,
                );
                Ok(())
            })
        }),
    }?;
    Ok(dprobabilities.finish())
}
