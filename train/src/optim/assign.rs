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

/// into = f(inputs), element by element, on any device. It is computed in `into`'s accumulator
/// dtype (f32; f64 for f64) and rounded to nearest. `into` may be one of the inputs.
///
/// ```
/// use meshgrad_runtime::{Device, Function, Kind, Number, Signature, Tensor};
/// use meshgrad_train::optim::assign;
///
/// static STEP: Signature = Signature::new(
///     "sign_step",
///     "param: F[~], gradient: F[~], learning_rate: F[~], scale: F[~] -> param: F[~]",
///     4, // FLOPs per element
/// );
///
/// /// param - learning_rate * sign(gradient).
/// struct Step;
///
/// impl Function<4> for Step {
///     fn value<W: Number>(&self, [param, gradient, learning_rate, scale]: [W; 4]) -> W {
///         let g = scale * gradient;
///         let sign = g.if_lt(W::ZERO, -W::ONE, W::ZERO.if_lt(g, W::ONE, W::ZERO));
///         scale.if_finite(param - learning_rate * sign, param)
///     }
/// }
///
/// # fn main() -> meshgrad_train::Result<()> {
/// let device = Device::cpu();
/// let param = Tensor::zeros(&device, &[3], meshgrad_runtime::DType::F32, Kind::Parameter)?;
/// let gradient = Tensor::from_slice(&device, &[3], &[5.0f32, 0.0, -7.0])?;
/// let [learning_rate, scale] = [0.5f32, 1.0].map(|value| Tensor::scalar(&device, value));
/// let inputs = [&param, &gradient, &learning_rate?, &scale?];
/// assign(&STEP, &Step, inputs, &param)?;
/// assert_eq!(param.to_vec::<f32>()?, [-0.5, 0.0, 0.5]);
/// # Ok(())
/// # }
/// ```
///
/// # Shapes
/// The first input has `into`'s shape; the others broadcast to it. Any float dtypes.
///
/// # Errors
/// When the inputs do not match `op`; when memory runs out.
pub fn assign<const N: usize>(
    op: &'static Signature,
    f: &impl Function<N>,
    inputs: [&Tensor; N],
    into: &Tensor,
) -> Result<()> {
    let new = map(op, f, inputs, into.dtype().accumulator())?;
    ops::copy_into(&ops::cast(&new, into.dtype())?, into)
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
