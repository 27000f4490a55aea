//! The same case on two devices, side by side: what a device without f64 computes, next to what
//! the CPU computes in f64.

use std::fmt;

use meshgrad_autograd::{self as autograd, Grads, Init, Param, Spec, Tape, Var, weighted_roots};
use meshgrad_runtime::{self as runtime, DType, Device, Shape, Tensor, ops};

use crate::cases::Case;

/// The result of a comparison.
pub type Result<T = (), E = Error> = std::result::Result<T, E>;

/// Why a case is not what its reference is.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The tape, or an op on it, failed.
    #[error(transparent)]
    Autograd(#[from] autograd::Error),

    /// An op failed.
    #[error(transparent)]
    Runtime(#[from] runtime::Error),

    /// A result that differs from the reference.
    #[error("{result} is not that of {device}: {difference}")]
    Differs {
        /// Which result.
        result: Compared,
        /// The device of the reference.
        device: String,
        /// In what they differ.
        difference: Difference,
    },
}

/// How close two results must be.
#[derive(Clone, Copy, Debug)]
pub enum Closeness {
    /// Every element, within so much of the largest of its tensor, or of 1.
    Elements(f64),
    /// The tensors as vectors: 1 - cos of the angle between them, and how far the ratio of their
    /// norms is from 1. For formats in which a single element says little.
    Vectors {
        /// The most of 1 - cos.
        angle: f64,
        /// The most of |ratio - 1|.
        norm: f64,
    },
}

/// One result of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compared {
    /// What its function returns, by position.
    Output(usize),
    /// The gradient of an input, by position.
    Gradient(usize),
}

impl fmt::Display for Compared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Compared::Output(at) => write!(f, "output {at}"),
            Compared::Gradient(input) => write!(f, "the gradient of input {input}"),
        }
    }
}

/// In what two results differ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Difference {
    /// In shape: here, and there.
    Shape(Shape, Shape),
    /// In one element.
    Element {
        /// Which, in row-major order.
        index: usize,
        /// What is computed here.
        here: f64,
        /// What is computed there.
        there: f64,
        /// How far they may lie apart.
        tolerance: f64,
    },
    /// In direction or length.
    Vector {
        /// 1 - cos of the angle.
        angle: f64,
        /// The norm here over the norm there.
        ratio: f64,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Difference::Shape(here, there) => write!(f, "{here} here but {there} there"),
            Difference::Element {
                index,
                here,
                there,
                tolerance,
            } => write!(
                f,
                "element {index} is {here:e} here but {there:e} there (allowed: {tolerance:e})"
            ),
            Difference::Vector { angle, ratio } => {
                write!(f, "1 - cos is {angle:e}, the norm {ratio} times that there")
            }
        }
    }
}

/// Checks the outputs of `case` and the gradients of its inputs against those of `reference`, the
/// same case on another device and perhaps in a wider dtype ([`cases::exact`](crate::cases::exact)).
///
/// # Errors
/// [`Error::Differs`] for the first result that differs; what the cases' functions return.
/// Outputs come first: where a backward fails, they agree.
pub fn compare(case: &Case, reference: &Case, closeness: Closeness) -> Result<()> {
    let (here, there) = (Recorded::of(case)?, Recorded::of(reference)?);
    for (at, (here, there)) in here.values().zip(there.values()).enumerate() {
        closeness.check(Compared::Output(at), here, there)?;
    }

    let (here, there) = (here.gradients()?, there.gradients()?);
    for (input, (here, there)) in here.iter().zip(&there).enumerate() {
        closeness.check(Compared::Gradient(input), here, there)?;
    }
    Ok(())
}

/// A case that has run on a tape.
struct Recorded {
    inputs: Vec<Input>,
    outputs: Vec<Var>,
    tape: Tape,
}

/// How an input went onto the tape: weights get their gradients in f32 at least, activations in
/// their own dtype.
enum Input {
    Activation(Var),
    Weight(Param),
}

