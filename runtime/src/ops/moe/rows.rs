//! Permuting rows to the experts and back.

use meshgrad_error::bail;

use crate::cpu::moe as kernels;
use crate::cpu::rows::Flat;
use crate::launch::moe as launch;
use crate::ops::{cast, contiguous};
use crate::{Call, DType, Number, Result, Signature, Tensor, for_float};

pub(super) static PERMUTE: Signature = Signature::new(
    "permute_tokens",
    "x: F[n! h], order: i32[c!], offsets: i64[g!] -> y: F[c h]",
    0,
)
.linear_in(&["x"]);
pub(super) static PERMUTE_GRAD: Signature =
    Signature::new("permute_tokens_grad", "dy: F[c! h], row_of_slot: i32[n k] -> dx: F[n h]", 0)
        .linear_in(&["dy"]);
pub(super) static UNPERMUTE: Signature = Signature::new(
    "unpermute_tokens",
    "y: F[c! h], weights: G[n k], row_of_slot: i32[n k] -> out: F[n h]",
    0,
)
.linear_in(&["y", "weights"]);
pub(super) static UNPERMUTE_GRAD_INPUT: Signature = Signature::new(
    "unpermute_tokens_grad_input",
    "dout: F[n! h], weights: G[n! k!], order: i32[c!], offsets: i64[g!] -> dy: F[c h]",
    0,
)
.linear_in(&["dout", "weights"]);
pub(super) static UNPERMUTE_GRAD_WEIGHTS: Signature = Signature::new(
    "unpermute_tokens_grad_weights",
    "dout: F[n h], y: F[c! h], row_of_slot: i32[n k] -> dweights: A[n k]",
    0,
)
.linear_in(&["dout", "y"]);

/// Copies each token to the rows of its experts: y_r = x_{order_r / K}. A row without a slot is zero.
///
/// # Shapes
/// `x` [N, H], `order` \[C\] and `offsets` of an [`ExpertOrder`](super::ExpertOrder) of `top_k`, K,
/// slots per token; returns [C, H]. Rows after the last offset are unspecified.
///
/// # Errors
/// When an index is out of range; for offsets that do not start at 0, decrease or exceed the rows.
/// A GPU checks only the last offset, and reports what is out of range at the next synchronization.
pub fn permute_tokens(
    x: &Tensor,
    order: &Tensor,
    offsets: &Tensor,
    top_k: usize,
) -> Result<Tensor> {
    let mut call = PERMUTE.call(&[x, order, offsets])?;
    let (width, slots) = (call.extent("h"), call.extent("n").saturating_mul(top_k));
    let mut y = call.output(0)?;

    let (x, rows) = (contiguous(x)?, Rows::new(order, offsets)?);
    match call.device().is_gpu() {
        true => call.launch(|gpu| {
            let rows = rows.on_gpu(&call)?;
            launch::permute_tokens(gpu, &x, None, rows, top_k, &y)
        }),
        false => call.compute(|| {
            rows.read(&call, slots, |order| {
                for_float!(x.dtype(), T => {
                    kernels::permute_tokens::<T>(&Flat::new(&x)?, width, top_k, order, y.slice()?);
                    Ok(())
                })
            })
        }),
    }?;
    Ok(y.finish())
}

