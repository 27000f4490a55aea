//! Layer normalization (Ba et al. 2016).
//!
//! Legend: D features; rows are all leading dims.

use super::row_function::{features, map_rows, sum_rows_into};
use crate::{Accumulator, Number, Result, RowFunction, Signature, Tensor};

static LAYER_NORM: Signature = Signature::new(
    "layer_norm",
    "x: F[.. d!], w: F[d!], b: F[d!] -> y: F[.. d], mean: A[..], inv_std: A[..]",
    8,
);
static LAYER_NORM_GRAD_INPUT: Signature = Signature::new(
    "layer_norm_grad_input",
    "dy: F[.. d!], x: F[.. d!], w: F[d!], mean: A[..], inv_std: A[..] -> dx: F[.. d]",
    12,
)
.linear_in(&["dy", "w"]);
static LAYER_NORM_GRAD_WEIGHT_INTO: Signature = Signature::new(
    "layer_norm_grad_weight_into",
    "dy: F[.. d], x: F[.. d], mean: A[..], inv_std: A[..], dw: A[d] -> dw: A[d]",
    4,
)
.linear_in(&["dy"]);

pub(super) static SIGNATURES: &[&Signature] =
    &[&LAYER_NORM, &LAYER_NORM_GRAD_INPUT, &LAYER_NORM_GRAD_WEIGHT_INTO];

/// Operands x, w, b; the numbers of a row are the mean and 1 / sqrt(variance + eps).
struct Forward {
    features: f64,
    eps: f64,
}

impl RowFunction<3, 2> for Forward {
    #[inline(always)]
    fn summand<W: Number>(&self, at: usize, [x, ..]: [W; 3], [mean, _]: [W; 2]) -> W {
        match at {
            0 => x,
            _ => (x - mean) * (x - mean),
        }
    }

    #[inline(always)]
    fn number<W: Number>(&self, at: usize, sums: [W; 2]) -> W {
        let mean = sums[at] / W::constant(self.features);
        match at {
            0 => mean,
            _ => W::ONE / (mean + W::constant(self.eps)).sqrt(),
        }
    }

    #[inline(always)]
    fn value<W: Number>(&self, [x, w, b]: [W; 3], [mean, inv_std]: [W; 2]) -> W {
        (x - mean) * inv_std * w + b
    }
}

/// Operands dy, x, w; mean and inv_std are given, then come mean(g) and mean(g z) with g = dy w and z
/// = (x - mean) inv_std.
struct GradInput {
    features: f64,
}

impl RowFunction<3, 4> for GradInput {
    const GIVEN: usize = 2;

    #[inline(always)]
    fn summand<W: Number>(&self, at: usize, [dy, x, w]: [W; 3], numbers: [W; 4]) -> W {
        match (at, numbers) {
            (2, _) => dy * w,
            (_, [mean, inv_std, ..]) => dy * w * (x - mean) * inv_std,
        }
    }

    #[inline(always)]
    fn number<W: Number>(&self, at: usize, numbers: [W; 4]) -> W {
        numbers[at] / W::constant(self.features)
    }

    #[inline(always)]
    fn value<W: Number>(&self, [dy, x, w]: [W; 3], numbers: [W; 4]) -> W {
        let [mean, inv_std, of_g, of_gz] = numbers;
        (dy * w - of_g - (x - mean) * inv_std * of_gz) * inv_std
    }
}

/// y = (x - mean) inv_std w + b with inv_std = 1 / sqrt(variance + eps), the mean and the variance
/// (divided by D) being those of the row; returns (y, mean, inv_std). Computed in f32 (f64 for f64)
/// and rounded once.
///
/// # Shapes
/// `x` [.., D], `w` and `b` \[D\], of one float dtype; returns `y` as `x`, `mean` and `inv_std` [..]
/// in the accumulator dtype.
pub fn layer_norm(
    x: &Tensor,
    w: &Tensor,
    b: &Tensor,
    eps: f64,
) -> Result<(Tensor, Tensor, Tensor)> {
    let mut call = LAYER_NORM.call(&[x, w, b])?;
    let mut y = call.output(0)?;
    let mut numbers = [call.output(1)?, call.output(2)?];
    let features = features(&call);
    map_rows(&call, &Forward { features, eps }, [x, w, b], [], &mut y, &mut numbers)?;
    let [mean, inv_std] = numbers.map(|it| it.finish());
    Ok((y.finish(), mean, inv_std))
}

/// The gradient of [`layer_norm`] with respect to `x`: inv_std (g - mean(g) - z mean(g z)) with g =
/// dy w and z = (x - mean) inv_std.
///
/// # Shapes
/// `dy` and `x` [.., D], `w` \[D\], `mean` and `inv_std` [..] as [`layer_norm`] returned them; returns
/// `x`'s shape and dtype.
pub fn layer_norm_grad_input(
    dy: &Tensor,
    x: &Tensor,
    w: &Tensor,
    mean: &Tensor,
    inv_std: &Tensor,
) -> Result<Tensor> {
    let mut call = LAYER_NORM_GRAD_INPUT.call(&[dy, x, w, mean, inv_std])?;
    let mut dx = call.output(0)?;
    let features = features(&call);
    map_rows(&call, &GradInput { features }, [dy, x, w], [mean, inv_std], &mut dx, &mut [])?;
    Ok(dx.finish())
}

/// dw += sum over rows of dy (x - mean) inv_std: the gradient of [`layer_norm`] with respect to `w`.
///
/// # Shapes
/// As [`layer_norm_grad_input`]; `dw` \[D\] of any float dtype.
///
/// # Errors
/// While `dw` is in use.
pub fn layer_norm_grad_weight_into(
    dy: &Tensor,
    x: &Tensor,
    mean: &Tensor,
    inv_std: &Tensor,
    dw: &mut Accumulator,
) -> Result<()> {
    struct Product;

    impl RowFunction<2, 2> for Product {
        #[inline(always)]
        fn value<W: Number>(&self, [dy, x]: [W; 2], [mean, inv_std]: [W; 2]) -> W {
            dy * ((x - mean) * inv_std)
        }
    }

    let signature = &LAYER_NORM_GRAD_WEIGHT_INTO;
    sum_rows_into(signature, &Product, [dy, x], [mean, inv_std], dw)
}
