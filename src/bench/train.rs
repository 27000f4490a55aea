//! How fast whole models train, and torch's, in turns: tokens a second, memory, and which part of
//! the GPU's arithmetic that is.

use std::path::PathBuf;

use anyhow::{Context, bail};
use meshgrad::models::config::Qwen3Config;
use meshgrad::prelude::*;
use meshgrad_harness::{Options, Peer, PeerOptions, Spread, finish, numbers};
use serde_json::{Value, json};

use super::beside::{beside, torch_name};
use super::ours::{LEARNING_RATE, Ours};
use super::shapes::{self, Section, Shapes};
use crate::device::OnGpu;

/// Train the models of benches/shapes.toml for some steps, beside torch.
#[derive(clap::Args)]
pub(crate) struct Train {
    #[command(flatten)]
    device: OnGpu,
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    peer: PeerOptions,
    /// How often the contestants take turns.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Other models than those of benches/shapes.toml, in a file written like it.
    #[arg(long, value_name = "FILE")]
    shapes: Option<PathBuf>,
    /// Steps of a turn.
    #[arg(long, default_value_t = 3)]
    steps: usize,
    /// The most dense bf16 TFLOP/s of the GPU, by its data sheet: an H100 or H200 SXM has 989.5.
    #[arg(long, default_value_t = 989.5)]
    peak_tflops: f64,
}

/// Steps before any that count: kernels are loaded, compiled, and memory is taken.
const WARM_UP: usize = 2;

/// The contestants.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    Meshgrad,
    Torch,
    TorchCompiled,
}

impl Who {
    const ALL: [Who; 3] = [Who::Meshgrad, Who::Torch, Who::TorchCompiled];

    fn name(self) -> &'static str {
        match self {
            Who::Meshgrad => "meshgrad",
            Who::Torch => "torch",
            Who::TorchCompiled => "torch.compile",
        }
    }
}

/// Somebody who trains.
trait Trainer {
    /// Seconds of a step, the mean of some in a row.
    fn turn(&mut self, steps: usize) -> anyhow::Result<f64>;

    /// The most bytes of the device's memory so far, if known.
    fn peak(&self) -> Value;
}

struct Contestant {
    who: Who,
    trainer: Box<dyn Trainer>,
    /// Seconds of a step, turn by turn.
    times: Vec<f64>,
}

/// What has become known.
#[derive(Default)]
struct Findings {
    rows: Vec<Value>,
    /// Who could not train what, and why.
    errors: Vec<Value>,
    versions: Value,
}

