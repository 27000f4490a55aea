//! Training on a GPU, by default the emulator: losses and gradients agree with the CPU's, runs move
//! between devices, a step never blocks the host, and a step can be captured as a graph.

#[path = "training_on_gpu/experts.rs"]
mod experts;

use std::sync::LazyLock;

use approx::assert_relative_eq;
use meshgrad::models::{Balancing, Compute, Loss, Model, TokenBatch};
use meshgrad::prelude::*;
use meshgrad::runtime::Error;
use meshgrad::train::batches::TokenBatches;
use meshgrad::train::config::{Config, TrainConfig};
use meshgrad::train::configured::dtype;
use meshgrad::train::data::Data;
use meshgrad::train::decoder;
use meshgrad::train::optimizer::Optimizer;
use meshgrad::train::run_folder::RunFolder;
use meshgrad::train::sampler::Order;
use meshgrad::train::session::Session;
use meshgrad::train::trainer::{PendingStep, Trainer};

/// A small mixture-of-experts model with grouped queries.
const CONFIG: &str = r#"
    train = { steps = 5, batch_size = 2, micro_batch_size = 2, seq_len = 64, dtype = "f32" }
    data = { paths = ["TEXT"], tokenizer = "byte", val_fraction = 0.0 }
    balancing = { z_loss_coef = 0.001 }
    [model]
    model_type = "qwen3_moe"
    hidden_size = 64
    num_hidden_layers = 2
    num_attention_heads = 4
    num_key_value_heads = 2
    head_dim = 16
    num_experts = 4
    num_experts_per_tok = 2
    moe_intermediate_size = 48
    router_aux_loss_coef = 0.01
"#;

/// Overrides for a dense model.
const DENSE: &[&str] = &[
    "model.model_type=qwen3",
    "model.num_experts=0",
    "model.num_experts_per_tok=0",
    "model.intermediate_size=96",
];

/// A temporary file with the text, so that the test also runs without a checkout.
static TEXT: LazyLock<tempfile::NamedTempFile> = LazyLock::new(|| {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), include_str!("../LICENSE-APACHE")).unwrap();
    file
});

fn config(sets: &[&str]) -> Config {
    let text = CONFIG.replace("TEXT", TEXT.path().to_str().unwrap());
    let sets: Vec<_> = sets.iter().map(|set| set.parse().unwrap()).collect();
    Config::parse::<decoder::Tables>(&text, "the test", &sets).unwrap()
}

/// The machine's GPU with `MESHGRAD_TEST_GPU=cuda`, otherwise the emulator's.
fn gpu() -> Device {
    match std::env::var("MESHGRAD_TEST_GPU").as_deref() {
        Ok("cuda") => Device::cuda(0).unwrap(),
        _ => Device::emulator(0).unwrap(),
    }
}

/// The data, the sample order and the trainer of a run.
struct Run {
    config: Config,
    device: Device,
    data: Data,
    order: Order,
    trainer: Trainer<Decoder>,
    _place: tempfile::TempDir,
}

impl Run {
    fn new(config: &Config, device: &Device) -> Run {
        let place = tempfile::tempdir().unwrap();
        let folder = RunFolder::open(place.path()).unwrap();
        let data = Data::prepare(&config.data, &folder).unwrap();
        let TrainConfig { batch_size, seq_len, seed, .. } = config.train;
        let model = decoder::model(config, data.tokenizer.vocab_size(), None).unwrap();
        model.materialize(device, seed).unwrap();
        Run {
            config: config.clone(),
            device: device.clone(),
            order: data.order(seq_len, batch_size, seed).unwrap(),
            trainer: Trainer::new(model, config, device).unwrap(),
            data,
            _place: place,
        }
    }

    fn step(&mut self, step: u64) -> PendingStep {
        let tokens = self.data.tokens.training();
        let batches = TokenBatches::new(tokens, &self.device);
        let TrainConfig { batch_size, micro_batch_size, .. } = self.config.train;
        let microbatches = batches.of_step(&self.order, step, batch_size, micro_batch_size);
        self.trainer.step(step, microbatches).unwrap()
    }

    fn losses(&mut self, steps: u64) -> Vec<f64> {
        let step = |step| {
            let pending = self.step(step);
            pending.wait(&self.trainer.model).unwrap().loss
        };
        (1..=steps).map(step).collect()
    }
}

