//! Trains the configuration *tiny* with meshgrad, transformers, hand-written torch and
//! torch.compile, from the same weights and tokens, alternating every few steps.
//!
//! ```text
//! cargo bench --bench train_tiny -- --torch venv/bin/python [--dtype bf16] [--json FILE]
//! cargo bench --bench train_tiny -- --mesh
//! ```
//!
//! 9,185,792 parameters, 8 sequences of 256 tokens per step. Without `--torch` it times meshgrad
//! alone, from its own initial weights. `--mesh` adds meshgrad with sharded tensors on a mesh of one
//! rank, which costs the checks of shardings.

mod learner;
mod tiny;

use std::path::Path;

use clap::{Parser, ValueEnum};
use learner::Learner;
use meshgrad::mesh::Mesh;
use meshgrad::models::families::qwen3::Qwen3Config;
use meshgrad::models::hf;
use meshgrad::prelude::*;
use meshgrad::runtime::with_mesh;
use meshgrad_harness::{Options, Peer, PeerOptions, Spread, finish, numbers, proc_bytes};
use serde_json::{Value, json};
use tiny::{CONFIG, Stream, TOKENS};

const BATCH: usize = 8;

/// Trains tiny with meshgrad and torch.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    peer: PeerOptions,
    /// The dtype of activations; parameters and optimizer state are f32 (autocast in torch).
    #[arg(long, value_enum, default_value_t = Precision::F32)]
    dtype: Precision,
    /// Turns of each implementation.
    #[arg(long, default_value_t = 8)]
    rounds: usize,
    /// Steps per turn.
    #[arg(long, default_value_t = 4)]
    steps: usize,
    /// Adds meshgrad with sharded tensors on a mesh of one rank.
    #[arg(long)]
    mesh: bool,
    /// Warm-up steps, not timed.
    #[arg(long, default_value_t = 3)]
    warmup: usize,
}

#[derive(Clone, Copy, ValueEnum)]
enum Precision {
    F32,
    Bf16,
}

impl Precision {
    fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
        }
    }

    fn dtype(self) -> DType {
        match self {
            Precision::F32 => DType::F32,
            Precision::Bf16 => DType::BF16,
        }
    }
}

fn main() -> anyhow::Result<()> {
    let mut arguments = Arguments::parse();
    if arguments.options.smoke {
        (arguments.rounds, arguments.steps, arguments.warmup) = (1, 1, 0);
    }
    let device = Device::cpu();
    bench(&arguments, &device)
}

fn bench(arguments: &Arguments, device: &Device) -> anyhow::Result<()> {
    let folder = std::env::temp_dir().join(format!("meshgrad-train-tiny-{}", std::process::id()));
    let mut peers = Vec::new();
    if let Some(python) = &arguments.peer.torch {
        peers = start_peers(arguments, python, &folder)?;
    }
    let load = || match peers.is_empty() {
        true => Ok(Decoder::materialized(&Qwen3Config::from_json(CONFIG)?, device, 0)?),
        false => anyhow::Ok(hf::load(&folder, device)?.model),
    };
    let dtype = arguments.dtype.dtype();
    let mut own = vec![(Contestant::new("meshgrad"), Ours::new(load, device, dtype, None)?)];
    if arguments.mesh {
        let mesh = Mesh::new(&[1], &["dp"])?;
        let ours = Ours::new(load, device, dtype, Some(mesh))?;
        own.push((Contestant::new("meshgrad, mesh of one rank"), ours));
    }
    let _ = std::fs::remove_dir_all(&folder);

    for (contestant, trainer) in &mut own {
        for _ in 0..arguments.warmup {
            contestant.losses.push(trainer.step()?.0);
        }
    }
    for _ in 0..arguments.rounds {
        for (contestant, trainer) in &mut own {
            for _ in 0..arguments.steps {
                let (loss, parts) = trainer.step()?;
                contestant.take(loss, parts);
            }
        }
        for (peer, contestant) in &mut peers {
            let answer = peer.ask(&json!({"steps": arguments.steps}))?;
            let losses = numbers(&answer["loss"]);
            let parts = answer["part_s"].as_array().cloned().unwrap_or_default();
            for (loss, parts) in losses.iter().zip(&parts) {
                let parts = numbers(parts);
                contestant.take(*loss, [parts[0], parts[1], parts[2]]);
            }
            contestant.peak_resident = answer["peak_rss_bytes"].as_u64().unwrap_or(0);
        }
    }
    let mut contestants: Vec<Contestant> = own.into_iter().map(|(own, _)| own).collect();
    contestants[0].peak_resident = peak_resident();

    let versions = peers.first().map_or(Value::Null, |(peer, _)| peer.hello["versions"].clone());
    contestants.extend(peers.into_iter().map(|(_, contestant)| contestant));
    print_table(arguments, &contestants);
    if let Some(difference) = first_difference(&contestants) {
        println!("\nlosses of the first steps agree within {difference:.1e}");
    }
    println!("\nmeshgrad's tensors: peak {:.0} MB", device.memory_stats().peak as f64 / 1e6);

    let report = json!({
        "bench": "train_tiny",
        "dtype": arguments.dtype.name(),
        "rounds": arguments.rounds,
        "steps_a_round": arguments.steps,
        "first_losses_agree_within": first_difference(&contestants),
        "tensor_peak_bytes": device.memory_stats().peak,
        "contestants": contestants.iter().map(Contestant::json).collect::<Vec<_>>(),
    });
    finish(&arguments.options, report, versions)
}

