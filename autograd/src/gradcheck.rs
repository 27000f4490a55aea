//! Comparison of gradients with finite differences.

use meshgrad_error::bail;
use meshgrad_runtime::{DType, Device, Tensor, ops};

use crate::{Grads, Init, Param, Result, Spec, Tape, Var};

/// The tolerance of [`gradcheck`].
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    /// The step of the central difference.
    pub step: f64,
    /// The allowed error, relative to 1 + |central difference|.
    pub tolerance: f64,
}

impl Default for Tolerance {
    /// A step of 1e-5, whose error is about 1e-10 for smooth functions of values around 1, and a
    /// tolerance of 1e-7.
    fn default() -> Tolerance {
        Tolerance { step: 1e-5, tolerance: 1e-7 }
    }
}

/// Compares the gradients of `function` at `inputs` with central differences. They are computed
/// twice: with `inputs` as inputs of a split backward, and as parameters of a full one. Both must
/// be equal; a zero may differ in sign.
///
/// Each output is weighted by fixed numbers, so that all are checked together.
///
/// # Shapes
/// `inputs` any shapes, f64; `function` returns f64 values.
///
/// # Errors
/// For the first element that differs; errors of `function`.
pub fn gradcheck(
    function: impl Fn(&[Var]) -> Result<Vec<Var>>,
    inputs: &[Tensor],
    how: Tolerance,
) -> Result<()> {
    let of_inputs = gradients_of_inputs(&function, inputs)?;
    let of_params = gradients_of_params(&function, inputs)?;

    for (input, tensor) in inputs.iter().enumerate() {
        let (backward, of_param) =
            (of_inputs[input].to_vec::<f64>()?, of_params[input].to_vec::<f64>()?);
        for index in 0..tensor.elements() {
            let difference = central_difference(&function, inputs, input, index, how.step)?;
            let tolerance = how.tolerance * (1.0 + difference.abs());
            let agrees = |backward: f64| (backward - difference).abs() <= tolerance;
            let wrong = match (backward[index], of_param[index]) {
                (of_input, _) if !agrees(of_input) => Some(of_input),
                (of_input, of_param) if of_input != of_param => Some(of_param),
                _ => None,
            };
            if let Some(backward) = wrong {
                bail!(
                    Mismatch,
                    "the gradient of element {index} of input {input} is {backward:e}, but finite \
                     differences give {difference:e} (tolerance {tolerance:e})"
                );
            }
        }
    }
    Ok(())
}

fn gradients_of_inputs(
    function: &impl Fn(&[Var]) -> Result<Vec<Var>>,
    inputs: &[Tensor],
) -> Result<Vec<Tensor>> {
    let ((inputs, outputs), tape) = Tape::record(|| {
        let inputs: Vec<Var> = inputs.iter().cloned().map(Var::input).collect();
        let outputs = function(&inputs)?;
        Ok((inputs, outputs))
    })?;
    let (gradients, weights) =
        tape.backward_inputs(&weighted_roots(&outputs)?, &inputs.iter().collect::<Vec<_>>())?;
    weights.run(&mut Grads::default())?;
    Ok(gradients)
}

fn gradients_of_params(
    function: &impl Fn(&[Var]) -> Result<Vec<Var>>,
    inputs: &[Tensor],
) -> Result<Vec<Tensor>> {
    let mut params = Vec::new();
    for (at, input) in inputs.iter().enumerate() {
        let spec =
            Spec { shape: *input.shape(), dtype: DType::F64, init: Init::Zeros, optional: true };
        let param = Param::with_spec(format!("input {at}"), spec);
        param.set(input)?;
        params.push(param);
    }

    let (outputs, tape) = Tape::record(|| {
        let vars: Result<Vec<Var>> = params.iter().map(Param::var).collect();
        function(&vars?)
    })?;
    let mut grads = Grads::new(&params)?;
    tape.backward_from(&weighted_roots(&outputs)?, &mut grads)?;
    params.iter().map(|param| grads.get(param)).collect()
}

/// The tracked outputs, each with fixed weights as its gradient: sin(1 + 1.7 i + 0.9 k) for element
/// i of output k, so that they differ from element to element and from output to output.
///
/// # Errors
/// When memory runs out.
pub fn weighted_roots(outputs: &[Var]) -> Result<Vec<(&Var, Tensor)>> {
    let tracked = outputs.iter().enumerate().filter(|(_, output)| output.is_tracked());
    tracked.map(|(at, output)| Ok((output, weights(at, output.value())?))).collect()
}

