//! Trains a dense Qwen3 of 6.6 M parameters on one rank of two threads and, on two ranks of one
//! thread, in a pipeline, beside torch on the same: one process, and its schedules on gloo, from the
//! same weights and tokens. The contestants take turns of a few steps.
//!
//! ```text
//! cargo bench --bench pipeline -- --torch venv/bin/python [--json FILE]
//! ```
//!
//! 8 microbatches of 2 sequences of 128 tokens per step of AdamW, in f32. The report compares, for
//! each schedule, the idle time and the memory of activations with those that the simulator finds
//! for the durations and sizes of this run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Parser;
use meshgrad::comm::{Collectives, Local, LocalRank, Rank, Redistributor};
use meshgrad::data_parallel::{DataParallel, Strategy};
use meshgrad::mesh::Mesh;
use meshgrad::models::families::FamilyConfig;
use meshgrad::models::families::qwen3::Qwen3Config;
use meshgrad::models::{Compute, Model, TokenBatch, hf};
use meshgrad::pipeline::{Action, Costs, Named, Op, Simulation};
use meshgrad::prelude::*;
use meshgrad::train::config::{Config, NoTables};
use meshgrad::train::events::Event;
use meshgrad::train::pipeline::{Cut, Pipeline};
use meshgrad::train::trainer::Trainer;
use meshgrad_harness::{
    Contestant, Inbox, Options, Peer, PeerOptions, Ranks, Spread, Step, TurnOptions, finish,
    seconds,
};
use serde_json::{Value, json};

const RANKS: usize = 2;
const MICROBATCHES: usize = 8;
const SEQUENCES: usize = 2;
const TOKENS: usize = 128;
const LAYERS: usize = 8;
const MODEL: &str = r#"{
    "model_type": "qwen3", "vocab_size": 512, "hidden_size": 256, "intermediate_size": 768,
    "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32,
    "max_position_embeddings": 128, "tie_word_embeddings": false
}"#;
/// The constants of benches/torch/tiny.py.
const TRAINING: &str = "
    optimizer.learning_rate = 0.001
    optimizer.weight_decay = 0.1
    optimizer.beta2 = 0.95
    optimizer.max_grad_norm = 0.0
    schedule.kind = 'constant'
    schedule.warmup_steps = 0
";

/// Schedules, and torch's name of the same.
const SCHEDULES: [(Named, &str); 2] = [(Named::OneFOneB, "1f1b"), (Named::Zbv, "zbv")];

/// Trains on one rank and, in pipelines, on two.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    peer: PeerOptions,
    #[command(flatten)]
    turns: TurnOptions,
}

/// An action that a rank ran.
#[derive(Clone, Copy)]
struct Ran {
    step: u64,
    action: Action,
    started: Instant,
    ended: Instant,
    waited: Duration,
    /// Bytes in tensors after it.
    live: usize,
}

impl Ran {
    /// Seconds in which the rank computed or copied.
    fn busy(&self) -> f64 {
        (self.ended - self.started).saturating_sub(self.waited).as_secs_f64()
    }
}

/// What the ranks of a pipeline ran, by rank.
type Log = Arc<Mutex<Vec<Vec<Ran>>>>;

/// A pipeline of this bench.
struct Run {
    schedule: Named,
    log: Log,
}

fn main() -> anyhow::Result<()> {
    let mut arguments = Arguments::parse();
    arguments.turns = arguments.turns.or_smoke(&arguments.options);
    let folder = std::env::temp_dir().join(format!("meshgrad-pipeline-{}", std::process::id()));
    let mut contestants = torch(&arguments, &folder)?;
    let torch = contestants.len();
    let weights = (torch > 0).then_some(&folder);

    contestants.push(Contestant::ranks("meshgrad, one rank", start_one(weights.cloned())));
    let mut runs = Vec::new();
    for (schedule, _) in SCHEDULES {
        let log: Log = Arc::new(Mutex::new(vec![Vec::new(); RANKS]));
        let ranks = start(schedule, weights.cloned(), log.clone());
        contestants.push(Contestant::ranks(format!("meshgrad, {schedule}"), ranks));
        runs.push(Run { schedule, log });
    }
    let measured = {
        let mut contestants = contestants.iter_mut().collect::<Vec<_>>();
        arguments.turns.run(&mut contestants, &[SEQUENCES * MICROBATCHES])
    };
    let _ = std::fs::remove_dir_all(&folder);
    measured?;
    report(&arguments, &contestants, torch, &runs)
}