/// Starts the torch implementations and warms them up.
fn start_peers(
    arguments: &Arguments,
    python: &Path,
    folder: &Path,
) -> anyhow::Result<Vec<(Peer, Contestant)>> {
    let (warmup, folder) = (arguments.warmup.to_string(), folder.display().to_string());
    let peers = [
        ("transformers", "hf", "loop"),
        ("torch eager", "eager", "loop"),
        ("torch eager, grouped", "eager", "grouped"),
        ("torch.compile", "compile", "loop"),
        ("torch.compile, grouped", "compile", "grouped"),
    ];
    peers
        .into_iter()
        .map(|(name, implementation, experts)| {
            let threads = cpu_threads();
            let mut options = vec![
                "--serve",
                "--impl",
                implementation,
                "--experts",
                experts,
                "--dtype",
                arguments.dtype.name(),
                "--warmup",
                &warmup,
                "--threads",
                &threads,
            ];
            if implementation == "hf" {
                options.extend(["--export-init", &folder]);
            }
            eprintln!("starting {name}");
            let peer = Peer::start(python, "train_tiny.py", &options)?;
            let mut contestant = Contestant::new(name);
            contestant.losses = numbers(&peer.hello["loss"]);
            Ok((peer, contestant))
        })
        .collect()
}

fn cpu_threads() -> String {
    Device::cpu().properties().threads.to_string()
}

/// The measurements of one implementation.
struct Contestant {
    name: &'static str,
    /// Losses of all steps, including warm-up.
    losses: Vec<f64>,
    /// Seconds of forward, backward and optimizer per timed step.
    parts: Vec<[f64; 3]>,
    peak_resident: u64,
}

impl Contestant {
    fn new(name: &'static str) -> Contestant {
        Contestant { name, losses: Vec::new(), parts: Vec::new(), peak_resident: 0 }
    }

    fn take(&mut self, loss: f64, parts: [f64; 3]) {
        self.losses.push(loss);
        self.parts.push(parts);
    }

    fn tokens_per_second(&self) -> Spread {
        let rate = |parts: &[f64; 3]| (BATCH * TOKENS) as f64 / parts.iter().sum::<f64>();
        Spread::of(&self.parts.iter().map(rate).collect::<Vec<_>>())
    }

    fn part_ms(&self, part: usize) -> Spread {
        let ms = |parts: &[f64; 3]| 1e3 * parts[part];
        Spread::of(&self.parts.iter().map(ms).collect::<Vec<_>>())
    }

    fn json(&self) -> Value {
        json!({
            "name": self.name,
            "tokens_per_s": self.tokens_per_second().json(),
            "forward_ms": self.part_ms(0).json(),
            "backward_ms": self.part_ms(1).json(),
            "optimizer_ms": self.part_ms(2).json(),
            "peak_resident_bytes": self.peak_resident,
            "loss": self.losses,
        })
    }
}

/// The largest difference between the losses of the first steps. Later losses differ more: rounding
/// errors grow, and jump when a token is routed to another expert.
fn first_difference(contestants: &[Contestant]) -> Option<f64> {
    const FIRST: usize = 4;

    let (ours, others) = contestants.split_first()?;
    let apart = |other: &Contestant| {
        let pairs = ours.losses.iter().zip(&other.losses).take(FIRST);
        pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
    };
    others.iter().map(apart).reduce(f64::max)
}

fn print_table(arguments: &Arguments, contestants: &[Contestant]) {
    println!(
        "tiny, {}, {} rounds of {} steps: medians (minimum - maximum)\n",
        arguments.dtype.name(),
        arguments.rounds,
        arguments.steps
    );
    println!(
        "| | tok/s | speedup of meshgrad | forward ms | backward ms | optimizer ms | peak MB | last loss |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let ours = contestants[0].tokens_per_second().median;
    for contestant in contestants {
        let rate = contestant.tokens_per_second();
        println!(
            "| {} | {rate} | {:.2} x | {:.0} | {:.0} | {:.0} | {:.0} | {:.5} |",
            contestant.name,
            ours / rate.median,
            contestant.part_ms(0).median,
            contestant.part_ms(1).median,
            contestant.part_ms(2).median,
            contestant.peak_resident as f64 / 1e6,
            contestant.losses.last().copied().unwrap_or(f64::NAN),
        );
    }
}

/// The meshgrad implementation.
struct Ours {
    learner: Learner,
    device: Device,
    tokens: Stream,
    /// With sharded tensors, as its only rank.
    mesh: Option<Mesh>,
}

impl Ours {
    fn new(
        load: impl Fn() -> anyhow::Result<Decoder>,
        device: &Device,
        dtype: DType,
        mesh: Option<Mesh>,
    ) -> anyhow::Result<Ours> {
        let learner = on(mesh.as_ref(), || {
            let model = load()?;
            for param in model.params() {
                param.set(&param.value()?.as_replicated()?)?;
            }
            Learner::new(model, device, dtype, &learner::adamw())
        })?;
        Ok(Ours { learner, device: device.clone(), tokens: Stream::new(), mesh })
    }

    /// Runs a step. Returns its mean loss, and the seconds of forward, backward and optimizer.
    fn step(&mut self) -> anyhow::Result<(f64, [f64; 3])> {
        on(self.mesh.as_ref(), || {
            let batch = self.tokens.batch(&self.device, BATCH)?;
            self.learner.step(&batch)
        })
    }
}

/// Calls `body`, inside of `with_mesh` if there is a mesh.
fn on<T>(mesh: Option<&Mesh>, body: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    match mesh {
        Some(mesh) => with_mesh(mesh, 0, body),
        None => body(),
    }
}

/// The peak resident memory of this process in bytes; 0 if the system does not report it.
fn peak_resident() -> u64 {
    proc_bytes("/proc/self/status", "VmHWM").unwrap_or(0)
}
