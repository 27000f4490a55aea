//! Trains a dense Qwen3 of 16.8 M parameters on one rank of two threads and, tensor parallel, on two
//! ranks of one thread, beside torch on the same: transformers' model under `parallelize_module` on
//! gloo, from the same weights and tokens. The contestants take turns of a few steps.
//!
//! ```text
//! cargo bench --bench tensor_parallel -- --torch venv/bin/python [--json FILE]
//! cargo bench --bench tensor_parallel -- --bandwidth 250 [--latency 20] [--json FILE]
//! ```
//!
//! 4 sequences of 256 tokens per step of gradient descent, in f32. With `--bandwidth`, meshgrad's
//! two ranks are connected by modelled links of so many MB/s, without and with overlap; the report
//! then has the time that a rank waits in redistributions, that is, the exposed communication.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use meshgrad::comm::{Collectives, Local, LocalRank, Redistributor};
use meshgrad::mesh::{Chunks, Hosts, Link, LinkCosts, Mesh, Sharding};
use meshgrad::models::config::Qwen3Config;
use meshgrad::models::{Compute, Model, ModelParallelism, TokenBatch, hf};
use meshgrad::prelude::*;
use meshgrad::runtime::{Accumulator, Pending, Redistribute, ops, with_mesh, with_redistribution};
use meshgrad_harness::{Options, Peer, PeerOptions, Spread, finish, interleave, numbers};
use serde_json::{Value, json};

const BATCH: usize = 4;
const TOKENS: usize = 256;
const LEARNING_RATE: f64 = 0.1;
const COMPUTE: Compute = Compute {
    dtype: DType::F32,
    checkpointing: false,
};
const CONFIG: &str = r#"{
    "model_type": "qwen3", "vocab_size": 4096, "hidden_size": 512, "intermediate_size": 1536,
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64,
    "max_position_embeddings": 256, "tie_word_embeddings": false
}"#;

/// Trains on one rank and, tensor parallel, on two.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    peer: PeerOptions,
    /// Turns of each contestant.
    #[arg(long, default_value_t = 8)]
    rounds: usize,
    /// Steps per turn.
    #[arg(long, default_value_t = 3)]
    steps: usize,
    /// MB/s of modelled links between ranks. Without it, messages take the time of their copies.
    #[arg(long)]
    bandwidth: Option<u64>,
    /// Microseconds of latency of modelled links.
    #[arg(long, default_value_t = 20)]
    latency: u64,
    /// Numbers of chunks that are compared.
    #[arg(long, value_delimiter = ',', default_values_t = [2, 4])]
    chunks: Vec<usize>,
}

/// How meshgrad runs.
#[derive(Clone)]
struct Setting {
    name: String,
    ranks: usize,
    sequence: bool,
    chunks: usize,
    links: Option<LinkCosts>,
    /// The folder of the weights; random ones without.
    folder: Option<PathBuf>,
}

/// One step: its mean loss, its seconds, and of them those in which the rank waited.
#[derive(Clone, Copy)]
struct Step {
    loss: f64,
    seconds: f64,
    waited: f64,
}

fn main() -> anyhow::Result<()> {
    let mut arguments = Arguments::parse();
    if arguments.options.smoke {
        (arguments.rounds, arguments.steps) = (0, 1);
    }
    let folder = std::env::temp_dir().join(format!("meshgrad-tensor-{}", std::process::id()));
    let mut contestants = torch(&arguments, &folder)?;
    let torch = contestants.len();
    for setting in settings(&arguments, (torch > 0).then_some(&folder)) {
        eprintln!("starting {}", setting.name);
        contestants.push(Contestant::meshgrad(setting)?);
    }
    let measured = interleave(contestants.len(), arguments.rounds, |round, at| {
        let contestant = &mut contestants[at];
        let steps = contestant.run(arguments.steps)?;
        contestant.losses.extend(steps.iter().map(|step| step.loss));
        if round > 0 || arguments.rounds == 0 {
            contestant.steps.extend(steps);
        }
        anyhow::Ok(())
    });
    let _ = std::fs::remove_dir_all(&folder);
    measured?;
    report(&arguments, &contestants, torch)
}

