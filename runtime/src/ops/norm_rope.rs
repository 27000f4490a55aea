//! RMS norm of each head followed by rotary position embedding, in one pass, for the queries and
//! keys of attention.
//!
//! Legend: B batch, T positions, N heads, D features per head, H rotated pairs of features (2 H <=
//! D).

use super::rope::{check_pairs, for_each_sequence};
use super::{dense_last, summed_in};
use crate::core::arguments::rope::{Angles, RopeStyle};
use crate::cpu::column_sums::rows_per_partial;
use crate::cpu::norm_rope as kernels;
use crate::launch::norm_rope as launch;
use crate::{Accumulator, Result, Signature, Tensor, for_float, ops};

static RMS_NORM_ROPE: Signature = Signature::new(
    "rms_norm_rope",
    "x: F[b t n d!], w: F[d!], cos: f32[b t h!], sin: f32[b t h!] -> \
     y: F[b t n d], inv_rms: A[b t n]",
    0,
);
static RMS_NORM_ROPE_GRAD_INPUT: Signature = Signature::new(
    "rms_norm_rope_grad_input",
    "dy: F[b t n d!], x: F[b t n d!], w: F[d!], inv_rms: A[b t n], \
     cos: f32[b t h!], sin: f32[b t h!] -> dx: F[b t n d]",
    0,
)
.linear_in(&["dy", "w"]);
static RMS_NORM_ROPE_GRAD_WEIGHT_INTO: Signature = Signature::new(
    "rms_norm_rope_grad_weight_into",
    "dy: F[b t n d!], x: F[b t n d!], inv_rms: A[b t n], \
     cos: f32[b t h!], sin: f32[b t h!], dw: A[d!] -> dw: A[d]",
    0,
)
.linear_in(&["dy"]);

pub(super) static SIGNATURES: &[&Signature] =
    &[&RMS_NORM_ROPE, &RMS_NORM_ROPE_GRAD_INPUT, &RMS_NORM_ROPE_GRAD_WEIGHT_INTO];

/// [`rope`](crate::ops::rope) of [`rms_norm`](crate::ops::rms_norm) over the features of each head;
/// returns (y, inv_rms). Computed in f32 (f64 for f64) and rounded once.
///
/// # Shapes
/// `x` [B, T, N, D], `w` \[D\], of one float dtype; `cos` and `sin` [B, T, H], or [T, H] for all
/// sequences, f32; returns `y` as `x`, `inv_rms` [B, T, N] in the accumulator dtype.
///
/// # Errors
/// When 2 H > D.
pub fn rms_norm_rope(
    x: &Tensor,
    w: &Tensor,
    cos: &Tensor,
    sin: &Tensor,
    style: RopeStyle,
    eps: f64,
) -> Result<(Tensor, Tensor)> {
    let (cos, sin) = (for_each_sequence(x, cos)?, for_each_sequence(x, sin)?);
    let mut call = RMS_NORM_ROPE.call(&[x, w, &cos, &sin])?.with_flops(7 * x.elements() as u64);
    check_pairs(&RMS_NORM_ROPE, &call, &[x, w, &cos, &sin])?;

    let (x, w) = (dense_last(x)?, ops::contiguous(w)?);
    let (cos, sin) = (dense_last(&cos)?, dense_last(&sin)?);
    let (mut y, mut inv_rms) = (call.output(0)?, call.output(1)?);
    let angles = angles([&cos, &sin], call.extent("n"), style);
    match call.device().is_gpu() {
        true => call.launch(|gpu| launch::norm_rope(gpu, [&x, &w], &angles, eps, [&y, &inv_rms])),
        false => call.compute(|| {
            for_float!(x.dtype(), T => {
                let (y, inv_rms) = (y.slice()?, inv_rms.slice()?);
                kernels::norm_rope::<T>([&x, &w], &angles, eps, y, inv_rms)
            })
        }),
    }?;
    Ok((y.finish(), inv_rms.finish()))
}