fn weights(output: usize, like: &Tensor) -> Result<Tensor> {
    let number = |index: usize| (1.0 + index as f64 * 1.7 + output as f64 * 0.9).sin();
    let numbers: Vec<f64> = (0..like.elements()).map(number).collect();
    let numbers = Tensor::from_slice(&Device::cpu(), like.shape(), &numbers)?;
    ops::to_device(&ops::cast(&numbers, like.dtype())?, like.device())
}

fn central_difference(
    function: &impl Fn(&[Var]) -> Result<Vec<Var>>,
    inputs: &[Tensor],
    input: usize,
    index: usize,
    step: f64,
) -> Result<f64> {
    let at = |shift: f64| -> Result<f64> {
        let mut values = inputs[input].to_vec::<f64>()?;
        values[index] += shift;
        let mut vars: Vec<Var> = inputs.iter().cloned().map(Var::constant).collect();
        let moved = Tensor::from_slice(inputs[input].device(), inputs[input].shape(), &values)?;
        vars[input] = Var::constant(moved);
        total(&function(&vars)?)
    };
    Ok((at(step)? - at(-step)?) / (2.0 * step))
}

/// The weighted sum of all outputs.
fn total(outputs: &[Var]) -> Result<f64> {
    let mut total = 0.0;
    for (at, output) in outputs.iter().enumerate() {
        let weighted = ops::mul(output.value(), &weights(at, output.value())?)?;
        total += weighted.to_vec::<f64>()?.iter().sum::<f64>();
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::Track;

    /// Returns `x`. Each call of its backward scales the gradient by the result of `scale`.
    fn identity(x: &Var, scale: impl Fn() -> f64 + Send + 'static) -> Result<Vec<Var>> {
        let y = x.value().clone().tracked([x], move |dy, [dx]| {
            dx.add(|| meshgrad_runtime::ops::affine(dy, scale(), 0.0))
        })?;
        Ok(vec![y])
    }

    fn numbers() -> Tensor {
        Tensor::from_slice(&Device::cpu(), &[3], &[0.5, -1.0, 2.0]).unwrap()
    }

    #[test]
    fn a_wrong_gradient_is_an_error() {
        let check = |scale: f64| {
            gradcheck(
                move |x| {
                    let correct = identity(&x[0], || 1.0)?;
                    Ok([correct, identity(&x[1], move || scale)?].concat())
                },
                &[numbers(), numbers()],
                Tolerance::default(),
            )
        };
        check(1.0).unwrap();
        for scale in [1.01, -1.0, 0.0] {
            let error = check(scale).unwrap_err().to_string();
            assert!(error.starts_with("the gradient of element 0 of input 1 is "), "{error}");
        }
    }

    /// The tolerance grows with the gradient.
    #[test]
    fn a_large_gradient_passes() {
        let large = |x: &[Var]| Ok(vec![crate::ops::affine(&x[0], 1e6, 0.0)?]);
        gradcheck(large, &[numbers()], Tolerance::default()).unwrap();
    }

    /// Where the gradient is 0, an error up to the tolerance passes.
    #[test]
    fn a_tiny_error_passes() {
        let constant = |error: f64| {
            move |x: &[Var]| {
                let zero = meshgrad_runtime::ops::affine(x[0].value(), 0.0, 0.0)?;
                let y = zero.tracked([&x[0]], move |dy, [dx]| {
                    dx.add(|| meshgrad_runtime::ops::affine(dy, error, 0.0))
                })?;
                Ok(vec![y])
            }
        };
        gradcheck(constant(0.9e-7), &[numbers()], Tolerance::default()).unwrap();
        assert!(gradcheck(constant(2e-7), &[numbers()], Tolerance::default()).is_err());
    }

    #[test]
    fn outputs_are_weighted_by_sines() {
        let expected = [
            [0.8414709848078965, 0.4273798802338298, -0.9516020738895161],
            [0.9463000876874145, -0.44252044329485246, -0.8322674422239008],
        ];
        for (output, expected) in expected.into_iter().enumerate() {
            let weights = weights(output, &numbers()).unwrap().to_vec::<f64>().unwrap();
            let distance = weights.iter().zip(&expected).map(|(x, y)| (x - y).abs());
            assert!(distance.fold(0.0, f64::max) < 1e-12, "{weights:?}");
        }
    }

    /// The two gradients must be equal, even if both are within the tolerance.
    #[test]
    fn both_gradients_must_be_equal() {
        let calls = std::sync::Arc::new(AtomicU32::new(0));
        let function = |x: &[Var]| {
            let calls = calls.clone();
            identity(&x[0], move || 1.0 + 1e-12 * f64::from(calls.fetch_add(1, Ordering::Relaxed)))
        };
        assert!(gradcheck(function, &[numbers()], Tolerance::default()).is_err());
    }
}
