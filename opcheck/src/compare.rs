//! Comparison of a case on two devices: a device without f64 against the CPU in f64.

use meshgrad_autograd::{Grads, Init, Param, Spec, Tape, Var, weighted_roots};
use meshgrad_error::bail;
use meshgrad_runtime::{DType, Device, Result, Tensor, ops};

use crate::cases::Case;

/// The tolerance of a comparison.
#[derive(Clone, Copy, Debug)]
pub enum Closeness {
    /// The maximum error of each element, relative to the largest element of its tensor or to 1,
    /// whichever is larger.
    Elements(f64),
    /// The tensors as vectors: 1 - cos of the angle, and the ratio of the norms. For dtypes in
    /// which single elements are inaccurate.
    Vectors {
        /// The maximum of 1 - cos.
        angle: f64,
        /// The maximum of |ratio - 1|.
        norm: f64,
    },
}

/// Compares the outputs of `case` and the gradients of its inputs with those of `reference`, the
/// same case on another device and possibly in a wider dtype
/// ([`cases::exact`](crate::cases::exact)).
///
/// # Errors
/// For the first result that differs: outputs are compared before gradients. Errors of the cases'
/// functions.
pub fn compare(case: &Case, reference: &Case, closeness: Closeness) -> Result<()> {
    let (actual, expected) = (Recorded::of(case)?, Recorded::of(reference)?);
    for (at, (actual, expected)) in actual.values().zip(expected.values()).enumerate() {
        closeness.check(|| format!("output {at}"), actual, expected)?;
    }

    let (actual, expected) = (actual.gradients()?, expected.gradients()?);
    for (input, (actual, expected)) in actual.iter().zip(&expected).enumerate() {
        let result = || format!("the gradient of input {input}");
        closeness.check(result, actual, expected)?;
    }
    Ok(())
}

/// A recorded case.
struct Recorded {
    inputs: Vec<Input>,
    outputs: Vec<Var>,
    tape: Tape,
}

/// An input on the tape. The gradient of a weight is at least f32; the gradient of an activation
/// has the activation's dtype.
enum Input {
    Activation(Var),
    Weight(Param),
}

impl Recorded {
    fn of(case: &Case) -> Result<Recorded> {
        let ((inputs, outputs), tape) = Tape::record(|| {
            let inputs = case.inputs.iter().enumerate();
            let inputs: Result<Vec<Input>> = inputs
                .map(|(at, x)| match case.weights.contains(&at) {
                    true => Ok(Input::Weight(parameter(at, x)?)),
                    false => Ok(Input::Activation(Var::input(x.clone()))),
                })
                .collect();
            let inputs = inputs?;
            let vars: Result<Vec<Var>> = inputs.iter().map(Input::var).collect();
            let outputs = case.run(&vars?)?;
            Ok((inputs, outputs))
        })?;
        Ok(Recorded { inputs, outputs, tape })
    }

    fn values(&self) -> impl Iterator<Item = &Tensor> {
        self.outputs.iter().map(Var::value)
    }

    /// The gradients of all inputs in order.
    fn gradients(self) -> Result<Vec<Tensor>> {
        let (mut activations, mut weights) = (Vec::new(), Vec::new());
        for input in &self.inputs {
            match input {
                Input::Activation(var) => activations.push(var),
                Input::Weight(param) => weights.push(param.clone()),
            }
        }
        let mut grads = Grads::new(&weights)?;
        let (gradients, weights) =
            self.tape.backward_inputs(&weighted_roots(&self.outputs)?, &activations)?;
        weights.run(&mut grads)?;

        let mut gradients = gradients.into_iter();
        let inputs = self.inputs.iter();
        let gradients = inputs.filter_map(|input| match input {
            Input::Activation(_) => gradients.next().map(Ok),
            Input::Weight(param) => Some(grads.get(param)),
        });
        gradients.collect()
    }
}

impl Input {
    fn var(&self) -> Result<Var> {
        match self {
            Input::Activation(var) => Ok(var.clone()),
            Input::Weight(param) => param.var(),
        }
    }
}

fn parameter(at: usize, value: &Tensor) -> Result<Param> {
    let spec =
        Spec { shape: *value.shape(), dtype: value.dtype(), init: Init::Zeros, optional: true };
    let param = Param::with_spec(format!("input {at}"), spec);
    param.set(value)?;
    Ok(param)
}

impl Closeness {
    fn check(self, result: impl Fn() -> String, actual: &Tensor, expected: &Tensor) -> Result<()> {
        let difference = match actual.shape() == expected.shape() {
            true => self.difference(&to_host(actual)?, &to_host(expected)?),
            false => Some(format!("shape {}, expected {}", actual.shape(), expected.shape())),
        };
        match difference {
            Some(difference) => bail!(
                Mismatch,
                "{} differs from that of {}: {difference}",
                result(),
                expected.device()
            ),
            None => Ok(()),
        }
    }

    fn difference(self, actual: &[f64], expected: &[f64]) -> Option<String> {
        match self {
            Closeness::Elements(tolerance) => first_element(actual, expected, tolerance),
            Closeness::Vectors { angle, norm } => {
                let (found, ratio) = vectors(actual, expected);
                let close = found <= angle && (ratio - 1.0).abs() <= norm;
                (!close).then(|| format!("1 - cos is {found:e}, norm ratio {ratio}"))
            }
        }
    }
}

