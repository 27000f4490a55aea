//! The loss and gradients of transformers' Qwen3 under torch's pipeline schedules, and the passes of
//! each rank. `scripts/prove/pipeline-training-golden` describes and writes the fixtures.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use meshgrad_ckpt::TensorFile;
use meshgrad_comm::conformance::RewiredRank;
use meshgrad_comm::{Local, Rank, Redistributor};
use meshgrad_data_parallel::{DataParallel, Strategy};
use meshgrad_mesh::Mesh;
use meshgrad_models::hf::{Loader, read_config};
use meshgrad_models::{Compute, Decoder, IGNORE_INDEX, Model, TokenBatch};
use meshgrad_pipeline::Named;
use meshgrad_runtime::{DType, Device, Tensor};
use meshgrad_train::Result;
use meshgrad_train::config::Config;
use meshgrad_train::events::Event;
use meshgrad_train::pipeline::{Cut, Pipeline};
use meshgrad_train::trainer::Trainer;

use crate::matrix::planted::{Planted, PlantedConnector};
use crate::small::{distance, norm};

/// The largest difference from torch, relative to the norm of torch's.
const TOLERANCE: f64 = 5e-6;

type Values = BTreeMap<String, Vec<f32>>;

/// What torch computes under a schedule.
struct Fixture {
    schedule: Named,
    sizes: Vec<usize>,
    /// The passes of each rank.
    orders: Vec<Vec<String>>,
    expected: Values,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/pipeline")
}

impl Fixture {
    fn open(schedule: Named) -> Fixture {
        let file = TensorFile::open(folder().join(format!("{schedule}.safetensors"))).unwrap();
        let metadata = |key: &str| file.metadata()[key].as_str();
        let tensors = file.tensors().iter().map(|info| {
            let bytes = file.read(&info.name).unwrap();
            let values = bytes.chunks_exact(4).map(|x| f32::from_le_bytes(x.try_into().unwrap()));
            (info.name.clone(), values.collect())
        });
        Fixture {
            schedule,
            sizes: serde_json::from_str(metadata("sizes")).unwrap(),
            orders: serde_json::from_str(metadata("orders")).unwrap(),
            expected: tensors.collect(),
        }
    }

    /// What the ranks have together, and the passes of each.
    fn on_ranks(&self, fault: Planted) -> std::result::Result<(Values, Vec<Vec<String>>), String> {
        let mesh = Mesh::new(&[self.orders.len()], &["pp"]).unwrap();
        let ran = Local::run(self.orders.len(), |rank| {
            let connector = PlantedConnector { fault, experts: 0, connector: rank.connector() };
            let rank = RewiredRank::new(rank, Arc::new(connector));
            let cut = Cut::new(&mesh, "pp", rank.rank(), self.schedule, &self.sizes)?;
            Redistributor::new(&rank).run_on(&cut.stage_mesh()?, || step(&rank, &mesh, &cut))
        });
        let (values, orders): (Vec<Values>, _) =
            ran.map_err(|error| error.to_string())?.into_iter().unzip();
        Ok((values.into_iter().flatten().collect(), orders))
    }

    /// What differs from torch.
    fn differences(&self, values: &Values) -> Vec<String> {
        assert!(values.keys().eq(self.expected.keys()), "{:?}", values.keys());
        let differs = |(name, expected): (&String, &Vec<f32>)| {
            assert_eq!(values[name].len(), expected.len(), "{name}");
            let (difference, size) = (distance(&values[name], expected), norm(expected));
            let is_near = difference <= TOLERANCE * size;
            (!is_near).then(|| format!("{name} differs by {difference:.1e} of {size:.1e}"))
        };
        self.expected.iter().filter_map(differs).collect()
    }
}