/// Starts torch's contestants, of which the first writes the weights to `folder`.
fn torch(arguments: &Arguments, folder: &Path) -> anyhow::Result<Vec<Contestant>> {
    let Some(python) = &arguments.peer.torch else {
        return Ok(Vec::new());
    };
    let folder = folder.display().to_string();
    let one = ("torch, one process", "one", "1", "2");
    let ranks = [("torch, 1F1B", "1f1b", "2", "1"), ("torch, ZBV", "zbv", "2", "1")];
    let start = |(name, schedule, ranks, threads): (&str, &str, &str, &str)| {
        eprintln!("starting {name}");
        let options = ["--folder", &folder, "--schedule", schedule, "--ranks", ranks];
        let options = [&options[..], &["--threads", threads]].concat();
        Ok(Contestant::peer(name, Peer::start(python, "pipeline.py", &options)?))
    };
    [one].into_iter().chain(ranks).map(start).collect()
}

fn start_one(weights: Option<PathBuf>) -> Ranks {
    Ranks::start(1, move |inboxes| {
        let (model, device) = (whole(weights.as_deref())?, Device::cpu_with_threads(RANKS)?);
        fill(&model, weights.as_deref(), &device)?;
        let mut trainer = Trainer::new(model, &training()?, &device)?;
        serve(&mut trainer, &device, &inboxes[0], || Ok(()))
    })
}

fn start(schedule: Named, weights: Option<PathBuf>, log: Log) -> Ranks {
    Ranks::start(RANKS, move |inboxes| {
        let run = |rank: &LocalRank| {
            train(schedule, rank, weights.as_deref(), &inboxes[rank.rank()], &log)
        };
        Local::new(RANKS).threads(1).launch(run)?;
        Ok(())
    })
}

/// A rank of a pipeline: trains in each turn.
fn train(
    schedule: Named,
    rank: &LocalRank,
    weights: Option<&Path>,
    inbox: &Inbox,
    log: &Log,
) -> anyhow::Result<()> {
    let (mesh, device) = (Mesh::new(&[RANKS], &["pp"])?, rank.device());
    let cut = cut(schedule, rank.rank())?;
    let model = whole(weights)?;
    let compute = Compute::new(DType::F32);
    Redistributor::new(rank).run_on(&cut.stage_mesh()?, || -> anyhow::Result<()> {
        let meta = |device: &Device| batch(device, 0);
        let pipeline = Pipeline::learn(&cut, rank, &model, compute, meta)?;
        let part = model.part(&cut.own_stages())?;
        DataParallel::of_stage(rank, &mesh, "pp", Strategy::replicate([""; 0]))?.apply(&part)?;
        fill(&part, weights, device)?;
        let mut trainer = Trainer::of(part).pipeline(pipeline).build(&training()?, device)?;
        let (own, log, on) = (rank.rank(), log.clone(), device.clone());
        trainer.events.subscribe("log", move |event| {
            if let Event::ActionFinished { step, action, started, waited, .. } = event {
                let (ended, live) = (Instant::now(), on.memory_stats().live);
                let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
                log[own].push(Ran { step, action, started, ended, waited, live });
            }
            Ok(())
        });
        let world = rank.world()?;
        serve(&mut trainer, device, inbox, || Ok(world.barrier()?.wait()?))
    })
}

/// Trains in each turn. `together` lets the ranks start a step together.
fn serve(
    trainer: &mut Trainer<Decoder>,
    device: &Device,
    inbox: &Inbox,
    together: impl Fn() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut number = 0;
    inbox.serve(|turn| {
        let step = |_| {
            number += 1;
            let batches: Vec<TokenBatch> =
                (0..MICROBATCHES).map(|at| batch(device, at)).collect::<Result<_, _>>()?;
            together()?;
            let (seconds, loss) = seconds(|| {
                let pending = trainer.step(number, batches.into_iter().map(Ok))?;
                pending.wait(&trainer.model).map(|record| record.loss)
            });
            // The last rank ends the step.
            let (rest, ended) = self::seconds(&together);
            ended?;
            Ok(Step { loss: loss?, seconds: seconds + rest, waited: 0.0 })
        };
        (0..turn.steps).map(step).collect()
    })
}

fn training() -> anyhow::Result<Config> {
    Ok(Config::parse::<NoTables>(TRAINING, "the bench", &[])?)
}

