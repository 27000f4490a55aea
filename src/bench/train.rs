//! The training speed of whole models, interleaved with torch: tokens per second, memory and model
//! FLOPs utilization (MFU).

use std::path::PathBuf;

use anyhow::{Context, bail};
use meshgrad::models::config::Qwen3Config;
use meshgrad::prelude::*;
use meshgrad_harness::{Options, Peer, PeerOptions, Spread, finish, numbers};
use serde_json::{Value, json};

use super::shapes::{self, Section, Shapes};
use super::torch::{start_torch, torch_name};
use super::training::{LEARNING_RATE, TimedModel};
use crate::device::OnGpu;

/// Time training steps of the models in benches/shapes.toml, compared with torch.
#[derive(clap::Args)]
pub(crate) struct Train {
    #[command(flatten)]
    device: OnGpu,
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    peer: PeerOptions,
    /// Interleaved measurements of each implementation.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// A file with other models: the keys of one section of benches/shapes.toml.
    #[arg(long, value_name = "FILE")]
    shapes: Option<PathBuf>,
    /// Steps per measurement.
    #[arg(long, default_value_t = 3)]
    steps: usize,
    /// Peak dense bf16 TFLOP/s of the GPU by its data sheet; 989.5 for H100 and H200 SXM.
    #[arg(long, default_value_t = 989.5)]
    peak_tflops: f64,
}

/// Steps before the first measurement, in which kernels are loaded and compiled and memory is
/// allocated.
const WARM_UP: usize = 2;

/// The implementations.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Implementation {
    Meshgrad,
    Torch,
    TorchCompiled,
}

impl Implementation {
    const ALL: [Implementation; 3] =
        [Implementation::Meshgrad, Implementation::Torch, Implementation::TorchCompiled];

    fn name(self) -> &'static str {
        match self {
            Implementation::Meshgrad => "meshgrad",
            Implementation::Torch => "torch",
            Implementation::TorchCompiled => "torch.compile",
        }
    }
}

/// A model in training.
trait Trainer {
    /// Seconds per step, the mean of `steps` consecutive ones.
    fn time_steps(&mut self, steps: usize) -> anyhow::Result<f64>;

    /// Peak bytes of the device's memory, if known.
    fn peak(&self) -> Value;
}

struct Running {
    who: Implementation,
    trainer: Box<dyn Trainer>,
    /// Seconds per step, by measurement.
    times: Vec<f64>,
}

/// The results so far.
#[derive(Default)]
struct Findings {
    rows: Vec<Value>,
    /// Implementations that failed, with model and error.
    errors: Vec<Value>,
    versions: Value,
}

impl Findings {
    fn fails(&mut self, who: Implementation, train: &shapes::Train, error: &anyhow::Error) {
        eprintln!("{} failed at {}: {error:#}", who.name(), train.what);
        self.errors.push(json!({
            "who": who.name(), "model": train.what, "error": format!("{error:#}"),
        }));
    }
}

impl Train {
    pub(crate) fn run(&self, cpu: &Device) -> anyhow::Result<()> {
        let section = match self.options.smoke {
            true => Section::Smoke,
            false => Section::Gpu,
        };
        let shapes = Shapes::read(self.shapes.as_deref(), section)?;
        let device = self.device.open(cpu)?;
        println!("| model | | tokens/s | memory | MFU, 6N + 12LHQT | MFU, 6N + 6LHQT |");
        println!("|---|---|---|---|---|---|");
        let mut findings = Findings::default();
        for train in &shapes.train {
            // Implementations that do not fit into memory together are timed one after the other.
            let together = if train.alone { 1 } else { Implementation::ALL.len() };
            for who in Implementation::ALL.chunks(together) {
                self.compare(who, train, &device, &mut findings)?;
                device.empty_cache();
            }
        }
        let (rounds, steps) = self.rounds_and_steps();
        let report = json!({
            "bench": "gpu train", "device": device.to_string(), "rounds": rounds, "steps": steps,
            "peak_tflops": self.peak_tflops, "rows": findings.rows, "errors": findings.errors,
        });
        finish(&self.options, report, findings.versions)?;
        match findings.errors.is_empty() {
            true => Ok(()),
            false => bail!("failures: {}; see above", findings.errors.len()),
        }
    }

    /// Rounds, and steps per measurement.
    fn rounds_and_steps(&self) -> (usize, usize) {
        match self.options.smoke {
            true => (1, 1),
            false => (self.rounds.max(1), self.steps.max(1)),
        }
    }

