//! Sharded layers compute what Megatron's do. `scripts/prove/megatron-layers-golden` describes and
//! writes the fixtures. Its loss is not among them: ours takes no weight per token.

use std::path::Path;

use meshgrad_autograd::{Grads, Init, Module, Param, Result, Seam, Tape, Var};
use meshgrad_ckpt::TensorFile;
use meshgrad_collectives::{full_tensor, redistribute};
use meshgrad_comm::conformance::{Fault, RewiredRank};
use meshgrad_comm::{Local, Rank, Redistributor};
use meshgrad_mesh::{Mesh, Placement};
use meshgrad_models::ModelPlan;
use meshgrad_models::ends::Embedding;
use meshgrad_models::layers::Linear;
use meshgrad_runtime::{DType, Device, Tensor};

use crate::small::{distance, norm};

/// The largest difference from Megatron's, relative to the norm of Megatron's.
const TOLERANCE: f64 = 1e-6;

/// A stored tensor's shape and bytes.
fn stored(file: &TensorFile, name: &str) -> (Vec<usize>, Vec<u8>) {
    let info = file.tensors().iter().find(|info| info.name == name);
    let info = info.unwrap_or_else(|| panic!("{name}"));
    (info.shape.clone(), file.read(name).unwrap().to_vec())
}

fn floats(file: &TensorFile, name: &str) -> (Vec<usize>, Vec<f32>) {
    let (shape, bytes) = stored(file, name);
    let values = bytes.chunks_exact(4).map(|it| f32::from_le_bytes(it.try_into().unwrap()));
    (shape, values.collect())
}

/// A stored tensor with these placements over tp.
fn placed(file: &TensorFile, name: &str, placement: Placement, device: &Device) -> Result<Tensor> {
    let (shape, values) = floats(file, name);
    let whole = Tensor::from_slice(device, &shape, &values)?.as_replicated()?;
    redistribute(&whole, [("tp", placement)])
}

/// A layer with its seams.
#[derive(Module)]
#[module(crate = meshgrad_autograd)]
struct Parallel {
    input: Seam,
    linear: Linear,
    output: Seam,
}

/// Compares what a rank computes with the fixture.
struct Comparison<'a> {
    file: &'a TensorFile,
    sequence: bool,
    device: &'a Device,
    mesh: &'a Mesh,
    rank: usize,
    problems: Vec<String>,
}