fn settings(arguments: &Arguments, folder: Option<&PathBuf>) -> Vec<Setting> {
    let links = arguments.bandwidth.map(|megabytes| {
        let link = Link {
            latency_ns: 1000 * arguments.latency,
            ns_per_mib: (1 << 20) * 1000 / megabytes,
        };
        LinkCosts {
            launch_ns: 0,
            within: link,
            across: link,
        }
    });
    let setting = |name: &str, ranks, sequence, chunks| Setting {
        name: match chunks {
            1 => name.to_owned(),
            _ => format!("{name}, {chunks} chunks"),
        },
        ranks,
        sequence,
        chunks,
        links,
        folder: folder.cloned(),
    };
    let mut settings = vec![setting("one rank", 1, false, 1)];
    for (name, sequence) in [("two ranks", false), ("two ranks, sequence", true)] {
        let chunks = std::iter::once(&1).chain(&arguments.chunks);
        settings.extend(chunks.map(|chunks| setting(name, 2, sequence, *chunks)));
    }
    settings
}

/// Starts torch's contestants, of which the first writes the weights to `folder`.
fn torch(arguments: &Arguments, folder: &Path) -> anyhow::Result<Vec<Contestant>> {
    let Some(python) = &arguments.peer.torch else {
        return Ok(Vec::new());
    };
    let folder = folder.display().to_string();
    let start = |(name, ranks, threads): (&str, &str, &str)| {
        eprintln!("starting {name}");
        let options = ["--folder", &folder, "--ranks", ranks, "--threads", threads];
        let peer = Peer::start(python, "tensor_parallel.py", &options)?;
        Ok(Contestant::new(name, Runner::Torch(peer)))
    };
    let peers = [
        ("torch, one rank", "1", "2"),
        ("torch, two ranks", "2", "1"),
    ];
    peers.into_iter().map(start).collect()
}

/// One way to train, and its measurements.
struct Contestant {
    name: String,
    runner: Runner,
    losses: Vec<f64>,
    steps: Vec<Step>,
}

enum Runner {
    Torch(Peer),
    Meshgrad(Ranks),
}

impl Contestant {
    fn new(name: &str, runner: Runner) -> Contestant {
        Contestant {
            name: name.to_owned(),
            runner,
            losses: Vec::new(),
            steps: Vec::new(),
        }
    }

    fn meshgrad(setting: Setting) -> anyhow::Result<Contestant> {
        let name = format!("meshgrad, {}", setting.name);
        Ok(Contestant::new(
            &name,
            Runner::Meshgrad(Ranks::start(setting)),
        ))
    }

    fn run(&mut self, steps: usize) -> anyhow::Result<Vec<Step>> {
        let peer = match &mut self.runner {
            Runner::Meshgrad(ranks) => return ranks.run(steps),
            Runner::Torch(peer) => peer,
        };
        let answer = peer.ask(&json!({"steps": steps}))?;
        let (losses, seconds) = (numbers(&answer["loss"]), numbers(&answer["seconds"]));
        let pairs = losses.into_iter().zip(seconds);
        let step = |(loss, seconds)| Step {
            loss,
            seconds,
            waited: 0.0,
        };
        Ok(pairs.map(step).collect())
    }

    fn milliseconds(&self, of: impl Fn(&Step) -> f64) -> Spread {
        let all: Vec<f64> = self.steps.iter().map(|step| 1e3 * of(step)).collect();
        Spread::of(&all)
    }
}

/// The ranks of one setting, which wait for requests.
struct Ranks {
    requests: Vec<Sender<usize>>,
    answers: Receiver<Vec<Step>>,
    threads: Option<JoinHandle<anyhow::Result<()>>>,
}

impl Ranks {
    fn start(setting: Setting) -> Ranks {
        let (requests, inboxes): (Vec<_>, Vec<_>) = (0..setting.ranks).map(|_| channel()).unzip();
        let (answer, answers) = channel();
        let inboxes: Vec<Mutex<Receiver<usize>>> = inboxes.into_iter().map(Mutex::new).collect();
        let run = move || {
            let mut local = Local::new(setting.ranks).threads(2 / setting.ranks);
            if let Some(links) = setting.links {
                local = local.links(links, Hosts::uniform(setting.ranks)?);
            }
            local.launch(|rank| {
                let inbox = inboxes[rank.rank()].lock();
                let inbox = inbox.unwrap_or_else(PoisonError::into_inner);
                train(&setting, rank, &inbox, &answer)
            })?;
            anyhow::Ok(())
        };
        Ranks {
            requests,
            answers,
            threads: Some(std::thread::spawn(run)),
        }
    }

