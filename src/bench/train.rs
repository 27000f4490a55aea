//! The training speed of whole models, interleaved with torch: tokens per second, memory and model
//! FLOPs utilization (MFU).

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, bail};
use meshgrad::models::Model;
use meshgrad::models::families::qwen3::Qwen3Config;
use meshgrad::prelude::*;
use meshgrad::train::config::{ComputeDType, Config, NoTables, Override};
use meshgrad_harness::{Options, Peer, PeerOptions, Spread, finish, numbers};
use serde_json::{Value, json};

use super::divided;
use super::shapes::{self, Section, Shapes};
use super::torch::{start_torch, torch_name};
use super::training::{LEARNING_RATE, TimedModel};
use crate::device::{self, OnGpu};

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
    /// Peak dense bf16 TFLOP/s of a GPU, if it is not an A100, H100, H200 or GH200.
    #[arg(long)]
    peak_tflops: Option<f64>,
    /// Train on N ranks that are threads, each with a GPU of its own if there are enough. Nothing is
    /// compared with torch. A step has one microbatch unless `--set train.micro_batch_size` says otherwise.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(2..))]
    ranks: Option<u16>,
    /// Set a key of the training on ranks, as in `--set parallel.pp=2`; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE", requires = "ranks")]
    sets: Vec<Override>,
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
        let gpu = device.properties().gpu.as_ref();
        let known = gpu.and_then(|gpu| gpu.peak_bf16_flops()).map(|peak| 1e-12 * peak);
        let peak = self.peak_tflops.or(known);
        println!("| model | | tokens/s | memory | MFU, 6N + 12LHQT | MFU, 6N + 6LHQT |");
        println!("|---|---|---|---|---|---|");
        let mut findings = Findings::default();
        for train in &shapes.train {
            if let Some(ranks) = self.ranks {
                findings.rows.push(self.on_ranks(usize::from(ranks), cpu, train, peak)?);
                continue;
            }
            // Implementations that do not fit into memory together are timed one after the other.
            let together = if train.alone { 1 } else { Implementation::ALL.len() };
            for who in Implementation::ALL.chunks(together) {
                self.compare(who, train, &device, peak, &mut findings)?;
                device.empty_cache();
            }
        }
        let (rounds, steps) = self.rounds_and_steps();
        let report = json!({
            "bench": "gpu train", "device": device.to_string(), "rounds": rounds, "steps": steps,
            "peak_tflops": peak, "rows": findings.rows, "errors": findings.errors,
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
        peak: Option<f64>,
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
        let rows = running.iter().map(|it| {
            let row = Row { who: it.who.name(), times: &it.times, peak_bytes: it.trainer.peak() };
            row.print(train, &config, peak)
        });
        findings.rows.extend(rows.collect::<anyhow::Result<Vec<Value>>>()?);
        Ok(())
    }

    /// Times a model on ranks; `peak` is that of a GPU.
    fn on_ranks(
        &self,
        ranks: usize,
        cpu: &Device,
        train: &shapes::Train,
        peak: Option<f64>,
    ) -> anyhow::Result<Value> {
        let devices = self.device.of_ranks(ranks, cpu)?;
        let names = devices.iter().flatten().map(ToString::to_string);
        let gpus = names.collect::<BTreeSet<String>>().len().max(1);
        let local = device::local(ranks, devices, cpu);
        let sizes = format!(
            "train.batch_size={0} train.micro_batch_size={0} train.seq_len={1} train.dtype=bf16",
            train.batch, train.tokens
        );
        let sets = sizes.split(' ').map(str::parse).chain(self.sets.iter().cloned().map(Ok));
        let sets: Vec<Override> = sets.collect::<Result<_, _>>()?;
        let config = Config::read::<NoTables>(None, &sets)?;
        let (batch, tokens) = (config.train.batch_size, config.train.seq_len);
        let train = shapes::Train { batch, tokens, ..train.clone() };
        let (model, (rounds, steps)) = (train.config()?, self.rounds_and_steps());
        let measured = divided::time(&config, &model, local, [WARM_UP, rounds, steps])?;
        let who = format!("{ranks} ranks");
        let largest = measured.peaks.iter().max();
        let row = Row { who: &who, times: &measured.times, peak_bytes: json!(largest) };
        let peak = peak.filter(|_| config.train.dtype == ComputeDType::Bf16);
        let mut row = row.print(&train, &model, peak.map(|peak| peak * gpus as f64))?;
        row["ranks"] = ranks.into();
        row["parallel"] = serde_json::to_value(&config.parallel)?;
        row["pipeline"] = serde_json::to_value(&config.pipeline)?;
        row["micro_batch_size"] = config.train.micro_batch_size.into();
        Ok(row)
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
}

/// What was measured of an implementation.
struct Row<'a> {
    who: &'a str,
    /// Seconds per step.
    times: &'a [f64],
    /// Of a GPU's memory.
    peak_bytes: Value,
}

impl Row<'_> {
    /// Prints and returns it; `peak` is in TFLOP/s.
    fn print(
        &self,
        train: &shapes::Train,
        config: &Qwen3Config,
        peak: Option<f64>,
    ) -> anyhow::Result<Value> {
        let tokens = (train.batch * train.tokens) as f64;
        let rates: Vec<f64> = self.times.iter().map(|seconds| tokens / seconds).collect();
        let rate = Spread::of(&rates);
        // A causal mask leaves half of the positions.
        let model = Decoder::new(config)?;
        let mfu = [2 * train.tokens, train.tokens].map(|positions| {
            let tera = 1e-12 * model.flops_per_token(positions).unwrap_or_default();
            peak.map(|peak| tera * rate.median / peak)
        });
        let percent = mfu.map(|mfu| mfu.map_or("-".into(), |mfu| format!("{:.1} %", 100.0 * mfu)));
        let gibibytes = self.peak_bytes.as_f64();
        let gibibytes =
            gibibytes.map_or("-".into(), |bytes| format!("{:.1} GiB", bytes / f64::from(1 << 30)));
        let [full, causal] = percent;
        let Row { who, .. } = self;
        println!("| {} | {who} | {rate} | {gibibytes} | {full} | {causal} |", train.what);
        Ok(json!({
            "model": train.what, "who": who, "batch": train.batch, "tokens": train.tokens,
            "alone": train.alone, "tokens_per_s": rate.json(), "peak_bytes": self.peak_bytes,
            "mfu_full_attention": mfu[0], "mfu_causal_attention": mfu[1],
        }))
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
