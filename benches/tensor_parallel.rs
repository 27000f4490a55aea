//! Trains a dense Qwen3 of 16.8 M parameters on one rank of two threads and, tensor parallel, on two
//! ranks of one thread, beside torch on the same: transformers' model under `parallelize_module` on
//! gloo, from the same weights and tokens. The contestants take turns of a few steps.
//!
//! ```text
//! cargo bench --bench tensor_parallel -- --torch venv/bin/python [--json FILE]
//! cargo bench --bench tensor_parallel -- --bandwidth 250 [--latency 20] [--json FILE]
//! ```
//!
//! 4 sequences of 256 tokens per step of AdamW, in f32. With `--bandwidth`, meshgrad's
//! two ranks are connected by modelled links of so many MB/s, without and with overlap; the report
//! then has the time that a rank waits in redistributions, that is, the exposed communication.

mod learner;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use learner::Learner;
use meshgrad::collectives::{Redistribute, with_redistribution};
use meshgrad::comm::{Collectives, Communicator, Local, LocalRank, Rank, Redistributor};
use meshgrad::data_parallel::{DataParallel, Strategy};
use meshgrad::mesh::{Chunks, Group, Hosts, Link, LinkCosts, Mesh, Sharding};
use meshgrad::models::families::FamilyConfig;
use meshgrad::models::families::qwen3::Qwen3Config;
use meshgrad::models::{Model, ModelParallelism, TokenBatch, hf};
use meshgrad::prelude::*;
use meshgrad::runtime::{Pending, with_mesh};
use meshgrad_harness::{
    Contestant, Inbox, Options, Peer, PeerOptions, Ranks, Step, TurnOptions, finish, seconds,
};
use serde_json::json;

const BATCH: usize = 4;
const TOKENS: usize = 256;
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
    #[command(flatten)]
    turns: TurnOptions,
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

fn main() -> anyhow::Result<()> {
    let mut arguments = Arguments::parse();
    arguments.turns = arguments.turns.or_smoke(&arguments.options);
    if arguments.options.smoke {
        arguments.chunks.truncate(1);
    }
    let folder = std::env::temp_dir().join(format!("meshgrad-tensor-{}", std::process::id()));
    let mut contestants = torch(&arguments, &folder)?;
    let torch = contestants.len();
    for setting in settings(&arguments, (torch > 0).then_some(&folder)) {
        eprintln!("starting {}", setting.name);
        let name = format!("meshgrad, {}", setting.name);
        contestants.push(Contestant::ranks(name, start(setting)));
    }
    let measured = {
        let mut contestants = contestants.iter_mut().collect::<Vec<_>>();
        arguments.turns.run(&mut contestants, &[BATCH])
    };
    let _ = std::fs::remove_dir_all(&folder);
    measured?;
    report(&arguments, &contestants, torch)
}