    /// Times some implementations on a model, interleaved. One that fails is dropped.
    fn compare(
        &self,
        who: &[Implementation],
        train: &shapes::Train,
        device: &Device,
        findings: &mut Findings,
    ) -> anyhow::Result<()> {
        let config = train.config()?;
        let mut running = Vec::new();
        for &who in who {
            match self.trainer(who, train, &config, device, findings) {
                Ok(Some(trainer)) => running.push(Running { who, trainer, times: Vec::new() }),
                Ok(None) => {}
                Err(error) => findings.fails(who, train, &error),
            }
        }
        let (rounds, steps) = self.rounds_and_steps();
        for _ in 0..rounds {
            running.retain_mut(|it| match it.trainer.time_steps(steps) {
                Ok(seconds) => {
                    it.times.push(seconds);
                    true
                }
                Err(error) => {
                    findings.fails(it.who, train, &error);
                    false
                }
            });
        }
        let flops = Flops::of(&config, train);
        let rows = running.iter().map(|it| self.row(it, train, &flops));
        findings.rows.extend(rows);
        Ok(())
    }

    /// An implementation after its warm-up; `None` for torch if it is not requested.
    fn trainer(
        &self,
        who: Implementation,
        train: &shapes::Train,
        config: &Qwen3Config,
        device: &Device,
        findings: &mut Findings,
    ) -> anyhow::Result<Option<Box<dyn Trainer>>> {
        if who == Implementation::Meshgrad {
            let shape = [train.batch, train.tokens];
            let mut model = TimedModel::new(config, shape, DType::BF16, device)?;
            model.time_steps(WARM_UP)?;
            return Ok(Some(Box::new(model)));
        }
        let run = json!({
            "batch": train.batch, "tokens": train.tokens, "model": train.model,
            "device": torch_name(device), "learning_rate": LEARNING_RATE,
            "compiled": who == Implementation::TorchCompiled,
        });
        let arguments = ["--run", &run.to_string()];
        let Some(peer) = start_torch(device, &self.peer, "gpu_train.py", &arguments)? else {
            return Ok(None);
        };
        findings.versions = peer.hello.clone();
        let mut torch = Torch { peer, peak: Value::Null };
        torch.time_steps(WARM_UP)?;
        Ok(Some(Box::new(torch)))
    }

    /// Prints and returns the row of an implementation.
    fn row(&self, it: &Running, train: &shapes::Train, flops: &Flops) -> Value {
        let (who, peak) = (it.who.name(), it.trainer.peak());
        let tokens = (train.batch * train.tokens) as f64;
        let times = it.times.iter();
        let rates: Vec<f64> = times.map(|seconds| tokens / seconds).collect();
        let rate = Spread::of(&rates);
        let mfu = |flops: f64| 1e-12 * flops * rate.median / self.peak_tflops;
        let (full, causal) = (mfu(flops.full), mfu(flops.causal));
        let gibibytes = peak
            .as_f64()
            .map_or("-".into(), |bytes| format!("{:.1} GiB", bytes / f64::from(1 << 30)));
        println!(
            "| {} | {who} | {rate} | {gibibytes} | {:.1} % | {:.1} % |",
            train.what,
            100.0 * full,
            100.0 * causal
        );
        json!({
            "model": train.what, "who": who, "batch": train.batch, "tokens": train.tokens,
            "alone": train.alone, "tokens_per_s": rate.json(), "peak_bytes": peak,
            "mfu_full_attention": full, "mfu_causal_attention": causal,
        })
    }
}

/// Floating-point operations per token of a step, without recomputation (Chowdhery et al. 2022,
/// PaLM, appendix B): 6 per parameter that the token is multiplied by, and 12 L H Q T for
/// attention, half of that with a causal mask. H heads of Q features, T tokens per row.
struct Flops {
    full: f64,
    causal: f64,
}

impl Flops {
    fn of(config: &Qwen3Config, train: &shapes::Train) -> Flops {
        let products = 6.0 * config.parameter_count().active_in_matmuls() as f64;
        let heads = config.num_hidden_layers * config.num_attention_heads * config.head_dim();
        let attention = 12.0 * (heads * train.tokens) as f64;
        Flops { full: products + attention, causal: products + 0.5 * attention }
    }
}

struct Torch {
    peer: Peer,
    peak: Value,
}

impl Trainer for Torch {
    fn time_steps(&mut self, steps: usize) -> anyhow::Result<f64> {
        let answer = self.peer.ask(&json!({"steps": steps}))?;
        self.peak = answer["peak_bytes"].clone();
        let seconds = numbers(&answer["seconds"]);
        seconds.first().copied().context("torch returned no time")
    }

    fn peak(&self) -> Value {
        self.peak.clone()
    }
}

impl Trainer for TimedModel {
    fn time_steps(&mut self, steps: usize) -> anyhow::Result<f64> {
        TimedModel::time_steps(self, steps)
    }

    fn peak(&self) -> Value {
        json!(TimedModel::peak(self))
    }
}