impl Recorded {
    fn of(case: &Case) -> autograd::Result<Recorded> {
        let ((inputs, outputs), tape) = Tape::record(|| {
            let inputs = case.inputs.iter().enumerate();
            let inputs: autograd::Result<Vec<Input>> = inputs
                .map(|(at, x)| match case.weights.contains(&at) {
                    true => Ok(Input::Weight(parameter(at, x)?)),
                    false => Ok(Input::Activation(Var::input(x.clone()))),
                })
                .collect();
            let inputs = inputs?;
            let vars: autograd::Result<Vec<Var>> = inputs.iter().map(Input::var).collect();
            let outputs = (case.function)(&vars?)?;
            Ok((inputs, outputs))
        })?;
        Ok(Recorded {
            inputs,
            outputs,
            tape,
        })
    }

    fn values(&self) -> impl Iterator<Item = &Tensor> {
        self.outputs.iter().map(Var::value)
    }

    /// The gradients of all inputs in order.
    fn gradients(self) -> autograd::Result<Vec<Tensor>> {
        let (mut activations, mut weights) = (Vec::new(), Vec::new());
        for input in &self.inputs {
            match input {
                Input::Activation(var) => activations.push(var),
                Input::Weight(param) => weights.push(param.clone()),
            }
        }
        let mut grads = Grads::new(&weights)?;
        let (gradients, weights) = self
            .tape
            .backward_inputs(&weighted_roots(&self.outputs)?, &activations)?;
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
    fn var(&self) -> autograd::Result<Var> {
        match self {
            Input::Activation(var) => Ok(var.clone()),
            Input::Weight(param) => param.var(),
        }
    }
}

fn parameter(at: usize, value: &Tensor) -> autograd::Result<Param> {
    let spec = Spec {
        shape: *value.shape(),
        dtype: value.dtype(),
        init: Init::Zeros,
        optional: true,
    };
    let param = Param::with_spec(format!("input {at}"), spec);
    param.set(value)?;
    Ok(param)
}

impl Closeness {
    fn check(self, result: Compared, here: &Tensor, there: &Tensor) -> Result<()> {
        let difference = match here.shape() == there.shape() {
            true => self.difference(&on_the_host(here)?, &on_the_host(there)?),
            false => Some(Difference::Shape(*here.shape(), *there.shape())),
        };
        difference.map_or(Ok(()), |difference| {
            Err(Error::Differs {
                result,
                device: there.device().to_string(),
                difference,
            })
        })
    }

    fn difference(self, here: &[f64], there: &[f64]) -> Option<Difference> {
        match self {
            Closeness::Elements(tolerance) => first_element(here, there, tolerance),
            Closeness::Vectors { angle, norm } => {
                let (is_angle, ratio) = vectors(here, there);
                let close = is_angle <= angle && (ratio - 1.0).abs() <= norm;
                (!close).then_some(Difference::Vector {
                    angle: is_angle,
                    ratio,
                })
            }
        }
    }
}

/// The first element that is too far away.
fn first_element(here: &[f64], there: &[f64], tolerance: f64) -> Option<Difference> {
    let largest = there.iter().fold(1.0f64, |most, x| most.max(x.abs()));
    let tolerance = tolerance * largest;
    let agrees = |(here, there): (&f64, &f64)| (here - there).abs() <= tolerance;
    let index = here.iter().zip(there).position(|pair| !agrees(pair))?;
    Some(Difference::Element {
        index,
        here: here[index],
        there: there[index],
        tolerance,
    })
}

/// 1 - cos of the angle, and the ratio of the norms; vectors of zeros are alike.
fn vectors(here: &[f64], there: &[f64]) -> (f64, f64) {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let (here_norm, there_norm) = (dot(here, here).sqrt(), dot(there, there).sqrt());
    match here_norm == 0.0 && there_norm == 0.0 {
        true => (0.0, 1.0),
        false => (
            1.0 - dot(here, there) / (here_norm * there_norm),
            here_norm / there_norm,
        ),
    }
}

fn on_the_host(x: &Tensor) -> Result<Vec<f64>> {
    let x = ops::to_device(x, &Device::cpu())?;
    Ok(ops::cast(&x, DType::F64)?.to_vec()?)
}

#[cfg(test)]
mod tests {
    use meshgrad_autograd::{Save, Track};