    fn run(&mut self, steps: usize) -> anyhow::Result<Vec<Step>> {
        for request in &self.requests {
            let _ = request.send(steps);
        }
        if let Ok(steps) = self.answers.recv() {
            return Ok(steps);
        }
        let ended = self.threads.take().map(JoinHandle::join);
        match ended.context("the ranks have ended")? {
            Ok(result) => result.map(|()| Vec::new()),
            Err(_) => anyhow::bail!("a rank panicked"),
        }
    }
}

/// A rank: trains as many steps as each request says.
fn train(
    setting: &Setting,
    rank: &LocalRank,
    requests: &Receiver<usize>,
    answer: &Sender<Vec<Step>>,
) -> anyhow::Result<()> {
    let (model, device, world) = (Qwen3::new(&config(setting)?)?, rank.device(), rank.world()?);
    let timed = Arc::new(Timed::new(Redistributor::new(rank)));
    let training = || {
        match &setting.folder {
            Some(folder) => drop(hf::Loader::new(folder).fill(&model, device)?),
            None => model.materialize(device, 0)?,
        }
        let batch = batch(device)?;
        let mut grads = Grads::new(&model.params())?;
        for steps in requests {
            world.barrier()?.wait()?;
            let step = |_| {
                timed.reset();
                let began = Instant::now();
                let loss = step(&model, &batch, &mut grads, device)?;
                Ok(Step {
                    loss,
                    seconds: began.elapsed().as_secs_f64(),
                    waited: timed.waited(),
                })
            };
            let steps = (0..steps)
                .map(step)
                .collect::<anyhow::Result<Vec<Step>>>()?;
            if rank.rank() == 0 {
                answer.send(steps)?;
            }
        }
        Ok(())
    };
    if setting.ranks == 1 {
        return training();
    }
    let mesh = Mesh::new(&[setting.ranks], &["tp"])?;
    let parallelism = ModelParallelism::new(&mesh)
        .tensor(["tp"])?
        .sequence_parallel(setting.sequence)
        .overlap_chunks(setting.chunks);
    model.plan(&parallelism)?.apply(&model, rank.rank())?;
    let training = || with_mesh(&mesh, rank.rank(), training);
    with_redistribution(timed.clone(), training)
}

fn config(setting: &Setting) -> anyhow::Result<Qwen3Config> {
    Ok(match &setting.folder {
        Some(folder) => hf::read_config(folder)?,
        None => Qwen3Config::from_json(CONFIG)?,
    })
}

fn batch(device: &Device) -> anyhow::Result<TokenBatch> {
    let token = |at: usize| (at * 7919 % 4093 + at * at % 3) as i64;
    let tensor = |shift: usize| {
        let tokens: Vec<i64> = (0..BATCH * TOKENS).map(|at| token(at + shift)).collect();
        let tokens = Tensor::from_slice(device, &[BATCH, TOKENS], &tokens)?;
        anyhow::Ok(tokens.as_replicated()?)
    };
    Ok(TokenBatch::new(&tensor(0)?, &tensor(1)?))
}

/// A step of gradient descent; returns the mean loss.
fn step(
    model: &Qwen3,
    batch: &TokenBatch,
    grads: &mut Grads,
    device: &Device,
) -> anyhow::Result<f64> {
    let (loss, tape) = Tape::record(|| model.loss(batch, COMPUTE))?;
    let one = ops::full(device, &[], DType::F32, 1.0)?;
    tape.backward(&[(&loss.total, one)], grads)?;
    let count = (BATCH * TOKENS) as f64;
    for (param, gradient) in grads.all()? {
        let value = param.value()?;
        let gradient = match value.sharding() {
            Some(sharding) => meshgrad::runtime::redistribute(&gradient, sharding.placements())?,
            None => gradient,
        };
        let mut value = Accumulator::over(value)?;
        value.filled();
        ops::add_into(
            &ops::affine(&gradient, -LEARNING_RATE / count, 0.0)?,
            &mut value,
        )?;
    }
    grads.clear();
    Ok(f64::from(loss.sum.item::<f32>()?) / count)
}