/// In f32 each loss of five steps agrees with the CPU's to 1e-4, with and without experts and with
/// and without activation checkpointing.
#[test]
fn losses_agree_with_the_cpu() {
    for sets in [
        &[] as &[&str],
        DENSE,
        &["train.activation_checkpointing=true", "train.micro_batch_size=1"],
    ] {
        let config = config(sets);
        let expected = Run::new(&config, &Device::cpu()).losses(5);
        let actual = Run::new(&config, &gpu()).losses(5);
        assert_relative_eq!(actual[..], expected[..], max_relative = 1e-4);
        assert!(expected[4] < expected[0], "the model learns: {expected:?}");
    }
}

/// The gradients of all parameters after one backward pass, concatenated.
fn gradient(config: &Config, device: &Device) -> Vec<f64> {
    let run = Run::new(config, device);
    let model = &run.trainer.model;
    let mut grads = Grads::new(&model.params()).unwrap();
    backward(model, &tokens(device), dtype(config.train.dtype), &mut grads);
    let all = grads.all().unwrap();
    let values = |(_, gradient): &(Param, Tensor)| gradient.to_vec::<f32>().unwrap();
    all.iter().flat_map(values).map(f64::from).collect()
}

/// The GPU's bf16 gradient is at most twice as far (in 1 - cos) from the CPU's f32 gradient as the
/// CPU's bf16 gradient is, and has the f32 gradient's norm to 1 %.
#[test]
fn bf16_gradients_agree_with_the_cpu() {
    let exact = gradient(&config(&[]), &Device::cpu());
    let bf16 = config(&["train.dtype=bf16"]);
    let on_cpu = gradient(&bf16, &Device::cpu());
    let on_gpu = gradient(&bf16, &gpu());

    let (cpu_angle, gpu_angle) = (angle(&exact, &on_cpu), angle(&exact, &on_gpu));
    assert!(
        gpu_angle <= 2.0 * cpu_angle && gpu_angle < 0.01,
        "1 - cos {gpu_angle:e}, the CPU's {cpu_angle:e}"
    );
    let norms = [&on_gpu, &exact].map(|gradient| dot(gradient, gradient).sqrt());
    let difference = (norms[0] / norms[1] - 1.0).abs();
    assert!(difference < 0.01, "norms {norms:?}");
}