/// The first element out of tolerance.
fn first_element(actual: &[f64], expected: &[f64], tolerance: f64) -> Option<String> {
    let largest = expected.iter().fold(1.0f64, |most, x| most.max(x.abs()));
    let tolerance = tolerance * largest;
    let agrees = |(actual, expected): (&f64, &f64)| (actual - expected).abs() <= tolerance;
    let index = actual.iter().zip(expected).position(|pair| !agrees(pair))?;
    let (actual, expected) = (actual[index], expected[index]);
    Some(format!("element {index} is {actual:e}, expected {expected:e} (tolerance {tolerance:e})"))
}

/// 1 - cos of the angle, and the ratio of the norms. Two zero vectors are equal.
fn vectors(actual: &[f64], expected: &[f64]) -> (f64, f64) {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let (actual_norm, expected_norm) = (dot(actual, actual).sqrt(), dot(expected, expected).sqrt());
    match actual_norm == 0.0 && expected_norm == 0.0 {
        true => (0.0, 1.0),
        false => (
            1.0 - dot(actual, expected) / (actual_norm * expected_norm),
            actual_norm / expected_norm,
        ),
    }
}

fn to_host(x: &Tensor) -> Result<Vec<f64>> {
    let x = ops::to_device(x, &Device::cpu())?;
    ops::cast(&x, DType::F64)?.to_vec()
}

#[cfg(test)]
mod tests {
    use meshgrad_autograd::{Save, Track};

    use super::*;
    use crate::cases;

    const F32: Closeness = Closeness::Elements(1e-5);
    const BF16: Closeness = Closeness::Vectors { angle: 1e-3, norm: 1e-2 };

    /// On the CPU, results in narrower dtypes agree with f64.
    #[test]
    fn narrow_floats_agree_with_f64() {
        for (dtype, closeness) in [(DType::F32, F32), (DType::BF16, BF16)] {
            let narrow = cases::all(&Device::cpu(), dtype).unwrap();
            for (case, exact) in narrow.iter().zip(&cases::exact(dtype).unwrap()) {
                let compared = compare(case, exact, closeness);
                compared.unwrap_or_else(|error| panic!("{} in {dtype}: {error}", case.name));
            }
        }
    }

    /// `case` with identity ops before and after its op, and with these weights.
    fn chained(case: Case, weights: &'static [usize]) -> Case {
        let op = case.function;
        let function = move |vars: &[Var], constants: &[Tensor]| {
            let same = |x: &Var| meshgrad_autograd::ops::affine(x, 1.0, 0.0);
            let before: Result<Vec<Var>> = vars.iter().map(same).collect();
            op(&before?, constants)?.iter().map(same).collect()
        };
        Case { function: Box::new(function), weights, ..case }
    }

    /// Every op accepts bf16 inputs, parameters, and values computed from either. Gradients of
    /// values that depend on parameters only are f32, others bf16.
    #[test]
    fn every_op_accepts_bf16_inputs_and_parameters() {
        const ALL: &[usize] = &[0, 1, 2, 3];

        let as_weights = |weights| move |case: Case| Case { weights, ..case };
        let kinds: [(&str, &dyn Fn(Case) -> Case); 4] = [
            ("inputs", &as_weights(&[])),
            ("parameters", &as_weights(ALL)),
            ("computed from inputs", &|case| chained(case, &[])),
            ("computed from parameters", &|case| chained(case, ALL)),
        ];
        let mut wrong = Vec::new();
        for (kind, wrap) in kinds {
            let narrow = cases::all(&Device::cpu(), DType::BF16).unwrap();
            for (case, exact) in narrow.into_iter().zip(cases::exact(DType::BF16).unwrap()) {
                let (case, exact) = (wrap(case), wrap(exact));
                if let Err(error) = compare(&case, &exact, BF16) {
                    wrong.push(format!("{} of {kind}: {error}", case.name));
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    /// The op 3 x, with its value scaled by `value` and its gradient by `gradient`.
    fn scaled(value: f64, gradient: f64) -> Case {
        let function = move |x: &[Var]| {
            let y = ops::affine(x[0].value(), 3.0 * value, 0.0)?;
            let saved = x[0].value().save();
            let tracked = y.tracked([&x[0]], move |dy, [dx]| {
                let _ = saved.get()?;
                dx.add(|| ops::affine(dy, 3.0 * gradient, 0.0))
            });
            Ok(vec![tracked?])
        };
        let x = Tensor::from_slice(&Device::cpu(), &[3], &[1.0, -2.0, 0.5]).unwrap();
        Case::new("scaled", vec![x], function)
    }

    /// Wrong outputs and gradients are detected and named, for either tolerance.
    #[test]
    fn wrong_results_are_detected() {
        let right = scaled(1.0, 1.0);
        for closeness in [F32, BF16] {
            assert_eq!(compare(&scaled(1.0, 1.0), &right, closeness), Ok(()));
            for wrong in [-1.0, 0.0, 1.1, f64::NAN] {
                let found = |case: &Case| compare(case, &right, closeness).unwrap_err().to_string();
                let (value, gradient) = (found(&scaled(wrong, 1.0)), found(&scaled(1.0, wrong)));
                assert!(value.starts_with("output 0 differs from that of cpu: "), "{value}");
                let start = "the gradient of input 0 differs from that of cpu: ";
                assert!(gradient.starts_with(start), "{gradient}");
            }
        }
    }

    #[test]
    fn zero_vectors_are_equal() {
        assert_eq!(BF16.difference(&[0.0; 3], &[0.0; 3]), None);
        assert_eq!(BF16.difference(&[], &[]), None);
        assert!(BF16.difference(&[0.0, 1e-9], &[0.0; 2]).is_some());
        assert!(BF16.difference(&[0.0; 2], &[0.0, 1e-9]).is_some());
    }
}
