//! Errors of optimizers name the parameter or constant, the values and the remedy.

use std::sync::OnceLock;

use meshgrad_autograd::{Init, Module, Param, Spec};
use meshgrad_runtime::ops::StepScalars;
use meshgrad_runtime::{DType, Device, Kind, Tensor};
use meshgrad_train::Result;
use meshgrad_train::config::{Algorithm, OptimizerConfig};
use meshgrad_train::optim::{
    AdamW, AdamWConfig, Granularity, Groups, Lion, LionConfig, Muon, MuonConfig, OptimizerPart,
    OptimizerState, Rounding, Sgd, SgdConfig, UpdateRule,
};
use meshgrad_train::optimizer::Optimizer;

use crate::optim::training::Scalars;

fn cpu() -> &'static Device {
    static CPU: OnceLock<Device> = OnceLock::new();
    CPU.get_or_init(Device::cpu)
}

fn part(rows: std::ops::Range<usize>, dtype: DType) -> OptimizerPart {
    let experts = param("experts", [3, 4, 6], dtype);
    experts.materialize(cpu(), 0).unwrap();
    OptimizerPart::of_rows(&experts, rows).unwrap()
}

fn message<T, E: std::fmt::Display>(result: std::result::Result<T, E>) -> String {
    result.err().map(|error| error.to_string()).unwrap_or_default()
}

#[test]
fn parts_have_their_rows() {
    let weight = Param::new("w", [3, 4, 6], Init::Ones);
    assert_eq!(
        message(OptimizerPart::of_rows(&weight, 8..13)),
        "part of `w`: rows 8..13 are outside of the 12 rows of shape [3, 4, 6]"
    );
    assert!(message(OptimizerPart::of(&weight).value()).starts_with("parameter `w` has no value"));

    let square = Param::new("square", [4, 4], Init::Ones);
    let value = Tensor::zeros(cpu(), &[4, 4], DType::F32, Kind::Parameter).unwrap();
    square.set(&value.transpose(0, 1).unwrap()).unwrap();
    assert_eq!(
        message(OptimizerPart::of(&square).value()),
        "`square`: an optimizer needs a contiguous value, but it has strides [1, 4]; set a copy"
    );
    assert_eq!(OptimizerPart::of(&Param::new("scalar", [], Init::Ones)).kept().rows(), 0..1);
}

/// A part has the parameter's current value, also if that is another tensor than at construction.
#[test]
fn a_step_updates_the_value_that_the_parameter_has() {
    let weight = param("w", [4], DType::F32);
    weight.materialize(cpu(), 0).unwrap();
    let mut lion =
        Lion::new(&[OptimizerPart::of(&weight)], LionConfig::default(), &Groups::default())
            .unwrap();
    weight.set(&Tensor::from_slice(cpu(), &[4], &[0.0f32; 4]).unwrap()).unwrap();
    let gradient = Tensor::from_slice(cpu(), &[4], &[1.0f32; 4]).unwrap();
    lion.step(&[gradient], Scalars::new(cpu(), 1, 1.0).lend()).unwrap();
    assert!(weight.value().unwrap().to_vec::<f32>().unwrap().iter().all(|x| *x < 0.0));
}

#[test]
fn a_step_needs_a_gradient_for_each_part() {
    let mut lion =
        Lion::new(&[part(0..4, DType::F32)], LionConfig::default(), &Groups::default()).unwrap();
    let scalars = Scalars::new(cpu(), 1, 1.0);
    let mut step = |gradients: &[Tensor]| message(lion.step(gradients, scalars.lend()));

    assert_eq!(step(&[Tensor::from_slice(cpu(), &[4, 6], &[0.0f32; 24]).unwrap()]), "");
    assert_eq!(step(&[]), "the optimizer has 1 part(s), but the step has 0 gradient(s)");
    assert_eq!(
        step(&[Tensor::from_slice(cpu(), &[1], &[0.0f32]).unwrap()]),
        "the gradient of `experts` has shape [1], but the value has shape [4, 6]"
    );
}

#[test]
fn configurations_are_checked() {
    let (parts, groups) = ([part(2..6, DType::F32)], Groups::default());
    assert_eq!(
        message(Muon::new(&parts, MuonConfig::default(), &groups)),
        "`experts`: rows 2..6 split a matrix of 4 rows, but muon needs whole matrices"
    );
    let products = MuonConfig { product_dtype: DType::F64, ..MuonConfig::default() };
    assert_eq!(
        message(Muon::new(&parts, products, &groups)),
        "muon: products cannot be f64; use bf16 or f32"
    );
    let beta1 = AdamWConfig { beta1: 1.0, ..AdamWConfig::default() };
    assert_eq!(
        message(AdamW::new(&parts, beta1, &groups)),
        "adamw: beta1 is 1, but must be in [0, 1)"
    );
    let nesterov = SgdConfig { nesterov: true, ..SgdConfig::default() };
    assert_eq!(
        message(Sgd::new(&parts, nesterov, &groups)),
        "sgd: momentum is 0, but must be above 0 with nesterov"
    );
    let bf16 = AdamWConfig { state_dtype: DType::BF16, ..AdamWConfig::default() };
    assert_eq!(
        message(AdamW::new(&[part(0..4, DType::F64)], bf16, &groups)),
        "adamw: state of `experts` (f64) cannot be bf16; use f32 or bf16 state with f32 or bf16 \
         parameters"
    );
    let eps = AdamWConfig { eps: 0.0, ..AdamWConfig::default() };
    assert_eq!(
        message(AdamW::new(&parts, eps, &groups)),
        "adamw: eps is 0, but must be finite and above 0"
    );
    let decay = LionConfig { weight_decay: f64::NAN, ..LionConfig::default() };
    assert_eq!(
        message(Lion::new(&parts, decay, &groups)),
        "lion: weight_decay is NaN, but must be finite and at least 0"
    );
}