fn settings(arguments: &Arguments, folder: Option<&PathBuf>) -> Vec<Setting> {
    let links = arguments.bandwidth.map(|megabytes| {
        let link =
            Link { latency_ns: 1000 * arguments.latency, ns_per_mib: (1 << 20) * 1000 / megabytes };
        LinkCosts { launch_ns: 0, within: link, across: link }
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
        Ok(Contestant::peer(name, peer))
    };
    let peers = [("torch, one rank", "1", "2"), ("torch, two ranks", "2", "1")];
    peers.into_iter().map(start).collect()
}

fn start(setting: Setting) -> Ranks {
    Ranks::start(setting.ranks, move |inboxes| {
        let mut local = Local::new(setting.ranks).threads(2 / setting.ranks);
        if let Some(links) = setting.links {
            local = local.links(links, Hosts::uniform(setting.ranks)?);
        }
        local.launch(|rank| train(&setting, rank, &inboxes[rank.rank()]))?;
        Ok(())
    })
}

/// A rank: trains in each turn.
fn train(setting: &Setting, rank: &LocalRank, inbox: &Inbox) -> anyhow::Result<()> {
    let (model, device, world) = (Decoder::new(&*config(setting)?)?, rank.device(), rank.world()?);
    let timed = Arc::new(Timed::new(Redistributor::new(rank)));
    let training = |model: Decoder| {
        match &setting.folder {
            Some(folder) => drop(hf::Loader::new(folder).fill(&model, device)?),
            None => model.materialize(device, 0)?,
        }
        let batch = batch(device)?;
        let mut optimizer = learner::adamw();
        optimizer.max_grad_norm = 0.0;
        let mut learner = Learner::new(model, device, DType::F32, &optimizer)?;
        inbox.serve(|turn| {
            world.barrier()?.wait()?;
            let step = |_| {
                timed.reset();
                let (seconds, step) = seconds(|| learner.step(&batch));
                Ok(Step { loss: step?.0, seconds, waited: timed.waited() })
            };
            (0..turn.steps).map(step).collect()
        })
    };
    if setting.ranks == 1 {
        return training(model);
    }
    let mesh = Mesh::new(&[setting.ranks], &["tp"])?;
    let parallelism = ModelParallelism::new(&mesh)
        .tensor(["tp"])?
        .sequence_parallel(setting.sequence)
        .overlap_chunks(setting.chunks);
    model.plan(&parallelism)?.apply(&model, rank.rank())?;
    // Gradients that are partial over `tp` are reduced there.
    DataParallel::new(rank, &mesh, Strategy::replicate::<&str>([])).apply(&model)?;
    let training = || with_mesh(&mesh, rank.rank(), || training(model));
    with_redistribution(timed.clone(), training)
}

fn config(setting: &Setting) -> anyhow::Result<Arc<dyn FamilyConfig>> {
    Ok(match &setting.folder {
        Some(folder) => hf::read_config(folder)?,
        None => Arc::new(Qwen3Config::from_json(CONFIG)?),
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

    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn connect(&self, group: &Group) -> Result<Arc<dyn Communicator>> {
        self.inner.connect(group)
    }
}

fn report(arguments: &Arguments, contestants: &[Contestant], torch: usize) -> anyhow::Result<()> {
    let step = |at: usize| contestants[at].milliseconds(BATCH, |step| step.seconds);
    let waited = |at: usize| contestants[at].milliseconds(BATCH, |step| step.waited);
    println!("medians (minimum - maximum)\n");
    println!("| | ms per step | tok/s | of one rank | ms in redistributions | last loss |");
    println!("|---|---|---|---|---|---|");
    for (at, contestant) in contestants.iter().enumerate() {
        let one = step(if at < torch { 0 } else { torch });
        println!(
            "| {} | {} | {:.0} | {:.2} | {} | {:.5} |",
            contestant.name,
            step(at),
            1e3 * (BATCH * TOKENS) as f64 / step(at).median,
            one.median / step(at).median,
            waited(at),
            contestant.last_loss(),
        );
    }
    let versions = contestants[0].versions();
    if torch > 0 {
        let lead = |at: usize| step(at).median / step(at + torch).median;
        let (one, two) = (lead(0), lead(1));
        println!("\nlead over torch: {one:.2} on one rank, {two:.2} on two");
        println!("versions of torch's side: {versions}");
    }
    let each = contestants.iter().enumerate().map(|(at, contestant)| {
        let mut each = contestant.json(&[BATCH]);
        each["redistribution_ms"] = waited(at).json();
        each
    });
    let report = json!({
        "bench": "tensor_parallel",
        "rounds": arguments.turns.rounds,
        "steps_a_turn": arguments.turns.steps,
        "tokens_a_step": BATCH * TOKENS,
        "links": arguments.bandwidth.map(|megabytes| {
            json!({"mb_per_s": megabytes, "latency_us": arguments.latency})
        }),
        "contestants": each.collect::<Vec<_>>(),
    });
    finish(&arguments.options, report, versions)
}
