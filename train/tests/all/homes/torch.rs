//! The model of torch's DeviceMesh tutorial on 2 x 4 ranks has the weights of torch's hybrid sharded
//! data parallelism after each step. `scripts/prove/hybrid-sharded-golden` describes and writes the
//! fixture.

use std::collections::BTreeMap;
use std::path::Path;

use meshgrad_autograd::{Init, Module, Param, Tape, Var, ops as tracked};
use meshgrad_ckpt::TensorFile;
use meshgrad_collectives::redistribute;
use meshgrad_comm::conformance::{Fault, RewiredRank};
use meshgrad_comm::{Local, Rank, Redistributor};
use meshgrad_data_parallel::{DataParallel, Strategy};
use meshgrad_mesh::{Mesh, Placement};
use meshgrad_runtime::{DType, Device, Tensor, ops};
use meshgrad_train::Result;
use meshgrad_train::optim::{AdamW, AdamWConfig, Groups, UpdateRule};
use meshgrad_train::optimizer::Optimizer;

const REPLICAS: usize = 2;
const SHARDS: usize = 4;
const STEPS: usize = 5;
const LEARNING_RATE: f64 = 0.05;

/// The largest difference of a weight.
const TOLERANCE: f32 = 1e-6;

/// Shapes and elements by name.
type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

fn fixture() -> Tensors {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/hybrid-sharded.safetensors");
    let file = TensorFile::open(&path).unwrap();
    let tensors = file.tensors().iter().map(|info| {
        let bytes = file.read(&info.name).unwrap();
        let values = bytes.chunks_exact(4).map(|x| f32::from_le_bytes(x.try_into().unwrap()));
        (info.name.clone(), (info.shape.clone(), values.collect()))
    });
    tensors.collect()
}

#[derive(Clone, Module)]
#[module(crate = meshgrad_autograd)]
struct ToyModel {
    net1: Linear,
    net2: Linear,
}

#[derive(Clone, Module)]
#[module(crate = meshgrad_autograd)]
struct Linear {
    weight: Param,
    bias: Param,
}

impl Linear {
    fn new(name: &str, inputs: usize, outputs: usize) -> Linear {
        Linear {
            weight: Param::new(format!("{name}.weight"), [outputs, inputs], Init::Zeros),
            bias: Param::new(format!("{name}.bias"), [outputs], Init::Zeros),
        }
    }

    fn forward(&self, x: &Var) -> meshgrad_runtime::Result<Var> {
        let y = tracked::linear(x, &self.weight.var()?)?;
        tracked::add_bias(&y, &self.bias.var()?)
    }
}

impl ToyModel {
    fn new() -> ToyModel {
        ToyModel { net1: Linear::new("net1", 10, 10), net2: Linear::new("net2", 10, 5) }
    }

    /// The sum of the squared errors.
    fn loss(&self, x: &Tensor, target: &Tensor) -> meshgrad_runtime::Result<Var> {
        let x = Var::constant(x.clone());
        let y = self.net2.forward(&tracked::relu(&self.net1.forward(&x)?)?)?;
        let error = tracked::sub(&y, &Var::constant(target.clone()))?;
        tracked::sum(&tracked::square(&error)?, &[0, 1])
    }
}

/// A tensor of the fixture that the ranks share by rows.
fn sharded(device: &Device, (shape, values): &(Vec<usize>, Vec<f32>)) -> Result<Tensor> {
    let [ranks, rows, columns] = shape[..] else {
        unreachable!("a batch has three dims");
    };
    let whole = Tensor::from_slice(device, &[ranks * rows, columns], values)?.as_replicated()?;
    let rows = [("dp_replicate", Placement::shard(0)), ("dp_shard", Placement::shard(0))];
    redistribute(&whole, rows)
}

/// The largest difference from torch, over all weights after all steps.
fn difference(rank: &dyn Rank, mesh: &Mesh, fixture: &Tensors) -> Result<f32> {
    let device = rank.device();
    let model = ToyModel::new();
    let home = Strategy::hsdp(["dp_shard"], ["dp_replicate"]);
    DataParallel::new(rank, mesh, home).apply(&model)?;
    for param in model.params() {
        let (shape, values) = &fixture[&format!("initial.{}", param.name())];
        let value = Tensor::from_slice(device, shape, values)?;
        param.set(&value.as_replicated()?)?;
    }

    let config = AdamWConfig { eps: 1e-3, weight_decay: 0.0, ..AdamWConfig::default() };
    let adamw = |parts: &[_]| -> Result<Box<dyn UpdateRule>> {
        Ok(Box::new(AdamW::new(parts, config, &Groups::default())?))
    };
    let mut optimizer = Optimizer::with(&model, device, 0.0, adamw)?;
    let mut largest: f32 = 0.0;
    for step in 1..=STEPS {
        let x = sharded(device, &fixture[&format!("input.{step}")])?;
        let target = sharded(device, &fixture[&format!("target.{step}")])?;
        let (loss, tape) = Tape::record(|| model.loss(&x, &target))?;
        tape.backward(&loss, optimizer.grads())?;
        let count: usize = target.global_shape().iter().product();
        let weight = ops::full(device, &[], DType::F32, count as f64)?;
        optimizer.step(&weight, step as u64, LEARNING_RATE)?;

        for param in model.params() {
            let own = param.var()?.value().to_vec::<f32>()?;
            let (_, torch) = &fixture[&format!("step.{step}.{}", param.name())];
            let differences = own.iter().zip(torch).map(|(a, b)| (a - b).abs());
            largest = differences.fold(largest, |a, b| if b > a || b.is_nan() { b } else { a });
        }
    }
    Ok(largest)
}

fn on_ranks(fault: Fault) -> std::result::Result<f32, String> {
    let mesh = Mesh::new(&[REPLICAS, SHARDS], &["dp_replicate", "dp_shard"]).unwrap();
    let fixture = fixture();
    let differences = Local::new(REPLICAS * SHARDS).threads(1).launch(|rank| {
        Redistributor::new(rank)
            .run_on(&mesh, || difference(&RewiredRank::faulty(rank, fault), &mesh, &fixture))
    });
    let differences = differences.map_err(|error| error.to_string())?;
    Ok(differences.into_iter().fold(0.0, f32::max))
}

#[test]
fn the_tutorials_program_has_torchs_weights() {
    let difference = on_ranks(Fault::None).unwrap();
    assert!(difference <= TOLERANCE, "{difference:.1e}");
}

#[test]
fn faults_give_other_weights() {
    for fault in Fault::ALL {
        let found = on_ranks(fault);
        assert!(found.is_err() || found.is_ok_and(|it| it > TOLERANCE), "{fault:?}");
    }
}