    use super::*;
    use crate::cases;

    const F32: Closeness = Closeness::Elements(1e-5);
    const BF16: Closeness = Closeness::Vectors {
        angle: 1e-3,
        norm: 1e-2,
    };

    /// In narrower floats the CPU computes what it computes in f64.
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

    /// `case` with its op in the middle of others, all of its inputs `weights` or none.
    fn chained(case: Case, weights: &'static [usize]) -> Case {
        let function = move |vars: &[Var]| {
            let same = |x: &Var| autograd::ops::affine(x, 1.0, 0.0);
            let before: autograd::Result<Vec<Var>> = vars.iter().map(same).collect();
            (case.function)(&before?)?.iter().map(same).collect()
        };
        Case {
            function: Box::new(function),
            inputs: case.inputs,
            weights,
            name: case.name,
        }
    }

    /// Inputs of any op may be what the tape got as an input, a parameter, or made from either:
    /// gradients of what depends on parameters alone are f32, those of other values bf16.
    #[test]
    fn every_op_takes_bf16_from_anywhere() {
        const ALL: &[usize] = &[0, 1, 2, 3];

        let as_weights = |weights| move |case: Case| Case { weights, ..case };
        let places: [(&str, &dyn Fn(Case) -> Case); 4] = [
            ("inputs", &as_weights(&[])),
            ("parameters", &as_weights(ALL)),
            ("made from inputs", &|case| chained(case, &[])),
            ("made from parameters", &|case| chained(case, ALL)),
        ];
        let mut wrong = Vec::new();
        for (words, place) in places {
            let narrow = cases::all(&Device::cpu(), DType::BF16).unwrap();
            for (case, exact) in narrow.into_iter().zip(cases::exact(DType::BF16).unwrap()) {
                let (case, exact) = (place(case), place(exact));
                if let Err(error) = compare(&case, &exact, BF16) {
                    wrong.push(format!("{} of {words}: {error}", case.name));
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    /// A case of 3 x whose value is `value` times that and whose gradient `gradient` times.
    fn scaled(value: f64, gradient: f64) -> Case {
        let function = move |x: &[Var]| {
            let y = ops::affine(x[0].value(), 3.0 * value, 0.0)?;
            let kept = x[0].value().save();
            let tracked = y.tracked([&x[0]], move |dy, [dx]| {
                let _ = kept.get()?;
                dx.add(|| Ok(ops::affine(dy, 3.0 * gradient, 0.0)?))
            });
            Ok(vec![tracked?])
        };
        let x = Tensor::from_slice(&Device::cpu(), &[3], &[1.0, -2.0, 0.5]).unwrap();
        Case {
            name: "scaled",
            function: Box::new(function),
            inputs: vec![x],
            weights: &[],
        }
    }

    /// What is wrong is found, and named: outputs, gradients, of either kind of closeness.
    #[test]
    fn wrong_results_are_found() {
        let right = scaled(1.0, 1.0);
        for closeness in [F32, BF16] {
            let found = |case: &Case| match compare(case, &right, closeness) {
                Err(Error::Differs { result, .. }) => Some(result),
                Ok(()) => None,
                Err(other) => panic!("{other}"),
            };
            assert_eq!(found(&scaled(1.0, 1.0)), None);
            for wrong in [-1.0, 0.0, 1.1, f64::NAN] {
                assert_eq!(found(&scaled(wrong, 1.0)), Some(Compared::Output(0)));
                assert_eq!(found(&scaled(1.0, wrong)), Some(Compared::Gradient(0)));
            }
        }
    }

    #[test]
    fn zeros_are_alike() {
        assert_eq!(BF16.difference(&[0.0; 3], &[0.0; 3]), None);
        assert_eq!(BF16.difference(&[], &[]), None);
        assert!(BF16.difference(&[0.0, 1e-9], &[0.0; 2]).is_some());
        assert!(BF16.difference(&[0.0; 2], &[0.0, 1e-9]).is_some());
    }
}
