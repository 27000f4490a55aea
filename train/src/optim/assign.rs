//! Elementwise formulas of optimizers, and updates in place.

use meshgrad_runtime::{DType, Function, Number, Signature, Tensor, ops};

use crate::Result;

/// f(inputs), computed in `dtype`.
///
/// # Shapes
/// The inputs have shapes that broadcast to that of the first; any float dtypes.
pub(super) fn map<const N: usize>(
    op: &'static Signature,
    f: &impl Function<N>,
    inputs: [&Tensor; N],
    dtype: DType,
) -> Result<Tensor> {
    let shape = inputs.first().map(|x| *x.shape()).unwrap_or_default();
    let inputs: Vec<Tensor> = inputs
        .into_iter()
        .map(|x| ops::cast(x, dtype)?.broadcast_to(&shape))
        .collect::<Result<_, _>>()?;
    let inputs: [&Tensor; N] = std::array::from_fn(|at| &inputs[at]);

    let mut call = op.call(&inputs)?;
    let mut y = call.output(0)?;
    ops::map(&call, f, inputs, &mut y)?;
    Ok(y.finish())
}

/// into = f(inputs), computed in `into`'s accumulator dtype and rounded to nearest.
///
/// # Shapes
/// As [`map`]; the first input has `into`'s shape.
pub(super) fn assign<const N: usize>(
    op: &'static Signature,
    f: &impl Function<N>,
    inputs: [&Tensor; N],
    into: &Tensor,
) -> Result<()> {
    let new = map(op, f, inputs, into.dtype().accumulator())?;
    Ok(ops::copy_into(&ops::cast(&new, into.dtype())?, into)?)
}

/// `new` if `scale` is finite, else `old`.
#[inline(always)]
pub(super) fn if_finite<W: Number>(scale: W, new: W, old: W) -> W {
    // Zero times infinity is NaN, which equals nothing.
    (scale * W::ZERO).if_eq(W::ZERO, new, old)
}

/// average + (1 - beta) * (x - average): an exponential moving average with decay `beta`.
#[inline(always)]
pub(super) fn averaged<W: Number>(beta: f64, average: W, x: W) -> W {
    average + W::constant(1.0 - beta) * (x - average)
}

/// `learning_rate` times the constant `factor`.
pub(super) fn scaled(learning_rate: &Tensor, factor: f64) -> Result<Tensor> {
    match factor == 1.0 {
        true => Ok(learning_rate.clone()),
        false => Ok(ops::affine(learning_rate, factor, 0.0)?),
    }
}
