//! AdamW with stochastic rounding: in any home and on any number of ranks, bf16 parameters have the
//! bits that they have on one rank. Gradients are sums of small integers here, which are equal in
//! any order. So the law is that the random numbers depend on the element alone.

use meshgrad_autograd::{Init, Module, Param, Spec, Tape, Var, ops as tracked};
use meshgrad_comm::conformance::{Fault, RewiredRank};
use meshgrad_comm::{Local, Rank, Redistributor};
use meshgrad_runtime::{DType, Device, Tensor, ops};
use meshgrad_train::optim::{AdamW, AdamWConfig, Groups, OptimizerPart, Rounding, UpdateRule};
use meshgrad_train::optimizer::Optimizer;

use crate::homes::cases::{CASES, Case};
use crate::homes::step::{Outcome, Result, Share, assembled, own_rows, share};

const INPUTS: usize = 3;
const OUTPUTS: [usize; 2] = [5, 7];
const STEPS: usize = 4;

const CONFIG: AdamWConfig = AdamWConfig {
    beta1: 0.9,
    beta2: 0.99,
    eps: 1e-3,
    weight_decay: 0.1,
    state_dtype: DType::F32,
    rounding: Rounding::Stochastic,
    seed: 5,
};

#[derive(Clone, Module)]
#[module(crate = meshgrad_autograd)]
struct Layers {
    weights: Vec<Param>,
    bias: Param,
}

impl Layers {
    fn new() -> Layers {
        let param = |name: String, spec: Spec| {
            let dtype = DType::BF16;
            Param::with_spec(name, Spec { dtype, ..spec })
        };
        let weights = OUTPUTS.iter().enumerate().map(|(at, outputs)| {
            let spec = Spec::new([*outputs, INPUTS], Init::Normal { std: 1.0 });
            param(format!("model.layers.{at}.weight"), spec)
        });
        Layers {
            weights: weights.collect(),
            bias: param("model.bias".to_owned(), Spec::new([OUTPUTS[0]], Init::Ones)),
        }
    }
}

/// Integers from -2 to 2.
fn integers(case: &Case, device: &Device, columns: usize, step: usize) -> Result<Tensor> {
    let shape = [case.rows(), columns];
    let value = |at: usize| ((at * at + 3 * at + 7 * step) % 5) as f32 - 2.0;
    let values: Vec<f32> = (0..shape[0] * columns).map(value).collect();
    let values = Tensor::from_slice(device, &shape, &values)?;
    own_rows(case, &ops::cast(&values, DType::BF16)?)
}

fn train(case: &Case, config: AdamWConfig, model: &Layers, device: &Device) -> Result<Vec<Share>> {
    let make = |parts: &[OptimizerPart]| -> Result<Box<dyn UpdateRule>> {
        Ok(Box::new(AdamW::new(parts, config, &Groups::default())?))
    };
    let mut optimizer = Optimizer::with(model, device, 0.0, make)?;
    for step in 0..STEPS {
        let x = Var::constant(integers(case, device, INPUTS, step)?);
        let (outputs, tape) = Tape::record(|| {
            let first = tracked::linear(&x, &model.weights[0].var()?)?;
            let first = tracked::add_bias(&first, &model.bias.var()?)?;
            let second = tracked::linear(&x, &model.weights[1].var()?)?;
            Ok::<_, meshgrad_runtime::Error>([first, second])
        })?;
        let [first, second] = OUTPUTS.map(|columns| integers(case, device, columns, step + 1));
        let roots = [(&outputs[0], first?), (&outputs[1], second?)];
        tape.backward_from(&roots, optimizer.grads())?;
        let weight = ops::full(device, &[], DType::F32, case.rows() as f64)?;
        optimizer.step(&weight, step as u64 + 1, 0.01)?;
    }
    let mut shares = Vec::new();
    for state in optimizer.state() {
        for (param, (name, tensor)) in model.params().iter().zip(&state.tensors) {
            shares.push(share(format!("{} of {name}", state.name), param, tensor)?);
        }
    }
    for param in model.params() {
        let value = param.kept_value()?;
        shares.push(share(param.name().to_owned(), &param, &value)?);
    }
    Ok(shares)
}

fn on_one_rank(case: &Case, config: AdamWConfig) -> Outcome {
    let (device, model) = (Device::cpu(), Layers::new());
    model.materialize(&device, 0).unwrap();
    let shares = train(case, config, &model, &device).unwrap();
    assembled(&[shares]).unwrap()
}

fn on_ranks(
    case: &Case,
    config: AdamWConfig,
    fault: Fault,
) -> std::result::Result<Outcome, String> {
    let mesh = case.mesh();
    let shares = Local::new(mesh.len()).launch(|rank| {
        let faulty = RewiredRank::faulty(rank, fault);
        Redistributor::new(rank).run_on(&mesh, || {
            let model = Layers::new();
            case.homes(&faulty, &mesh).apply(&model)?;
            model.materialize(rank.device(), 0)?;
            train(case, config, &model, rank.device())
        })
    });
    assembled(&shares.map_err(|error| error.to_string())?)
}

fn is_data_parallel(case: &&Case) -> bool {
    case.mesh.iter().all(|(axis, _)| *axis != "tp")
}

#[test]
fn stochastic_rounding_has_the_bits_of_one_rank() {
    for state_dtype in [DType::F32, DType::BF16] {
        let config = AdamWConfig { state_dtype, ..CONFIG };
        for case in CASES.iter().filter(is_data_parallel) {
            let expected = on_one_rank(case, config);
            let actual = on_ranks(case, config, Fault::None).unwrap();
            assert_eq!(actual, expected, "{case}, {state_dtype} state");
        }
    }
}

/// Another seed, rounding to nearest, and lost or doubled contributions give other weights.
#[test]
fn other_rounding_and_faults_give_other_weights() {
    let case = CASES.iter().find(|case| case.divides() && case.rows() > 4);
    let case = case.unwrap();
    let expected = on_one_rank(case, CONFIG);
    let seed = AdamWConfig { seed: 6, ..CONFIG };
    let nearest = AdamWConfig { rounding: Rounding::Nearest, ..CONFIG };
    for config in [seed, nearest] {
        assert_ne!(on_ranks(case, config, Fault::None).unwrap(), expected);
    }
    for fault in [Fault::Dropped, Fault::Scaled] {
        let actual = on_ranks(case, CONFIG, fault);
        assert!(actual.is_err() || actual.is_ok_and(|it| it != expected));
    }
}
