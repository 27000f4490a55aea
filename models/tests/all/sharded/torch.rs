//! Sharded Qwen3 has the loss and gradients of transformers' Qwen3 under torch's tensor parallelism.
//! `scripts/prove/tensor-parallel-golden` describes and writes the fixtures.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use meshgrad_autograd::{Module, Param, Result};
use meshgrad_collectives::redistribute;
use meshgrad_comm::conformance::{Fault, RewiredRank};
use meshgrad_comm::{Local, Rank, Redistributor};
use meshgrad_mesh::{Mesh, Sharding};
use meshgrad_models::families::qwen3::Qwen3Config;
use meshgrad_models::{Compute, Decoder, Model, ModelParallelism, TokenBatch};
use meshgrad_runtime::{DType, Device, Tensor};

use crate::sharded::run::{gradients, outcome_of};
use crate::small::{distance, norm};
use crate::stored::{Values, names_of, read};

/// The largest difference of the loss or a gradient from torch's, relative to the norm of torch's.
const TOLERANCE: f64 = 1e-5;

const RANKS: [usize; 2] = [2, 3];

/// A model, a batch, and what torch computes of it on `ranks` ranks.
struct Fixture {
    folder: PathBuf,
    ranks: usize,
    config: Qwen3Config,
    weights: BTreeMap<String, Values<f32>>,
    input: BTreeMap<String, Values<i64>>,
}

fn config_of(folder: &Path) -> Qwen3Config {
    Qwen3Config::from_json(&std::fs::read_to_string(folder.join("config.json")).unwrap()).unwrap()
}

impl Fixture {
    fn open(ranks: usize) -> Fixture {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/fixtures/tensor-parallel")
            .join(format!("ranks-{ranks}"));
        Fixture {
            ranks,
            config: config_of(&folder),
            weights: read(&folder.join("model.safetensors"), f32::from_le_bytes),
            input: read(&folder.join("input.safetensors"), i64::from_le_bytes),
            folder,
        }
    }

    /// The loss, and the gradients under `grad.` and the parameter's name in transformers.
    fn expected(&self, sequence: bool) -> BTreeMap<String, Values<f32>> {
        let name = match sequence {
            true => "expected-sequence.safetensors",
            false => "expected.safetensors",
        };
        read(&self.folder.join(name), f32::from_le_bytes)
    }

    fn batch(&self, device: &Device) -> Result<TokenBatch> {
        let tensor = |name: &str| {
            let (shape, values) = &self.input[name];
            Tensor::from_slice(device, shape, values)?.as_replicated()
        };
        Ok(TokenBatch::new(&tensor("input_ids")?, &tensor("labels")?))
    }

    /// Sets the parameter to this rank's shard of the stored weight.
    fn set(&self, param: &Param, device: &Device) -> Result<()> {
        let stored = names_of(param.name()).into_iter();
        let values: Vec<f32> =
            stored.flat_map(|name| self.weights[&name].1.iter().copied()).collect();
        let whole = Tensor::from_slice(device, param.shape(), &values)?.as_replicated()?;
        let shape = param.sharded_shape();
        let placements = shape.sharding().map(Sharding::placements);
        param.set(&redistribute(&whole, placements.unwrap_or_default())?)
    }

    /// The loss and the gradients of every rank, under the names of [`Fixture::expected`].
    fn on_ranks(
        &self,
        sequence: bool,
        fault: Fault,
    ) -> std::result::Result<Vec<BTreeMap<String, Vec<f32>>>, String> {
        let mesh = Mesh::new(&[self.ranks], &["tp"]).unwrap();
        let parallelism = ModelParallelism::new(&mesh)
            .tensor(["tp"])
            .unwrap()
            .sequence_parallel(sequence)
            .loss_parallel(true);
        let outcomes = Local::run(self.ranks, |rank| {
            let device = rank.device();
            Redistributor::new(&RewiredRank::faulty(rank, fault)).run_on(&mesh, || {
                let model = Decoder::new(&self.config)?;
                model.plan(&parallelism)?.apply(&model, rank.rank())?;
                for param in model.params() {
                    self.set(&param, device)?;
                }
                self.step(&model, device)
            })
        });
        outcomes.map_err(|error| error.to_string())
    }

    fn step(&self, model: &Decoder, device: &Device) -> Result<BTreeMap<String, Vec<f32>>> {
        let batch = self.batch(device)?;
        let compute = Compute::new(DType::F32);
        let (loss, mut grads) = gradients(&model.params(), || model.loss(&batch, compute))?;
        let whole: BTreeMap<String, Vec<f32>> =
            outcome_of(&loss, &mut grads, &[])?.into_iter().collect();
        let mut named = BTreeMap::from([("loss".to_owned(), whole["total"].clone())]);
        for param in model.params() {
            let names = names_of(param.name());
            let gradient = &whole[param.name()];
            let parts = gradient.chunks_exact(gradient.len() / names.len());
            for (name, part) in names.iter().zip(parts) {
                named.insert(format!("grad.{name}"), part.to_vec());
            }
        }
        Ok(named)
    }

    /// Compares every rank with torch.
    fn check(&self, sequence: bool, fault: Fault) -> std::result::Result<(), String> {
        let expected = self.expected(sequence);
        for (rank, actual) in self.on_ranks(sequence, fault)?.iter().enumerate() {
            assert!(actual.keys().eq(expected.keys()), "{:?}", actual.keys());
            for (name, (_, expected)) in &expected {
                let actual = &actual[name];
                assert_eq!(actual.len(), expected.len(), "{name}");
                let (difference, size) = (distance(actual, expected), norm(expected));
                if difference.is_nan() || difference > TOLERANCE * size {
                    return Err(format!(
                        "rank {rank}: {name} differs by {difference:.1e} of {size:.1e}"
                    ));
                }
            }
        }
        Ok(())
    }
}

#[test]
fn loss_and_gradients_match_torch() {
    for fixture in RANKS.map(Fixture::open) {
        // Shards are uneven.
        assert_ne!(fixture.config.vocab_size % fixture.ranks, 0);
        assert_ne!(fixture.config.intermediate_size % fixture.ranks, 0);
        for sequence in [false, true] {
            let checked = fixture.check(sequence, Fault::None);
            assert_eq!(checked, Ok(()), "{} ranks, sequence parallel: {sequence}", fixture.ranks);
        }
    }
}

/// The second rank contributes zeros.
#[test]
fn a_planted_fault_differs_from_torch() {
    for fixture in RANKS.map(Fixture::open) {
        for sequence in [false, true] {
            let error = fixture.check(sequence, Fault::Dropped).unwrap_err();
            assert!(error.contains("differs by"), "{error}");
        }
    }
}