impl Findings {
    fn fails(&mut self, who: Who, train: &shapes::Train, error: &anyhow::Error) {
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
            // What does not fit side by side is timed one after the other.
            let together = if train.alone { 1 } else { Who::ALL.len() };
            for who in Who::ALL.chunks(together) {
                self.compete(who, train, &device, &mut findings)?;
                device.empty_cache();
            }
        }
        let (rounds, steps) = self.turns();
        let report = json!({
            "bench": "gpu train", "device": device.to_string(), "rounds": rounds, "steps": steps,
            "peak_tflops": self.peak_tflops, "rows": findings.rows, "errors": findings.errors,
        });
        finish(&self.options, report, findings.versions)?;
        match findings.errors.is_empty() {
            true => Ok(()),
            false => bail!(
                "{} of the contestants failed: see above",
                findings.errors.len()
            ),
        }
    }

    /// Rounds, and steps of a turn.
    fn turns(&self) -> (usize, usize) {
        match self.options.smoke {
            true => (1, 1),
            false => (self.rounds.max(1), self.steps.max(1)),
        }
    }

    /// Lets some contestants train a model in turns. One that fails leaves the others the field.
    fn compete(
        &self,
        who: &[Who],
        train: &shapes::Train,
        device: &Device,
        findings: &mut Findings,
    ) -> anyhow::Result<()> {
        let config = train.config()?;
        let mut contestants = Vec::new();
        for &who in who {
            match self.trainer(who, train, &config, device, findings) {
                Ok(Some(trainer)) => contestants.push(Contestant {
                    who,
                    trainer,
                    times: Vec::new(),
                }),
                Ok(None) => {}
                Err(error) => findings.fails(who, train, &error),
            }
        }
        let (rounds, steps) = self.turns();
        for _ in 0..rounds {
            contestants.retain_mut(|it| match it.trainer.turn(steps) {
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
        let rows = contestants.iter().map(|it| self.row(it, train, &flops));
        findings.rows.extend(rows);
        Ok(())
    }

    /// A contestant that has warmed up; none where no torch is asked for.
    fn trainer(
        &self,
        who: Who,
        train: &shapes::Train,
        config: &Qwen3Config,
        device: &Device,
        findings: &mut Findings,
    ) -> anyhow::Result<Option<Box<dyn Trainer>>> {
        if who == Who::Meshgrad {
            let shape = [train.batch, train.tokens];
            let mut ours = Ours::new(config, shape, DType::BF16, device)?;
            ours.turn(WARM_UP)?;
            return Ok(Some(Box::new(ours)));
        }
        let run = json!({
            "batch": train.batch, "tokens": train.tokens, "model": train.model,
            "device": torch_name(device), "learning_rate": LEARNING_RATE,
            "compiled": who == Who::TorchCompiled,
        });
        let arguments = ["--run", &run.to_string()];
        let Some(peer) = beside(device, &self.peer, "gpu_train.py", &arguments)? else {
            return Ok(None);
        };
        findings.versions = peer.hello.clone();
        let mut torch = Torch {
            peer,
            peak: Value::Null,
        };
        torch.turn(WARM_UP)?;
        Ok(Some(Box::new(torch)))
    }

    /// Prints a contestant's row and returns it.
    fn row(&self, contestant: &Contestant, train: &shapes::Train, flops: &Flops) -> Value {
        let (who, peak) = (contestant.who.name(), contestant.trainer.peak());
        let tokens = (train.batch * train.tokens) as f64;
        let times = contestant.times.iter();
        let rates: Vec<f64> = times.map(|seconds| tokens / seconds).collect();
        let rate = Spread::of(&rates);
        let mfu = |flops: f64| 1e-12 * flops * rate.median / self.peak_tflops;
        let (full, causal) = (mfu(flops.full), mfu(flops.causal));
        let gibibytes = peak.as_f64().map_or("-".into(), |bytes| {
            format!("{:.1} GiB", bytes / f64::from(1 << 30))
        });
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

/// Floating-point operations a token of a step, without any that are done twice (Chowdhery et al.
/// 2022, PaLM, appendix B): 6 for each parameter that the token is multiplied with, and 12 L H Q T
/// for attention, of which a causal mask leaves half. H heads of Q features, T tokens in a row.
struct Flops {
    full: f64,
    causal: f64,
}

impl Flops {
    fn of(config: &Qwen3Config, train: &shapes::Train) -> Flops {
        let products = 6.0 * config.parameter_count().active_in_matmuls() as f64;
        let heads = config.num_hidden_layers * config.num_attention_heads * config.head_dim();
        let attention = 12.0 * (heads * train.tokens) as f64;
        Flops {
            full: products + attention,
            causal: products + 0.5 * attention,
        }
    }
}

struct Torch {
    peer: Peer,
    peak: Value,
}

impl Trainer for Torch {
    fn turn(&mut self, steps: usize) -> anyhow::Result<f64> {
        let answer = self.peer.ask(&json!({"steps": steps}))?;
        self.peak = answer["peak_bytes"].clone();
        let seconds = numbers(&answer["seconds"]);
        seconds.first().copied().context("torch gave no time")
    }

    fn peak(&self) -> Value {
        self.peak.clone()
    }
}

impl Trainer for Ours {
    fn turn(&mut self, steps: usize) -> anyhow::Result<f64> {
        Ours::turn(self, steps)
    }

    fn peak(&self) -> Value {
        json!(Ours::peak(self))
    }
}
