//! Values and gradients of ops that are composed of others, or defined by a formula, are torch's in
//! f64. `generate.py` writes ops.json.

use std::sync::OnceLock;

use meshgrad_autograd::{Result, Tape, Var, ops};
use meshgrad_runtime::ops::AttentionMask;
use meshgrad_runtime::{Device, Tensor};
use serde::Deserialize;

/// All tensors of a call are on one device.
fn cpu() -> &'static Device {
    static CPU: OnceLock<Device> = OnceLock::new();
    CPU.get_or_init(Device::cpu)
}

#[derive(Deserialize)]
struct Numbers {
    shape: Vec<usize>,
    data: Vec<f64>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    inputs: Vec<Numbers>,
    y: Numbers,
    dy: Numbers,
    gradients: Vec<Numbers>,
}

impl Numbers {
    fn tensor(&self) -> Tensor {
        Tensor::from_slice(cpu(), &self.shape, &self.data).unwrap()
    }

    fn largest_difference(&self, x: &Tensor) -> f64 {
        assert_eq!(x.shape().to_vec(), self.shape);
        let found = x.to_vec::<f64>().unwrap();
        let pairs = found.iter().zip(&self.data);
        let errors =
            pairs.map(|(found, expected)| (found - expected).abs() / (1.0 + expected.abs()));
        errors.fold(0.0, f64::max)
    }
}

fn run(name: &str, x: &[Var]) -> Result<Var> {
    let attention = |cap, mask: AttentionMask| {
        let bias = Some(&x[3]);
        ops::attention_with_scores([&x[0], &x[1], &x[2]], bias, cap, &mask, 0.7)
    };
    match name {
        "gelu" => ops::gelu(&x[0]),
        "gelu_tanh" => ops::gelu_tanh(&x[0]),
        "softplus" => ops::softplus(&x[0]),
        "erf" => ops::erf(&x[0]),
        "layer_norm" => ops::layer_norm(&x[0], &x[1], &x[2], 1e-3),
        "logsumexp" => ops::logsumexp(&x[0], &[0, 2]),
        "cross_entropy" => {
            let labels = [2i64, -100, 0, 6, 6, -100];
            let labels = Tensor::from_slice(cpu(), &[2, 3], &labels)?;
            let (loss, count) = ops::cross_entropy(&x[0], &labels, -100)?;
            assert_eq!(count.item::<f64>()?, 4.0);
            Ok(loss)
        }
        "cumsum" => ops::cumsum(&x[0], 1),
        "sort" => Ok(ops::sort(&x[0], 1, false)?.0),
        "sort_descending" => Ok(ops::sort(&x[0], 0, true)?.0),
        "tril" => ops::tril(&x[0], 1),
        "triu" => ops::triu(&x[0], -2),
        "attention_bias" => attention(None, AttentionMask::default()),
        "attention_cap_causal" => attention(Some(0.8), AttentionMask::causal()),
        other => panic!("{other} has no op"),
    }
}

/// The largest differences of the value and of the gradients.
fn differences(case: &Case, run: impl Fn(&[Var]) -> Result<Var>) -> [f64; 2] {
    let ((inputs, y), tape) = Tape::record(|| {
        let inputs: Vec<Var> = case.inputs.iter().map(|it| Var::input(it.tensor())).collect();
        let y = run(&inputs)?;
        Ok((inputs, y))
    })
    .unwrap();
    let of_inputs: Vec<&Var> = inputs.iter().collect();
    let (gradients, _) = tape.backward_inputs(&[(&y, case.dy.tensor())], &of_inputs).unwrap();
    let pairs = case.gradients.iter().zip(&gradients);
    let of_gradients = pairs.map(|(expected, found)| expected.largest_difference(found));
    [case.y.largest_difference(y.value()), of_gradients.fold(0.0, f64::max)]
}

fn cases() -> Vec<Case> {
    serde_json::from_str(include_str!("ops.json")).unwrap()
}

#[test]
fn values_and_gradients_are_those_of_torch() {
    let cases = cases();
    assert_eq!(cases.len(), 14);
    for case in cases {
        let found = differences(&case, |x| run(&case.name, x));
        assert!(found.iter().all(|it| *it < 1e-9), "{}: {found:?}", case.name);
    }
}

/// A scaled input changes the value, and a gradient that is dropped changes the gradients.
#[test]
fn faults_are_found() {
    for case in cases() {
        let scaled = differences(&case, |x| {
            let first = ops::affine(&x[0], 1.001, 0.0)?;
            let rest = x[1..].iter().cloned();
            run(&case.name, &[first].into_iter().chain(rest).collect::<Vec<_>>())
        });
        assert!(scaled[0] > 1e-7 && scaled[1] > 1e-7, "{}: {scaled:?}", case.name);
    }
}