fn whole(weights: Option<&Path>) -> anyhow::Result<Decoder> {
    let config: Arc<dyn FamilyConfig> = match weights {
        Some(folder) => hf::read_config(folder)?,
        None => Arc::new(Qwen3Config::from_json(MODEL)?),
    };
    Ok(Decoder::new(&*config)?)
}

fn fill(model: &Decoder, weights: Option<&Path>, device: &Device) -> anyhow::Result<()> {
    match weights {
        Some(folder) => drop(hf::Loader::new(folder).ignore_unused().fill(model, device)?),
        None => model.materialize(device, 0)?,
    }
    Ok(())
}

fn cut(schedule: Named, rank: usize) -> anyhow::Result<Cut> {
    let stages = if schedule == Named::Zbv { 2 * RANKS } else { RANKS };
    let sizes = vec![LAYERS / stages; stages];
    Ok(Cut::new(&Mesh::new(&[RANKS], &["pp"])?, "pp", rank, schedule, &sizes)?)
}

/// A microbatch of a step.
fn batch(device: &Device, number: usize) -> Result<TokenBatch, Error> {
    let count = SEQUENCES * TOKENS;
    let token = |at: usize| ((at * 7919 + at / 3) % 512) as i64;
    let tensor = |shift: usize| {
        let first = number * count + shift;
        let tokens: Vec<i64> = (first..first + count).map(token).collect();
        Tensor::from_slice(device, &[SEQUENCES, TOKENS], &tokens)?.as_replicated()
    };
    Ok(TokenBatch::new(&tensor(0)?, &tensor(1)?))
}

/// A pipeline's idle time and memory beside the simulator's.
struct Compared {
    schedule: Named,
    idle: f64,
    simulated_idle: f64,
    /// Of each rank, in bytes: the most that is live after an action beyond what is before the step,
    /// and the simulator's peak of activations.
    live: Vec<[f64; 2]>,
    steps: usize,
}

fn compare(run: &Run, first_step: u64) -> anyhow::Result<Compared> {
    let log = run.log.lock().unwrap_or_else(PoisonError::into_inner);
    let last = log[0].last().map_or(first_step, |ran| ran.step);
    let of_step = |step: u64| -> Vec<Vec<Ran>> {
        let of_rank = |all: &Vec<Ran>| all.iter().filter(|ran| ran.step == step).copied().collect();
        log.iter().map(of_rank).collect()
    };
    let steps: Vec<Vec<Vec<Ran>>> = (first_step..=last).map(of_step).collect();
    let costs = costs(run.schedule, &steps);
    let program = cut(run.schedule, 0)?.program(MICROBATCHES)?;
    let simulation = program.simulate(&costs)?;
    let idle: Vec<f64> = steps.iter().map(|step| idle(step)).collect();
    let live = (0..RANKS).map(|rank| live(&steps, rank, &simulation)).collect();
    Ok(Compared {
        schedule: run.schedule,
        idle: Spread::of(&idle).median,
        simulated_idle: simulation.idle_share(),
        live,
        steps: steps.len(),
    })
}

/// The median durations in seconds, and sizes in bytes, of what ranks ran.
fn costs(schedule: Named, steps: &[Vec<Vec<Ran>>]) -> Costs {
    let mut durations: BTreeMap<(Op, usize), Vec<f64>> = BTreeMap::new();
    let mut sizes: BTreeMap<(Op, usize), Vec<f64>> = BTreeMap::new();
    let mut sends: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for pair in steps.iter().flatten().flat_map(|rank| rank.windows(2)) {
        let (before, ran) = (pair[0], pair[1]);
        match ran.action {
            Action::Compute(pass) => {
                let key = (pass.op, pass.stage);
                durations.entry(key).or_default().push(ran.busy());
                let grown = ran.live as f64 - before.live as f64;
                sizes.entry(key).or_default().push(grown);
            }
            Action::Send(message) => sends.entry(message.from()).or_default().push(ran.busy()),
            _ => (),
        }
    }
    let median = |values: Option<&Vec<f64>>| values.map_or(0.0, |it| Spread::of(it).median);
    let mut costs = Costs::uniform(cut(schedule, 0).map_or(0, |cut| cut.stages().len()));
    for stage in 0..costs.forward.len() {
        let of = |op| median(durations.get(&(op, stage)));
        costs.forward[stage] = of(Op::Forward);
        costs.backward[stage] = of(Op::Backward);
        costs.input[stage] = of(Op::BackwardInput);
        costs.weight[stage] = of(Op::BackwardWeight);
        costs.send[stage] = median(sends.get(&stage));
        costs.activation[stage] = median(sizes.get(&(Op::Forward, stage))).max(0.0);
        costs.pending[stage] = (-median(sizes.get(&(Op::BackwardWeight, stage)))).max(0.0);
    }
    costs
}

