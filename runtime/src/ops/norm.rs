//! Root-mean-square normalization (Zhang & Sennrich 2019).
//!
//! Legend: D features; rows are all leading dims.

use super::dense_rows;
use super::row_function::{features, map_rows, sum_rows_into};
use crate::cpu::norm as kernels;
use crate::launch::norm as launch;
use crate::{Accumulator, Number, Result, RowFunction, Signature, Tensor, for_float, ops};

static RMS_NORM: Signature =
    Signature::new("rms_norm", "x: F[.. d!], w: F[d!] -> y: F[.. d], inv_rms: A[..]", 4);
static RMS_NORM_GRAD_INPUT: Signature = Signature::new(
    "rms_norm_grad_input",
    "dy: F[.. d!], x: F[.. d!], w: F[d!], inv_rms: A[..] -> dx: F[.. d]",
    8,
)
.linear_in(&["dy", "w"]);
static ADD_RMS_NORM: Signature = Signature::new(
    "add_rms_norm",
    "x: F[.. d!], added: F[.. d!], w: F[d!] -> sum: F[.. d], y: F[.. d], inv_rms: A[..]",
    5,
);
static ADD_RMS_NORM_GRAD_INPUT: Signature = Signature::new(
    "add_rms_norm_grad_input",
    "dsum: F[.. d!], dy: F[.. d!], sum: F[.. d!], w: F[d!], inv_rms: A[..] -> dx: F[.. d]",
    9,
)
.linear_in(&["dsum + dy"]);
static RMS_NORM_GRAD_WEIGHT_INTO: Signature = Signature::new(
    "rms_norm_grad_weight_into",
    "dy: F[.. d], x: F[.. d], inv_rms: A[..], dw: A[d] -> dw: A[d]",
    3,
)
.linear_in(&["dy"]);

pub(super) static SIGNATURES: &[&Signature] = &[
    &RMS_NORM,
    &RMS_NORM_GRAD_INPUT,
    &RMS_NORM_GRAD_WEIGHT_INTO,
    &ADD_RMS_NORM,
    &ADD_RMS_NORM_GRAD_INPUT,
];

/// Operands x and w; the number of a row is inv_rms.
struct Forward {
    features: f64,
    eps: f64,
}

impl RowFunction<2, 1> for Forward {
    #[inline(always)]
    fn summand<W: Number>(&self, _: usize, [x, _]: [W; 2], _: [W; 1]) -> W {
        x * x
    }

    #[inline(always)]
    fn number<W: Number>(&self, _: usize, [squares]: [W; 1]) -> W {
        W::ONE / (squares / W::constant(self.features) + W::constant(self.eps)).sqrt()
    }

    #[inline(always)]
    fn value<W: Number>(&self, [x, w]: [W; 2], [inv_rms]: [W; 1]) -> W {
        x * inv_rms * w
    }
}

/// Operands dy, x and w; inv_rms is given, then comes the factor of -x: inv_rms^3 mean(dy w x).
struct GradInput {
    features: f64,
}

impl RowFunction<3, 2> for GradInput {
    const GIVEN: usize = 1;

    #[inline(always)]
    fn summand<W: Number>(&self, _: usize, [dy, x, w]: [W; 3], _: [W; 2]) -> W {
        dy * w * x
    }

    #[inline(always)]
    fn number<W: Number>(&self, _: usize, [inv_rms, dot]: [W; 2]) -> W {
        dot / W::constant(self.features) * inv_rms * inv_rms * inv_rms
    }

    #[inline(always)]
    fn value<W: Number>(&self, [dy, x, w]: [W; 3], [inv_rms, along_x]: [W; 2]) -> W {
        dy * w * inv_rms - x * along_x
    }
}

/// y = x w inv_rms with inv_rms = 1 / sqrt(mean(x^2) + eps) per row; returns (y, inv_rms).
///
/// Computed in f32 (f64 for f64) and rounded once. Hugging Face's `Qwen3RMSNorm` also rounds x
/// inv_rms to the dtype of x before it multiplies by w, which makes a difference only in bf16.
///
/// # Shapes
/// `x` [.., D], `w` \[D\], of one float dtype; returns `y` as `x`, `inv_rms` [..] in the
/// accumulator dtype.
pub fn rms_norm(x: &Tensor, w: &Tensor, eps: f64) -> Result<(Tensor, Tensor)> {
    let mut call = RMS_NORM.call(&[x, w])?;
    let mut y = call.output(0)?;
    let mut numbers = [call.output(1)?];
    let features = features(&call);
    let forward = Forward { features, eps };
    map_rows(&call, &forward, [x, w], [], &mut y, &mut numbers)?;
    let [inv_rms] = numbers;
    Ok((y.finish(), inv_rms.finish()))
}