/// The gradient of [`rms_norm_rope`] with respect to `x`.
///
/// # Shapes
/// `dy` and `x` [B, T, N, D], `w` \[D\], `inv_rms` [B, T, N] and tables as in [`rms_norm_rope`];
/// returns `x`'s shape and dtype.
///
/// # Errors
/// As [`rms_norm_rope`].
pub fn rms_norm_rope_grad_input(
    dy: &Tensor,
    x: &Tensor,
    w: &Tensor,
    inv_rms: &Tensor,
    cos: &Tensor,
    sin: &Tensor,
    style: RopeStyle,
) -> Result<Tensor> {
    let (cos, sin) = (for_each_sequence(x, cos)?, for_each_sequence(x, sin)?);
    let operands = [dy, x, w, inv_rms, &cos, &sin];
    let mut call = RMS_NORM_ROPE_GRAD_INPUT.call(&operands)?.with_flops(11 * x.elements() as u64);
    check_pairs(&RMS_NORM_ROPE_GRAD_INPUT, &call, &operands)?;

    let (dy, x) = (dense_last(dy)?, dense_last(x)?);
    let (w, inv_rms) = (ops::contiguous(w)?, ops::contiguous(inv_rms)?);
    let (cos, sin) = (dense_last(&cos)?, dense_last(&sin)?);
    let mut dx = call.output(0)?;
    let angles = angles([&cos, &sin], call.extent("n"), style);
    let operands = [&dy, &x, &w, &inv_rms];
    match call.device().is_gpu() {
        true => call.launch(|gpu| launch::norm_rope_grad_input(gpu, operands, &angles, &dx)),
        false => call.compute(|| {
            for_float!(x.dtype(), T => {
                kernels::norm_rope_grad_input::<T>(operands, &angles, dx.slice()?)
            })
        }),
    }?;
    Ok(dx.finish())
}

/// dw += the gradient of [`rms_norm_rope`] with respect to `w`.
///
/// Blocks of heads are summed separately and then added in order. The blocks depend only on the
/// shape, so the bits are the same in every run.
///
/// # Shapes
/// As [`rms_norm_rope_grad_input`]; `dw` \[D\] of any float dtype.
///
/// # Errors
/// As [`rms_norm_rope`]; while `dw` is in use.
pub fn rms_norm_rope_grad_weight_into(
    dy: &Tensor,
    x: &Tensor,
    inv_rms: &Tensor,
    cos: &Tensor,
    sin: &Tensor,
    style: RopeStyle,
    dw: &mut Accumulator,
) -> Result<()> {
    let (cos, sin) = (for_each_sequence(x, cos)?, for_each_sequence(x, sin)?);
    summed_in(inv_rms.dtype(), dw, |dw| {
        let operands = [dy, x, inv_rms, &cos, &sin, dw.buffer()];
        let call = dw
            .call(&RMS_NORM_ROPE_GRAD_WEIGHT_INTO, &operands[..5])?
            .with_flops(6 * x.elements() as u64);
        check_pairs(&RMS_NORM_ROPE_GRAD_WEIGHT_INTO, &call, &operands)?;

        let (dy, x, inv_rms) = (dense_last(dy)?, dense_last(x)?, ops::contiguous(inv_rms)?);
        let (cos, sin) = (dense_last(&cos)?, dense_last(&sin)?);
        let range = dw.buffer().contiguous_range(call.name())?;
        let angles = angles([&cos, &sin], call.extent("n"), style);

        let (columns, empty) = (call.extent("d"), dw.is_empty());
        let operands = [&dy, &x, &inv_rms];
        if call.device().is_gpu() {
            call.launch(|gpu| {
                let plan = gpu.planned(launch::GradWeight::plan([&dy, &x], &angles, empty))?;
                let (elements, dtype) = plan.workspace();
                let partials = call.workspace(elements, dtype)?;
                launch::norm_rope_grad_weight(gpu, &plan, operands, &angles, &partials, dw.buffer())
            })?;
        } else {
            let partials = inv_rms.elements().div_ceil(rows_per_partial(columns));
            let mut partials = call.workspace(partials * columns, inv_rms.dtype())?;
            call.compute(|| {
                for_float!(x.dtype(), T => {
                    let mut to = dw.buffer().write(call.name())?;
                    let (partials, to) = (partials.slice()?, &mut to[range]);
                    kernels::norm_rope_grad_weight::<T>(operands, &angles, partials, to, empty)
                })
            })?;
        }
        dw.filled_by(&call)
    })
}

fn angles<'a>([cos, sin]: [&'a Tensor; 2], heads: usize, style: RopeStyle) -> Angles<'a> {
    Angles { cos, sin, heads, style }
}