/// The share of the time of all ranks in which they did not compute.
fn idle(step: &[Vec<Ran>]) -> f64 {
    let all = || step.iter().flatten();
    let (Some(start), Some(end)) =
        (all().map(|ran| ran.started).min(), all().map(|ran| ran.ended).max())
    else {
        return f64::NAN;
    };
    let computes = all().filter(|ran| matches!(ran.action, Action::Compute(_)));
    let busy: f64 = computes.map(Ran::busy).sum();
    1.0 - busy / (step.len() as f64 * (end - start).as_secs_f64())
}

/// The most bytes that are live after an action beyond those after the last one, and the simulator's
/// peak of activations.
fn live(steps: &[Vec<Vec<Ran>>], rank: usize, simulation: &Simulation) -> [f64; 2] {
    let of_step = |step: &Vec<Vec<Ran>>| {
        let live = || step[rank].iter().map(|ran| ran.live);
        let end = step[rank].last().map_or(0, |ran| ran.live);
        live().max().unwrap_or_default().saturating_sub(end) as f64
    };
    let of_steps: Vec<f64> = steps.iter().map(of_step).collect();
    [Spread::of(&of_steps).median, simulation.peak(rank).total]
}

fn report(
    arguments: &Arguments,
    contestants: &[Contestant],
    torch: usize,
    runs: &[Run],
) -> anyhow::Result<()> {
    let tokens = (MICROBATCHES * SEQUENCES * TOKENS) as f64;
    let step =
        |at: usize| contestants[at].milliseconds(SEQUENCES * MICROBATCHES, |step| step.seconds);
    let of_one = |at: usize| step(if at < torch { 0 } else { torch }).median / step(at).median;
    println!("medians (minimum - maximum)\n");
    println!("| | ms per step | tok/s | of one rank | last loss |\n|---|---|---|---|---|");
    for (at, contestant) in contestants.iter().enumerate() {
        println!(
            "| {} | {} | {:.0} | {:.2} | {:.5} |",
            contestant.name,
            step(at),
            1e3 * tokens / step(at).median,
            of_one(at),
            contestant.last_loss(),
        );
    }
    // The first turn warms up.
    let first = if arguments.turns.rounds == 0 { 1 } else { arguments.turns.steps as u64 + 1 };
    let compared: Vec<Compared> =
        runs.iter().map(|run| compare(run, first)).collect::<anyhow::Result<_>>()?;
    println!("\n| | steps | idle | simulated | rank | MB of activations | simulated |");
    println!("|---|---|---|---|---|---|---|");
    for Compared { schedule, idle, simulated_idle, live, steps } in &compared {
        for (rank, [measured, simulated]) in live.iter().enumerate() {
            println!(
                "| {schedule} | {steps} | {:.1} % | {:.1} % | {rank} | {:.3} | {:.3} |",
                100.0 * idle,
                100.0 * simulated_idle,
                1e-6 * measured,
                1e-6 * simulated
            );
        }
    }
    let versions = contestants[0].versions();
    if torch > 0 {
        for (at, (schedule, _)) in (1..).zip(SCHEDULES) {
            println!(
                "\n{schedule}: {:.2} of one rank, torch {:.2}; {:.2} times torch's rate",
                of_one(at + torch),
                of_one(at),
                step(at).median / step(at + torch).median
            );
        }
        println!("versions of torch's side: {versions}");
    }
    finish(&arguments.options, json(arguments, contestants, &compared), versions)
}

fn json(arguments: &Arguments, contestants: &[Contestant], compared: &[Compared]) -> Value {
    let compared = compared.iter().map(|it| {
        json!({
            "schedule": it.schedule.name(), "steps": it.steps, "idle": it.idle,
            "simulated_idle": it.simulated_idle, "activation_bytes": it.live,
        })
    });
    let each = contestants.iter().map(|it| it.json(&[SEQUENCES * MICROBATCHES]));
    json!({
        "bench": "pipeline",
        "rounds": arguments.turns.rounds,
        "steps_a_turn": arguments.turns.steps,
        "tokens_a_step": MICROBATCHES * SEQUENCES * TOKENS,
        "contestants": each.collect::<Vec<_>>(),
        "pipelines": compared.collect::<Vec<_>>(),
    })
}
