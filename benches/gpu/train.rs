//! How fast whole models train, and torch's, in turns: tokens a second, memory, and which part of
//! the GPU's arithmetic that is.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use meshgrad::models::config::Qwen3Config;
use meshgrad::models::{Balancing, Compute};
use meshgrad::prelude::*;
use meshgrad::train::config::OptimizerConfig;
use meshgrad::train::optimizer::Optimizer;
use serde_json::{Value, json};

use crate::Where;
use crate::measure::{Options, Spread, finish, seconds};
use crate::peer::{Peer, PeerOptions, numbers};
use crate::shapes::{self, Shapes};

/// Trains the models of benches/shapes.toml for some steps, beside torch.
#[derive(clap::Args)]
pub(crate) struct Train {
    /// Where to train. The emulator's times say nothing: use --smoke.
    #[arg(long)]
    device: Where,
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    peer: PeerOptions,
    /// How often the contestants take turns.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Steps of a turn.
    #[arg(long, default_value_t = 3)]
    steps: usize,
    /// The most dense bf16 TFLOP/s of the GPU, by its data sheet [default: of an H100 or H200 SXM].
    #[arg(long, default_value_t = 989.5)]
    peak_tflops: f64,
}

const LEARNING_RATE: f64 = 1e-4;

impl Train {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let shapes = Shapes::read(None, self.options.smoke)?;
        let (rounds, steps) = match self.options.smoke {
            true => (1, 1),
            false => (self.rounds.max(1), self.steps.max(1)),
        };
        println!("| model | | tokens/s | memory | MFU, 6N + 12LHQT | MFU, 6N + 6LHQT |");
        println!("|---|---|---|---|---|---|");
        let (mut rows, mut versions) = (Vec::new(), Value::Null);
        for train in &shapes.train {
            let config = config(train)?;
            let mut torch = self.torch(train)?;
            if let Some(torch) = &torch {
                versions = torch.hello.clone();
            }
            let mut ours = Ours::new(&config, train, &self.device.device()?)?;
            let (mut our_times, mut torch_times) = (Vec::new(), Vec::new());
            let mut torch_peak = Value::Null;
            ours.turn(2)?; // loads kernels, fills the allocator's cache
            for _ in 0..rounds {
                our_times.push(ours.turn(steps)?);
                if let Some(torch) = &mut torch {
                    let answer = torch.ask(&json!({"steps": steps}))?;
                    torch_times.extend(numbers(&answer["seconds"]));
                    torch_peak = answer["peak_bytes"].clone();
                }
            }
            let flops = Flops::of(&config, train);
            let peak = json!(ours.device.memory().peak);
            rows.push(self.row("meshgrad", train, &flops, &our_times, &peak));
            if !torch_times.is_empty() {
                rows.push(self.row("torch", train, &flops, &torch_times, &torch_peak));
            }
        }
        let report = json!({
            "bench": "gpu train", "rounds": rounds, "steps": steps,
            "peak_tflops": self.peak_tflops, "rows": rows,
        });
        finish(&self.options, report, versions)
    }

    fn torch(&self, train: &shapes::Train) -> anyhow::Result<Option<Peer>> {
        let device = match self.device {
            Where::Cuda => "cuda",
            Where::Emulator => "cpu",
        };
        let request = json!({
            "batch": train.batch, "tokens": train.tokens, "model": train.model, "device": device,
            "learning_rate": LEARNING_RATE,
        });
        let arguments = ["--run", &request.to_string()];
        let start = |python: &Path| Peer::start(python, "gpu_train.py", &arguments);
        let mut peer = self.peer.torch.as_deref().map(start).transpose()?;
        if let Some(peer) = &mut peer {
            peer.pause = Duration::ZERO;
        }
        Ok(peer)
    }

    /// Prints a contestant's row and returns it. `times` are seconds of a step.
    fn row(
        &self,
        who: &str,
        train: &shapes::Train,
        flops: &Flops,
        times: &[f64],
        peak: &Value,
    ) -> Value {
        let tokens = (train.batch * train.tokens) as f64;
        let rates: Vec<f64> = times.iter().map(|seconds| tokens / seconds).collect();
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
            "tokens_per_s": rate.json(), "peak_bytes": peak,
            "mfu_full_attention": full, "mfu_causal_attention": causal,
        })
    }
}

fn config(train: &shapes::Train) -> anyhow::Result<Qwen3Config> {
    let text = serde_json::to_string(&train.model)?;
    Qwen3Config::from_json(&text).with_context(|| format!("the model of `{}`", train.what))
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

/// Our contestant.
struct Ours {
    device: Device,
    model: Qwen3,
    optimizer: Optimizer,
    grads: Grads,
    ids: Tensor,
    step: u64,
}

impl Ours {
    fn new(config: &Qwen3Config, train: &shapes::Train, device: &Device) -> anyhow::Result<Ours> {
        let model = Qwen3::materialized(config, device, 1)?;
        let (optimizer, grads) = Optimizer::new(&model, device, &OptimizerConfig::default())?;
        let (shape, vocabulary) = ([train.batch, train.tokens], config.vocab_size);
        let ids: Vec<i64> = (0..shape[0] * shape[1])
            .map(|at| ((at * 7919 + at / 3) % vocabulary) as i64)
            .collect();
        Ok(Ours {
            device: device.clone(),
            model,
            optimizer,
            grads,
            ids: Tensor::from_slice(device, &shape, &ids)?,
            step: 0,
        })
    }

    /// Seconds of a step, the mean of some in a row.
    fn turn(&mut self, steps: usize) -> anyhow::Result<f64> {
        self.device.synchronize()?;
        let (seconds, done) = seconds(|| -> anyhow::Result<()> {
            for _ in 0..steps {
                self.step()?;
            }
            Ok(self.device.synchronize()?)
        });
        done?;
        Ok(seconds / steps as f64)
    }

    fn step(&mut self) -> anyhow::Result<()> {
        self.step += 1;
        let compute = Compute {
            dtype: DType::BF16,
            checkpointing: false,
        };
        let ids = &self.ids;
        let (loss, tape) = Tape::record(|| {
            let loss = self.model.loss(ids, ids, compute, Balancing::default());
            Ok(loss)
        })?;
        let loss = loss?;
        let one = values::full(&self.device, &[], DType::F32, 1.0)?;
        tape.backward(&[(&loss.total, one)], &mut self.grads)?;
        let (grads, weight) = (&mut self.grads, &loss.weight);
        self.optimizer
            .step(grads, weight, self.step, LEARNING_RATE)?;
        Ok(())
    }
}