/// The gradient of [`permute_tokens`]: each token sums the rows of its slots, in slot order.
///
/// # Shapes
/// `dy` [C, H], `row_of_slot` [N, K]; returns [N, H].
///
/// # Errors
/// When an index is out of range.
pub fn permute_tokens_grad(dy: &Tensor, row_of_slot: &Tensor) -> Result<Tensor> {
    let call = PERMUTE_GRAD.call(&[dy, row_of_slot])?;
    let (width, top_k) = (call.extent("h"), call.extent("k"));
    let mut call = call.with_flops((row_of_slot.elements() * width) as u64);
    let mut dx = call.output(0)?;

    let (dy, row_of_slot) = (contiguous(dy)?, contiguous(row_of_slot)?);
    match call.device().is_gpu() {
        true => call.launch(|gpu| launch::unpermute_tokens(gpu, &dy, None, &row_of_slot, &dx)),
        false => call.compute(|| {
            let row_of_slot = checked_rows(&call, &row_of_slot)?;
            for_float!(dy.dtype(), T => {
                let dy = Flat::<T>::new(&dy)?;
                kernels::unpermute_tokens::<T>(&dy, width, top_k, &row_of_slot, |_| Number::ONE, dx.slice()?);
                Ok(())
            })
        }),
    }?;
    Ok(dx.finish())
}

/// The weighted sum of the experts' results: out_n = sum over k of weights_nk y_r with r =
/// row_of_slot_nk, in slot order, accumulated in f32 (f64 for f64) and rounded once. Slots whose
/// expert is not local add nothing.
///
/// # Shapes
/// `y` [C, H], `weights` [N, K] of any float dtype, `row_of_slot` [N, K]; returns [N, H] of `y`'s
/// dtype.
///
/// # Errors
/// When an index is out of range.
pub fn unpermute_tokens(y: &Tensor, weights: &Tensor, row_of_slot: &Tensor) -> Result<Tensor> {
    let call = UNPERMUTE.call(&[y, weights, row_of_slot])?;
    let (width, top_k) = (call.extent("h"), call.extent("k"));
    let mut call = call.with_flops((2 * row_of_slot.elements() * width) as u64);
    let mut out = call.output(0)?;

    let (y, row_of_slot, weights) =
        (contiguous(y)?, contiguous(row_of_slot)?, widened(weights, y.dtype())?);
    match call.device().is_gpu() {
        true => call.launch(|gpu| launch::unpermute_tokens(gpu, &y, Some(&weights), &row_of_slot, &out)),
        false => call.compute(|| {
            let row_of_slot = checked_rows(&call, &row_of_slot)?;
            for_float!(y.dtype(), T => {
                let (y, weights) = (Flat::<T>::new(&y)?, Flat::new(&weights)?);
                let weight = |slot| weights[slot];
                kernels::unpermute_tokens::<T>(&y, width, top_k, &row_of_slot, weight, out.slice()?);
                Ok(())
            })
        }),
    }?;
    Ok(out.finish())
}

/// The gradient of [`unpermute_tokens`] with respect to `y`:
/// `dy[r] = weights[order[r]] * dout[order[r] / K]`, or zero for a row without a slot.
///
/// # Shapes
/// `dout` [N, H], `weights` [N, K], `order` \[C\] and `offsets` of an
/// [`ExpertOrder`](super::ExpertOrder); returns [C, H] of `dout`'s dtype. Rows after the last
/// offset are unspecified.
///
/// # Errors
/// As [`permute_tokens`].
pub fn unpermute_tokens_grad_input(
    dout: &Tensor,
    weights: &Tensor,
    order: &Tensor,
    offsets: &Tensor,
) -> Result<Tensor> {
    let call = UNPERMUTE_GRAD_INPUT.call(&[dout, weights, order, offsets])?;
    let (width, top_k, slots) = (call.extent("h"), call.extent("k"), weights.elements());
    let mut call = call.with_flops((slots * width) as u64);
    let mut dy = call.output(0)?;
    let (dout, weights) = (contiguous(dout)?, widened(weights, dout.dtype())?);
    let rows = Rows::new(order, offsets)?;
    match call.device().is_gpu() {
        true => call.launch(|gpu| {
            let rows = rows.on_gpu(&call)?;
            launch::permute_tokens(gpu, &dout, Some(&weights), rows, top_k, &dy)
        }),
        false => call.compute(|| {
            rows.read(&call, slots, |order| {
                for_float!(dout.dtype(), T => {
                    let (x, weights) = (Flat::<T>::new(&dout)?, Flat::new(&weights)?);
                    let dy = dy.slice()?;
                    kernels::permute_tokens_weighted::<T>(&x, &weights, width, top_k, order, dy);
                    Ok(())
                })
            })
        }),
    }?;
    Ok(dy.finish())
}