impl Comparison<'_> {
    fn compare(&mut self, name: &str, actual: &Tensor) -> Result<()> {
        let name = match self.sequence {
            true => format!("sequence.{name}"),
            false => name.to_owned(),
        };
        let actual: Vec<f32> = full_tensor(actual)?.to_vec()?;
        let (_, expected) = floats(self.file, &name);
        let (difference, size) = (distance(&actual, &expected), norm(&expected));
        if actual.len() != expected.len() || difference.is_nan() || difference > TOLERANCE * size {
            self.problems.push(format!("{name} differs by {difference:.1e} of {size:.1e}"));
        }
        Ok(())
    }

    /// Tokens are dim 0.
    fn between_layers(&self) -> Placement {
        match self.sequence {
            true => Placement::shard(0),
            false => Placement::Replicate,
        }
    }

    fn linear(&mut self, layer: &str, plan: ModelPlan, x: Placement, y: Placement) -> Result<()> {
        let stored = |name: &str, at| {
            let name = format!("{layer}.{name}");
            placed(self.file, &name, at, self.device)
        };
        let (x, dy) = (stored("x", x)?, stored("dy", y)?);
        let (outputs, inputs) = (dy.global_shape()[2], x.global_shape()[2]);
        let module = Parallel {
            input: Seam::new("input"),
            linear: Linear::new("linear", inputs, outputs).bias(true),
            output: Seam::new("output"),
        };
        plan.apply(&module, self.rank)?;
        for param in module.params() {
            let name = param.name().trim_start_matches("linear.").to_owned();
            let value = stored(&name, Placement::Replicate)?;
            let sharding = param.sharded_shape();
            let placements = sharding.sharding().map(|it| it.placements()).unwrap_or_default();
            param.set(&redistribute(&value, placements)?)?;
        }

        let mut grads = Grads::new(&module.params())?;
        let ((x, y), tape) = Tape::record(|| {
            let x = Var::input(x);
            let inside = module.linear.forward(&module.input.redistribute(&x)?)?;
            Ok((x, module.output.redistribute(&inside)?))
        })?;
        let (dx, weights) = tape.backward_inputs(&[(&y, dy)], &[&x])?;
        weights.run(&mut grads)?;
        self.compare(&format!("{layer}.y"), y.value())?;
        self.compare(&format!("{layer}.dx"), &dx[0])?;
        for (param, gradient) in grads.all()? {
            let name = param.name().trim_start_matches("linear.");
            self.compare(&format!("{layer}.d{name}"), &gradient)?;
        }
        Ok(())
    }

    fn column(&mut self) -> Result<()> {
        let plan = ModelPlan::new(self.mesh)
            .place("input", [("tp", Placement::Replicate)])
            .place("linear.*", [("tp", Placement::shard(0))]);
        self.linear("column", plan, self.between_layers(), Placement::shard(2))
    }

    fn row(&mut self) -> Result<()> {
        let plan = ModelPlan::new(self.mesh)
            .place("linear.weight", [("tp", Placement::shard(1))])
            .place("output", [("tp", self.between_layers())]);
        self.linear("row", plan, Placement::shard(2), self.between_layers())
    }

    /// Megatron's sequence parallelism transposes ids [B, T] to embeddings [T, B, O].
    fn embedding(&mut self) -> Result<()> {
        let (shape, bytes) = stored(self.file, "embedding.ids");
        let ids = bytes.chunks_exact(8).map(|it| i64::from_le_bytes(it.try_into().unwrap()));
        let ids = Tensor::from_slice(self.device, &shape, &ids.collect::<Vec<_>>())?;
        let table = placed(self.file, "embedding.weight", Placement::shard(0), self.device)?;
        let dy = placed(self.file, "embedding.dy", Placement::Replicate, self.device)?;
        let (ids, dy) = match self.sequence {
            true => (ids.transpose(0, 1)?, dy.transpose(0, 1)?),
            false => (ids, dy),
        };
        let dy = redistribute(&dy, [("tp", self.between_layers())])?;

        let shape = table.global_shape();
        let init = Init::Zeros;
        let embedding = Embedding {
            input: Seam::new("input"),
            weight: Param::new("weight", [shape[0], shape[1]], init),
            output: Seam::new("output"),
            padding: None,
            scale: 1.0,
            positions: None,
        };
        embedding.weight.set(&table)?;
        embedding.output.place([("tp", self.between_layers())]);
        let mut grads = Grads::new(&embedding.params())?;
        let ids = ids.as_replicated()?;
        let (y, tape) = Tape::record(|| embedding.forward(&ids, None, DType::F32))?;
        tape.backward_from(&[(&y, dy)], &mut grads)?;
        self.compare("embedding.y", y.value())?;
        self.compare("embedding.dweight", &grads.get(&embedding.weight)?)
    }
}

fn check(ranks: usize, sequence: bool, fault: Fault) -> std::result::Result<(), String> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/megatron");
    let file = TensorFile::open(fixtures.join(format!("ranks-{ranks}.safetensors"))).unwrap();
    let mesh = Mesh::new(&[ranks], &["tp"]).unwrap();
    let problems = Local::run(ranks, |rank| {
        Redistributor::new(&RewiredRank::faulty(rank, fault)).run_on(&mesh, || {
            let mut comparison = Comparison {
                file: &file,
                sequence,
                device: rank.device(),
                mesh: &mesh,
                rank: rank.rank(),
                problems: Vec::new(),
            };
            comparison.column()?;
            comparison.row()?;
            comparison.embedding()?;
            Ok::<_, meshgrad_runtime::Error>(comparison.problems)
        })
    });
    let problems = problems.map_err(|error| error.to_string())?.concat();
    match problems.is_empty() {
        true => Ok(()),
        false => Err(problems.join("; ")),
    }
}

#[test]
fn layers_compute_what_megatron_does() {
    for ranks in [2, 3] {
        for sequence in [false, true] {
            let checked = check(ranks, sequence, Fault::None);
            assert_eq!(checked, Ok(()), "{ranks} ranks, sequence parallel: {sequence}");
            for fault in [Fault::Dropped, Fault::Scaled] {
                assert!(check(ranks, sequence, fault).is_err(), "{fault:?}");
            }
        }
    }
}