/// The gradient of [`rms_norm`] with respect to `x`: inv_rms (dy w - x inv_rms^2 mean(dy w x)).
///
/// # Shapes
/// `dy` and `x` [.., D], `w` \[D\], `inv_rms` [..] as [`rms_norm`] returned it; returns `x`'s shape
/// and dtype.
pub fn rms_norm_grad_input(
    dy: &Tensor,
    x: &Tensor,
    w: &Tensor,
    inv_rms: &Tensor,
) -> Result<Tensor> {
    let mut call = RMS_NORM_GRAD_INPUT.call(&[dy, x, w, inv_rms])?;
    let mut dx = call.output(0)?;
    let features = features(&call);
    let (f, operands) = (GradInput { features }, [dy, x, w]);
    map_rows(&call, &f, operands, [inv_rms], &mut dx, &mut [])?;
    Ok(dx.finish())
}

/// dw += sum over rows of dy x inv_rms: the gradient of [`rms_norm`] with respect to `w`.
///
/// # Shapes
/// `dy` and `x` [.., D], `inv_rms` [..] as [`rms_norm`] returned it, `dw` \[D\] of any float dtype.
///
/// # Errors
/// While `dw` is in use.
pub fn rms_norm_grad_weight_into(
    dy: &Tensor,
    x: &Tensor,
    inv_rms: &Tensor,
    dw: &mut Accumulator,
) -> Result<()> {
    struct Product;

    impl RowFunction<2, 1> for Product {
        #[inline(always)]
        fn value<W: Number>(&self, [dy, x]: [W; 2], [inv_rms]: [W; 1]) -> W {
            dy * (x * inv_rms)
        }
    }

    sum_rows_into(&RMS_NORM_GRAD_WEIGHT_INTO, &Product, [dy, x], [inv_rms], dw)
}

/// A residual addition and a norm in one pass: sum = x + added, with y and inv_rms as [`rms_norm`]
/// of the sum; returns (sum, y, inv_rms).
///
/// The norm is computed from the rounded sum. For the gradient with respect to `w`, pass the sum to
/// [`rms_norm_grad_weight_into`].
///
/// # Shapes
/// `x` and `added` [.., D], `w` \[D\], of one float dtype; returns `sum` and `y` as `x`, `inv_rms`
/// [..] in the accumulator dtype.
pub fn add_rms_norm(
    x: &Tensor,
    added: &Tensor,
    w: &Tensor,
    eps: f64,
) -> Result<(Tensor, Tensor, Tensor)> {
    let mut call = ADD_RMS_NORM.call(&[x, added, w])?;
    let (x, added, w) = (dense_rows(x)?, dense_rows(added)?, ops::contiguous(w)?);
    let operands = [&x, &added, &w];
    let (mut sum, mut y, mut inv_rms) = (call.output(0)?, call.output(1)?, call.output(2)?);
    match call.device().is_gpu() {
        true => call.launch(|gpu| launch::add_rms_norm(gpu, operands, eps, [&sum, &y, &inv_rms])),
        false => call.compute(|| {
            for_float!(x.dtype(), T => {
                let (sum, y, inv_rms) = (sum.slice()?, y.slice()?, inv_rms.slice()?);
                kernels::add_rms_norm::<T>(operands, eps, sum, y, inv_rms)
            })
        }),
    }?;
    Ok((sum.finish(), y.finish(), inv_rms.finish()))
}

/// The gradient of [`add_rms_norm`] with respect to `x`, and also to `added`: `dsum` plus
/// [`rms_norm_grad_input`] of the sum.
///
/// # Shapes
/// `dsum`, `dy` and `sum` [.., D], `w` \[D\], `inv_rms` [..] as [`add_rms_norm`] returned it;
/// returns `sum`'s shape and dtype.
pub fn add_rms_norm_grad_input(
    dsum: &Tensor,
    dy: &Tensor,
    sum: &Tensor,
    w: &Tensor,
    inv_rms: &Tensor,
) -> Result<Tensor> {
    let mut call = ADD_RMS_NORM_GRAD_INPUT.call(&[dsum, dy, sum, w, inv_rms])?;
    let (dsum, dy, sum) = (dense_rows(dsum)?, dense_rows(dy)?, dense_rows(sum)?);
    let (w, inv_rms) = (ops::contiguous(w)?, ops::contiguous(inv_rms)?);
    let operands = [&dsum, &dy, &sum, &w, &inv_rms];
    let mut dx = call.output(0)?;
    match call.device().is_gpu() {
        true => call.launch(|gpu| launch::add_rms_norm_grad_input(gpu, operands, &dx)),
        false => call.compute(|| {
            for_float!(sum.dtype(), T => {
                kernels::add_rms_norm_grad_input::<T>(operands, dx.slice()?)
            })
        }),
    }?;
    Ok(dx.finish())
}