/// All microbatches.
fn batches(device: &Device) -> Result<Vec<TokenBatch>> {
    let file = TensorFile::open(folder().join("input.safetensors"))?;
    let shape = file.tensors()[0].shape.clone();
    let values = |name: &str| -> Result<Vec<i64>> {
        let bytes = file.read(name)?;
        Ok(bytes.chunks_exact(8).map(|x| i64::from_le_bytes(x.try_into().unwrap())).collect())
    };
    let (ids, labels) = (values("input_ids")?, values("labels")?);
    let tensor = |values: &[i64]| Tensor::from_slice(device, &shape[1..], values)?.as_replicated();
    let each = shape[1..].iter().product();
    let both = ids.chunks_exact(each).zip(labels.chunks_exact(each));
    both.map(|(ids, labels)| Ok(TokenBatch::new(&tensor(ids)?, &tensor(labels)?))).collect()
}

/// The gradients of a rank's stages, the loss on the rank of the last one, and the passes of the rank.
fn step(rank: &dyn Rank, mesh: &Mesh, cut: &Cut) -> Result<(Values, Vec<String>)> {
    let (device, compute) = (rank.device(), Compute::new(DType::F32));
    let whole = Decoder::new(&*read_config(&folder())?)?;
    let pipeline =
        Pipeline::learn(cut, rank, &whole, compute, |meta| Ok(batches(meta)?.swap_remove(0)))?;
    let part = whole.part(&cut.own_stages())?;
    DataParallel::of_stage(rank, mesh, "pp", Strategy::replicate([""; 0]))?.apply(&part)?;
    Loader::new(&folder()).ignore_unused().fill(&part, device)?;
    let mut trainer = Trainer::of(part).pipeline(pipeline).build(&Config::default(), device)?;

    let kept: Arc<Mutex<(Values, Vec<String>)>> = Arc::default();
    let keep = kept.clone();
    trainer.events.subscribe("kept", move |event| {
        let (values, passes) = &mut *keep.lock().unwrap();
        match event {
            Event::ForwardBackwardFinished { gradients, .. } => {
                for (param, gradient) in gradients {
                    values.extend(named(param.name(), gradient.local().to_vec()?));
                }
            }
            Event::ActionFinished { action, .. } => {
                passes.extend(action.computes().map(|pass| pass.to_string()));
            }
            _ => (),
        }
        Ok(())
    });
    let batches = batches(device)?;
    let mut counted = 0.0;
    for batch in &batches {
        let labels = batch.labels.local().to_vec::<i64>()?;
        counted += labels.iter().filter(|label| **label != IGNORE_INDEX).count() as f64;
    }
    let loss = trainer.step(1, batches.into_iter().map(Ok))?.wait(&trainer.model)?.loss;
    let (mut values, passes) = std::mem::take(&mut *kept.lock().unwrap());
    values.insert("loss".to_owned(), vec![(loss * counted) as f32]);
    Ok((values, passes))
}

/// A gradient under its names in the fixture: transformers stores gate and up apart.
fn named(name: &str, gradient: Vec<f32>) -> Vec<(String, Vec<f32>)> {
    let Some(mlp) = name.strip_suffix("gate_up_proj.weight") else {
        return vec![(format!("grad.{name}"), gradient)];
    };
    let halves = gradient.chunks_exact(gradient.len() / 2).map(<[f32]>::to_vec);
    let parts = ["gate", "up"].map(|part| format!("grad.{mlp}{part}_proj.weight"));
    parts.into_iter().zip(halves).collect()
}

const SCHEDULES: [Named; 3] = [Named::OneFOneB, Named::Interleaved, Named::Zbv];

#[test]
fn loss_gradients_and_passes_are_those_of_torch() {
    for fixture in SCHEDULES.map(Fixture::open) {
        let (values, orders) = fixture.on_ranks(Planted::Nothing).unwrap();
        assert_eq!(orders, fixture.orders, "{}", fixture.schedule);
        assert_eq!(fixture.differences(&values), [""; 0], "{}", fixture.schedule);
    }
}

#[test]
fn planted_faults_differ_from_torch() {
    for fixture in SCHEDULES.map(Fixture::open) {
        for fault in [Planted::DroppedGradient, Planted::StaleActivation] {
            let (values, _) = fixture.on_ranks(fault).unwrap();
            assert_ne!(fixture.differences(&values), [""; 0], "{} {fault:?}", fixture.schedule);
        }
    }
}