/// 1 - cos of the angle between two vectors.
fn angle(a: &[f64], b: &[f64]) -> f64 {
    1.0 - dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn tokens(device: &Device) -> Tensor {
    let ids: Vec<i64> = (0..128).map(|i| (i * i + 7 * i) % 256).collect();
    Tensor::from_slice(device, &[2, 64], &ids).unwrap()
}

fn backward(model: &Decoder, ids: &Tensor, dtype: DType, grads: &mut Grads) -> Loss {
    let compute = Compute::new(dtype);
    let balancing = Balancing { auxiliary: 0.01, z: 0.001, ..Balancing::default() };
    let model = model.clone().balanced(balancing);
    let batch = TokenBatch::new(ids, ids);
    let (loss, tape) = Tape::record(|| model.loss(&batch, compute)).unwrap();
    tape.backward(&loss.total, grads).unwrap();
    loss
}

/// A run started on the CPU and resumed on a GPU, or the reverse, has the losses of a run on the
/// CPU, to 1e-4.
#[test]
fn runs_move_between_devices() {
    let config = config(&["train.steps=4"]);
    let gpu = gpu();
    let losses = |devices: [&Device; 2]| {
        let place = tempfile::tempdir().unwrap();
        for (device, stop_after) in devices.into_iter().zip([Some(2), None]) {
            let session = Session::new(&config, device);
            decoder::train(session.run_dir(place.path()).stop_after(stop_after)).unwrap();
        }
        let metrics = place.path().join("metrics.jsonl");
        let records = meshgrad::train::metrics::read(&metrics).unwrap();
        let launches: Vec<bool> = records.iter().map(|it| it.kernel_launches > Some(50)).collect();
        let on_gpu = devices.map(|device| device.is_gpu());
        assert_eq!(launches, [on_gpu[0], on_gpu[0], on_gpu[1], on_gpu[1]]);
        records.iter().map(|it| it.loss).collect::<Vec<f64>>()
    };

    let cpu = Device::cpu();
    let stayed = losses([&cpu, &cpu]);
    for devices in [[&cpu, &gpu], [&gpu, &cpu]] {
        assert_relative_eq!(losses(devices)[..], stayed[..], max_relative = 1e-4);
    }
}

/// The host enqueues a step without waiting for the GPU.
#[test]
fn a_step_never_blocks_the_host() {
    for sets in [
        &["train.dtype=f32"] as &[&str],
        &["train.dtype=bf16", "train.micro_batch_size=1"],
        &["balancing.bias_update_rate=0.01"],
    ] {
        let gpu = gpu();
        let mut run = Run::new(&config(sets), &gpu);
        let before = gpu.waits();
        let pending: Vec<PendingStep> = (1..=3).map(|step| run.step(step)).collect();
        assert_eq!(gpu.waits(), before, "{sets:?}");
        for step in pending {
            assert!(step.wait(&run.trainer.model).unwrap().loss.is_finite());
        }
        assert!(gpu.waits() > before, "reading waits");
    }
}

/// On a GPU too, a resumed run gives the same bits as an uninterrupted one.
#[test]
fn resumed_equals_uninterrupted() {
    let (config, gpu) = (config(&["train.steps=3"]), gpu());
    let weights = |stops: &[Option<u64>]| {
        let place = tempfile::tempdir().unwrap();
        for stop_after in stops {
            let session = Session::new(&config, &gpu);
            decoder::train(session.run_dir(place.path()).stop_after(*stop_after)).unwrap();
        }
        let step = place.path().join("step-000003");
        ["model.safetensors", "trainer/exp_avg/model.safetensors"]
            .map(|file| std::fs::read(step.join(file)).unwrap())
    };
    assert!(weights(&[Some(1), None]) == weights(&[None]));
}

/// Two runs of one configuration, on separate devices, give the same bits of losses and parameters.
#[test]
fn two_runs_give_the_same_bits() {
    for dtype in ["f32", "bf16"] {
        let config = config(&[&format!("train.dtype={dtype}")]);
        let run = || {
            let mut run = Run::new(&config, &gpu());
            let losses = run.losses(2).into_iter().map(f64::to_bits);
            let losses: Vec<u64> = losses.collect();
            (losses, bits(&run.trainer.model))
        };
        assert!(run() == run(), "{dtype}: two runs differ");
    }
}

/// The bits of all parameters.
fn bits(model: &Decoder) -> Vec<u32> {
    let params = model.params();
    let values = |param: &Param| param.value().unwrap().to_vec::<f32>().unwrap();
    params.iter().flat_map(values).map(f32::to_bits).collect()
}

/// A model with its optimizer, for single steps.
struct Stepping {
    model: Decoder,
    optimizer: Optimizer,
    ids: Tensor,
    dtype: DType,
}

impl Stepping {
    fn new(config: &Config, device: &Device) -> Stepping {
        let model_config = decoder::model_config(config, 257).unwrap();
        let model = Decoder::materialized(&*model_config, device, 7).unwrap();
        let optimizer = Optimizer::new(&model, device, &config.optimizer, 1).unwrap();
        Stepping { model, optimizer, ids: tokens(device), dtype: dtype(config.train.dtype) }
    }

    /// A step that reads its number and learning rate from device memory, where `begin` writes
    /// them.
    fn work(&mut self) -> Tensor {
        let loss = backward(&self.model, &self.ids, self.dtype, self.optimizer.grads());
        self.optimizer.apply(&loss.weight).unwrap();
        loss.sum
    }

    fn begin(&self, step: u64) {
        self.optimizer.begin(step, 1e-3).unwrap();
    }
}

/// A step captured as a graph and replayed gives the bits of eager steps.
#[test]
fn a_captured_step_replays_with_the_same_bits() {
    for dtype in ["f32", "bf16"] {
        let config = config(&[&format!("train.dtype={dtype}")]);
        let gpu = gpu();
        let (mut eager, mut captured) =
            (Stepping::new(&config, &gpu), Stepping::new(&config, &gpu));
        let mut losses = Vec::new();
        for step in 1..=4 {
            eager.begin(step);
            losses.push(eager.work().item::<f32>().unwrap());
        }

        // The first step allocates the memory that later ones reuse.
        captured.begin(1);
        assert_eq!(captured.work().item::<f32>().unwrap(), losses[0]);
        let mut graph = gpu.capture(|| Ok::<_, Error>(captured.work())).unwrap();
        for (step, loss) in (2..=4).zip(&losses[1..]) {
            captured.begin(step);
            graph.launch().unwrap();
            assert_eq!(graph.results().item::<f32>().unwrap(), *loss, "step {step}");
        }
        drop(graph);
        assert!(bits(&captured.model) == bits(&eager.model), "{dtype}");
    }
}