/// The gradient of [`unpermute_tokens`] with respect to its weights. For slot (n, k) it is the dot
/// product of dout_n and the slot's row of `y`, or zero if the expert is not local.
///
/// # Shapes
/// `dout` [N, H], `y` [C, H], `row_of_slot` [N, K]; returns [N, K] f32 (f64 for f64).
///
/// # Errors
/// When an index is out of range.
pub fn unpermute_tokens_grad_weights(
    dout: &Tensor,
    y: &Tensor,
    row_of_slot: &Tensor,
) -> Result<Tensor> {
    let call = UNPERMUTE_GRAD_WEIGHTS.call(&[dout, y, row_of_slot])?;
    let (width, top_k) = (call.extent("h"), call.extent("k"));
    let mut call = call.with_flops((2 * row_of_slot.elements() * width) as u64);
    let mut dweights = call.output(0)?;

    let (dout, y, row_of_slot) = (contiguous(dout)?, contiguous(y)?, contiguous(row_of_slot)?);
    match call.device().is_gpu() {
        true => call.launch(|gpu| launch::unpermute_tokens_grad_weights(gpu, [&dout, &y, &row_of_slot], &dweights)),
        false => call.compute(|| {
            let row_of_slot = checked_rows(&call, &row_of_slot)?;
            for_float!(y.dtype(), T => {
                let (dout, y) = (Flat::<T>::new(&dout)?, Flat::new(&y)?);
                kernels::unpermute_tokens_grad_weights::<T>(&dout, &y, width, top_k, &row_of_slot, dweights.slice()?);
                Ok(())
            })
        }),
    }?;
    Ok(dweights.finish())
}

/// Contiguous weights in the accumulator dtype of `dtype`.
fn widened(weights: &Tensor, dtype: DType) -> Result<Tensor> {
    contiguous(&cast(weights, dtype.accumulator())?)
}

/// Checks that the row of each slot is -1 or below the capacity (`c`).
fn checked_rows<'a>(call: &Call, row_of_slot: &'a Tensor) -> Result<Flat<'a, i32>> {
    let row_of_slot = Flat::new(row_of_slot)?;
    kernels::check_indices(call.name(), &row_of_slot, call.extent("c"), true)?;
    Ok(row_of_slot)
}

/// The `order` and `offsets` of an [`ExpertOrder`](super::ExpertOrder), contiguous.
struct Rows {
    order: Tensor,
    offsets: Tensor,
}

impl Rows {
    fn new(order: &Tensor, offsets: &Tensor) -> Result<Rows> {
        Ok(Rows { order: contiguous(order)?, offsets: contiguous(offsets)? })
    }

    /// The operands of a GPU kernel, which checks the last offset and each slot that it reads.
    fn on_gpu(&self, call: &Call) -> Result<[&Tensor; 2]> {
        match self.offsets.elements() {
            0 => bail!(
                Invalid,
                "{}: `offsets` is empty; it needs one element more than there are experts",
                call.name()
            ),
            _ => Ok([&self.order, &self.offsets]),
        }
    }

    /// Calls `f` with the slots of the rows before the last offset, after checking that each is one of
    /// `slots` or absent.
    fn read(&self, call: &Call, slots: usize, f: impl FnOnce(&[i32]) -> Result<()>) -> Result<()> {
        let order = Flat::<i32>::new(&self.order)?;
        let offsets = Flat::<i64>::new(&self.offsets)?;
        let used = kernels::check_offsets(call.name(), &offsets, order.len())?;

        let order = &order[..used];
        kernels::check_indices(call.name(), order, slots, true)?;
        f(order)
    }
}