#[derive(Module)]
#[module(crate = meshgrad_autograd)]
struct Layer {
    embedding: Param,
    matrix: Param,
    norm: Param,
}

impl Layer {
    fn new(embedding: DType, matrix: DType, norm: DType) -> Layer {
        let layer = Layer {
            embedding: param("embed", [5, 4], embedding),
            matrix: param("matrix", [4, 4], matrix),
            norm: param("norm", [4], norm),
        };
        layer.materialize(cpu(), 1).unwrap();
        layer
    }
}

fn param<const N: usize>(name: &str, shape: [usize; N], dtype: DType) -> Param {
    let spec = Spec { dtype, ..Spec::new(shape, Init::Ones) };
    Param::with_spec(name, spec)
}

/// Stochastic rounding needs a bf16 parameter that AdamW updates, anywhere in the model. It is not
/// an error if all parts of a rank are f32.
#[test]
fn stochastic_rounding_needs_a_bf16_parameter_of_the_model() {
    let adamw = OptimizerConfig::named("adamw").unwrap();
    let muon = OptimizerConfig::named("muon").unwrap();
    let of = |config: &OptimizerConfig, model: Layer| {
        let mut config = config.clone();
        match &mut config.algorithm {
            Algorithm::AdamW(constants) => constants.rounding = Rounding::Stochastic,
            Algorithm::Muon(constants) => constants.adamw.rounding = Rounding::Stochastic,
            _ => unreachable!(),
        }
        message(Optimizer::new(&model, cpu(), &config, 1))
    };
    let (f32, bf16) = (DType::F32, DType::BF16);
    let without = "stochastic rounding has no effect, because AdamW updates no bf16 parameter: \
                   `embed` is f32; use rounding nearest, or parameters in bf16";
    for (expected, config, model) in [
        (without, &adamw, Layer::new(f32, f32, f32)),
        ("", &adamw, Layer::new(f32, f32, bf16)),
        ("", &adamw, Layer::new(f32, bf16, f32)),
        // Muon updates the matrix itself, and rounds it to nearest.
        (without, &muon, Layer::new(f32, bf16, f32)),
        ("", &muon, Layer::new(bf16, f32, f32)),
        ("", &muon, Layer::new(f32, f32, bf16)),
    ] {
        assert_eq!(of(config, model), expected);
    }

    let rounding = AdamWConfig { rounding: Rounding::Stochastic, ..AdamWConfig::default() };
    let of_one_rank = [part(0..4, f32)];
    AdamW::new(&of_one_rank, rounding, &Groups::default()).unwrap();
}

/// An optimizer with state of these names.
struct Named(Vec<&'static str>);

impl UpdateRule for Named {
    fn name(&self) -> &str {
        "named"
    }

    fn granularity(&self) -> Granularity {
        Granularity::Element
    }

    fn state(&self) -> Vec<OptimizerState> {
        let names = self.0.iter();
        let empty = |name: &&'static str| OptimizerState { name, tensors: Vec::new() };
        names.map(empty).collect()
    }

    fn step(&mut self, _: &[Tensor], _: StepScalars<'_>) -> Result<()> {
        Ok(())
    }
}

/// The names of the state must be distinct and valid names of folders in a checkpoint.
#[test]
fn names_of_state_are_checked() {
    let model = Layer::new(DType::F32, DType::F32, DType::F32);
    let of = |names: &[&'static str]| {
        let make = |_: &[OptimizerPart]| -> Result<Box<dyn UpdateRule>> {
            Ok(Box::new(Named(names.to_vec())))
        };
        message(Optimizer::with(&model, cpu(), 1.0, make))
    };
    assert_eq!(of(&["exp_avg", "exp_avg_sq", "steps2"]), "");
    for (names, wrong) in [
        (&["exp_avg", "ema"][..], "ema"),
        (&["buffers"], "buffers"),
        (&["skipped"], "skipped"),
        (&["sum", "count", "sum"], "sum"),
        (&[""], ""),
        (&["../sum"], "../sum"),
        (&["state.json"], "state.json"),
    ] {
        assert_eq!(
            of(names),
            format!(
                "the optimizer `named` cannot have a state named `{wrong}`: give each state a name \
                 of its own, of letters, digits, `_` and `-`, other than `ema`, `buffers` and `skipped`"
            )
        );
    }
}