/// Measures the time that the rank's thread spends in redistributions.
struct Timed {
    inner: Redistributor,
    nanos: Arc<AtomicU64>,
}

impl Timed {
    fn new(inner: Redistributor) -> Timed {
        let nanos = Arc::default();
        Timed { inner, nanos }
    }

    fn reset(&self) {
        self.nanos.store(0, Ordering::Relaxed);
    }

    fn waited(&self) -> f64 {
        Duration::from_nanos(self.nanos.load(Ordering::Relaxed)).as_secs_f64()
    }

    fn timed(&self, pending: Pending<Tensor>) -> Pending<Tensor> {
        let nanos = self.nanos.clone();
        Pending::by_host(move || add_time(&nanos, || pending.wait()))
    }
}

fn add_time<T>(nanos: &AtomicU64, f: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let result = f();
    nanos.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
    result
}

impl Redistribute for Timed {
    fn redistribute(&self, x: &Tensor, to: &Sharding) -> Result<Tensor, Error> {
        add_time(&self.nanos, || self.inner.redistribute(x, to))
    }

    fn start(&self, x: &Tensor, to: &Sharding) -> Result<Pending<Tensor>, Error> {
        let pending = add_time(&self.nanos, || self.inner.start(x, to))?;
        Ok(self.timed(pending))
    }

    fn start_chunk(
        &self,
        x: &Tensor,
        ends: [&Sharding; 2],
        chunks: &Chunks,
        chunk: usize,
    ) -> Result<Pending<Tensor>, Error> {
        let start = || self.inner.start_chunk(x, ends, chunks, chunk);
        Ok(self.timed(add_time(&self.nanos, start)?))
    }
}

fn report(arguments: &Arguments, contestants: &[Contestant], torch: usize) -> anyhow::Result<()> {
    println!(
        "medians (minimum - maximum) of {} steps\n",
        contestants[0].steps.len()
    );
    println!("| | ms per step | tok/s | of one rank | ms in redistributions | last loss |");
    println!("|---|---|---|---|---|---|");
    let median = |at: usize| contestants[at].milliseconds(|step| step.seconds).median;
    for (at, contestant) in contestants.iter().enumerate() {
        let one = median(if at < torch { 0 } else { torch });
        let step = contestant.milliseconds(|step| step.seconds);
        println!(
            "| {} | {step} | {:.0} | {:.2} | {} | {:.5} |",
            contestant.name,
            1e3 * (BATCH * TOKENS) as f64 / step.median,
            one / step.median,
            contestant.milliseconds(|step| step.waited),
            contestant.losses.last().copied().unwrap_or(f64::NAN),
        );
    }
    if torch > 0 {
        let (one, two) = (median(0) / median(torch), median(1) / median(torch + 1));
        println!("\nlead over torch: {one:.2} on one rank, {two:.2} on two");
    }
    let each = contestants.iter().map(|contestant| {
        json!({
            "name": contestant.name,
            "step_ms": contestant.milliseconds(|step| step.seconds).json(),
            "redistribution_ms": contestant.milliseconds(|step| step.waited).json(),
            "loss": contestant.losses,
        })
    });
    let report = json!({
        "bench": "tensor_parallel",
        "rounds": arguments.rounds,
        "steps_a_round": arguments.steps,
        "tokens_a_step": BATCH * TOKENS,
        "links": arguments.bandwidth.map(|megabytes| {
            json!({"mb_per_s": megabytes, "latency_us": arguments.latency})
        }),
        "contestants": each.collect::<Vec<_>>(),
    });
    let versions = match &contestants[0].runner {
        Runner::Torch(peer) => peer.hello["versions"].clone(),
        Runner::Meshgrad(_) => Value::Null,
    };
    finish(&arguments.options, report, versions)
}
