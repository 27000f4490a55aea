//! Trains *tiny* on one rank of two threads and, data parallel, on two ranks of one thread, beside
//! torch on the same: one process, DDP and FSDP2 on gloo, from the same weights and tokens. The
//! contestants take turns of a few steps.
//!
//! ```text
//! cargo bench --bench data_parallel -- --torch venv/bin/python [--json FILE]
//! ```
//!
//! 8 and 32 sequences of 256 tokens per step, AdamW, f32. Parameters are replicated, divided for the
//! optimizer only (ZeRO-1), or fully sharded by layer; the report says which goals are met.

mod learner;
mod tiny;

use std::path::Path;

use clap::Parser;
use learner::Learner;
use meshgrad::comm::{Collectives, Local, LocalRank, Rank, Redistributor};
use meshgrad::data_parallel::{DataParallel, Reshard, Strategy};
use meshgrad::mesh::{Mesh, Placement};
use meshgrad::models::families::qwen3::Qwen3Config;
use meshgrad::models::{Model, ModelParallelism, TokenBatch, hf};
use meshgrad::prelude::*;
use meshgrad_harness::{
    Contestant, Inbox, Options, Peer, PeerOptions, Ranks, Step, Turn, TurnOptions, finish,
    loss_difference, seconds,
};
use serde::Serialize;
use serde_json::{Value, json};
use tiny::{CONFIG, Stream, TOKENS};

const SEQUENCES: [usize; 2] = [8, 32];
const AXIS: [&str; 1] = ["dp"];

/// Trains on one rank and, data parallel, on two.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    peer: PeerOptions,
    #[command(flatten)]
    turns: TurnOptions,
}

/// A way to train on two cores.
struct Way {
    name: &'static str,
    /// Of two ranks: the homes of the layers, and of the rest.
    homes: Option<fn() -> [Strategy; 2]>,
    /// The same in torch: its name, and `--way` of benches/torch/data_parallel.py.
    torch: Option<[&'static str; 2]>,
    /// The least part of the rate of one rank, for each of [`SEQUENCES`].
    goals: Option<[f64; 2]>,
}

const WAYS: [Way; 4] = [
    Way { name: "one rank", homes: None, torch: Some(["torch, one process", "one"]), goals: None },
    Way {
        name: "replicate",
        homes: Some(|| [Strategy::replicate(AXIS), Strategy::replicate(AXIS)]),
        torch: Some(["torch, DDP", "ddp"]),
        goals: Some([0.88, 0.95]),
    },
    Way {
        name: "zero1",
        homes: Some(|| [Strategy::zero1(AXIS), Strategy::zero1(AXIS)]),
        torch: None,
        goals: None,
    },
    Way {
        name: "fsdp",
        // As in torch, what is in no layer stays gathered between forward and backward.
        homes: Some(|| {
            let rest = Strategy::fsdp(AXIS).reshard(Reshard::AfterBackward);
            [Strategy::fsdp(AXIS), rest]
        }),
        torch: Some(["torch, FSDP2", "fsdp"]),
        goals: Some([0.90, 0.95]),
    },
];

impl Way {
    fn ranks(&self) -> usize {
        1 + usize::from(self.homes.is_some())
    }
}

/// A contestant of meshgrad, and torch's on the same.
struct Pair {
    way: &'static Way,
    ours: Contestant,
    torch: Option<Contestant>,
}

impl Pair {
    fn contestants(&self) -> impl Iterator<Item = &Contestant> {
        std::iter::once(&self.ours).chain(&self.torch)
    }

    /// How many times as fast as torch meshgrad is.
    fn lead(&self, sequences: usize) -> Option<f64> {
        let torch = self.torch.as_ref()?;
        Some(median(torch, sequences) / median(&self.ours, sequences))
    }
}

/// Milliseconds of a step.
fn median(contestant: &Contestant, sequences: usize) -> f64 {
    contestant.milliseconds(sequences, |step| step.seconds).median
}

fn main() -> anyhow::Result<()> {
    let mut arguments = Arguments::parse();
    arguments.turns = arguments.turns.or_smoke(&arguments.options);
    let sequences = match arguments.options.smoke {
        true => &SEQUENCES[..1],
        false => &SEQUENCES,
    };
    let folder = std::env::temp_dir().join(format!("meshgrad-data-{}", std::process::id()));
    let measured = start(&arguments, &folder).and_then(|mut pairs| {
        let contestants = pairs
            .iter_mut()
            .flat_map(|pair| std::iter::once(&mut pair.ours).chain(&mut pair.torch));
        arguments.turns.run(&mut contestants.collect::<Vec<_>>(), sequences)?;
        Ok(pairs)
    });
    let _ = std::fs::remove_dir_all(&folder);
    report(&arguments, &measured?, sequences)
}

/// Starts all contestants. The first of torch writes the weights to `folder`.
fn start(arguments: &Arguments, folder: &Path) -> anyhow::Result<Vec<Pair>> {
    let start = |way: &'static Way| {
        let torch = match (&arguments.peer.torch, way.torch) {
            (Some(python), Some(torch)) => {
                Some(start_torch(arguments, python, torch, way, folder)?)
            }
            _ => None,
        };
        eprintln!("starting {}", way.name);
        let folder = arguments.peer.torch.as_ref().map(|_| folder.to_owned());
        let launch = move |inboxes: &[Inbox]| {
            let local = Local::new(way.ranks()).threads(2 / way.ranks());
            local.launch(|rank| train(way, rank, folder.as_deref(), &inboxes[rank.rank()]))?;
            Ok(())
        };
        let ours = Ranks::start(way.ranks(), launch);
        Ok(Pair { way, ours: Contestant::ranks(format!("meshgrad, {}", way.name), ours), torch })
    };
    WAYS.iter().map(start).collect()
}

fn start_torch(
    arguments: &Arguments,
    python: &Path,
    [name, torch]: [&str; 2],
    way: &Way,
    folder: &Path,
) -> anyhow::Result<Contestant> {
    eprintln!("starting {name}");
    let (ranks, threads) = (way.ranks(), 2 / way.ranks());
    let turns = &arguments.turns;
    let windows = (turns.rounds + 1) * turns.steps * SEQUENCES.iter().sum::<usize>();
    let options =
        format!("--way {torch} --ranks {ranks} --threads {threads} --windows {windows} --folder");
    let folder = folder.display().to_string();
    let options: Vec<&str> = options.split(' ').chain([&folder[..]]).collect();
    let peer = Peer::start(python, "data_parallel.py", &options)?;
    Ok(Contestant::peer(name, peer))
}

/// A rank: trains in each turn.
fn train(way: &Way, rank: &LocalRank, folder: Option<&Path>, inbox: &Inbox) -> anyhow::Result<()> {
    let (device, world) = (rank.device(), rank.world()?);
    let training = |model: Decoder| {
        match folder {
            Some(folder) => drop(hf::Loader::new(folder).fill(&model, device)?),
            None => model.materialize(device, 0)?,
        }
        let mut learner = Learner::new(model, device, DType::F32, &learner::adamw())?;
        let mut tokens = Stream::new();
        inbox.serve(|turn: Turn| {
            let batches = (0..turn.steps).map(|_| {
                let whole = tokens.batch(device, turn.sequences)?;
                rows_of(&whole, way)
            });
            let batches = batches.collect::<anyhow::Result<Vec<TokenBatch>>>()?;
            world.barrier()?.wait()?;
            batches.iter().map(|batch| step(&mut learner, batch)).collect()
        })
    };
    let model = Decoder::new(&Qwen3Config::from_json(CONFIG)?)?;
    let Some(homes) = way.homes else {
        return training(model);
    };
    let mesh = Mesh::new(&[way.ranks()], &AXIS)?;
    Redistributor::new(rank).run_on(&mesh, || {
        let plan = model.plan(&ModelParallelism::new(&mesh))?;
        plan.apply(&model, rank.rank())?;
        let [layers, rest] = homes();
        DataParallel::new(rank, &mesh, rest).unit("model.layers.*", layers).apply(&model)?;
        training(model)
    })
}

/// The rank's rows of a batch.
fn rows_of(batch: &TokenBatch, way: &Way) -> anyhow::Result<TokenBatch> {
    if way.homes.is_none() {
        return Ok(batch.clone());
    }
    let rows = |tokens: &Tensor| ops::redistribute(tokens, [(AXIS[0], Placement::shard(0))]);
    Ok(TokenBatch::new(&rows(&batch.ids)?, &rows(&batch.labels)?))
}

fn step(learner: &mut Learner, batch: &TokenBatch) -> anyhow::Result<Step> {
    let (seconds, step) = seconds(|| learner.step(batch));
    Ok(Step { loss: step?.0, seconds, waited: 0.0 })
}

fn report(arguments: &Arguments, pairs: &[Pair], sequences: &[usize]) -> anyhow::Result<()> {
    for &sequences in sequences {
        print_table(pairs, sequences);
    }
    let goals: Vec<Goal> = sequences
        .iter()
        .enumerate()
        .flat_map(|(at, &sequences)| goals(pairs, at, sequences))
        .collect();
    println!("\n| | goal | measured | |\n|---|---|---|---|");
    for Goal { what, least, measured } in &goals {
        let verdict = if measured >= least { "met" } else { "missed" };
        println!("| {what} | {least:.2} | {measured:.2} | {verdict} |");
    }
    let all = || pairs.iter().flat_map(Pair::contestants);
    let apart = loss_difference(all());
    println!("\nlosses of the first steps agree within {apart:.1e}");

    let torch = pairs[0].torch.as_ref();
    let versions = torch.map_or(Value::Null, Contestant::versions);
    if torch.is_some() {
        println!("versions of torch's side: {versions}");
    }
    let report = json!({
        "bench": "data_parallel",
        "rounds": arguments.turns.rounds,
        "steps_a_turn": arguments.turns.steps,
        "tokens_a_sequence": TOKENS,
        "first_losses_agree_within": apart,
        "goals": goals,
        "contestants": all().map(|one| one.json(sequences)).collect::<Vec<_>>(),
    });
    finish(&arguments.options, report, versions)
}

fn print_table(pairs: &[Pair], sequences: usize) {
    println!("\n{sequences} x {TOKENS} tokens: medians (minimum - maximum)\n");
    println!("| | ms per step | tok/s | of one rank | lead over torch |");
    println!("|---|---|---|---|---|");
    let one = &pairs[0];
    for pair in pairs {
        for contestant in pair.contestants() {
            let is_ours = contestant.name == pair.ours.name;
            let one = match is_ours {
                true => Some(&one.ours),
                false => one.torch.as_ref(),
            };
            let of_one = one.map_or(f64::NAN, |one| median(one, sequences));
            let lead = pair.lead(sequences).filter(|_| is_ours);
            println!(
                "| {} | {} | {:.0} | {:.2} | {} |",
                contestant.name,
                contestant.milliseconds(sequences, |step| step.seconds),
                1e3 * (sequences * TOKENS) as f64 / median(contestant, sequences),
                of_one / median(contestant, sequences),
                lead.map_or("-".to_owned(), |lead| format!("{lead:.2} x")),
            );
        }
    }
}

/// A ratio of medians, and what it should be at least.
#[derive(Serialize)]
struct Goal {
    what: String,
    least: f64,
    measured: f64,
}

/// The goals at a batch size, the `at`-th of [`SEQUENCES`].
fn goals(pairs: &[Pair], at: usize, sequences: usize) -> Vec<Goal> {
    let (one, ranks) = (&pairs[0], &pairs[1..]);
    let what = |pair: &Pair, of: &str| format!("{sequences} x {TOKENS}, {}: {of}", pair.way.name);
    let of_one_rank = ranks.iter().filter_map(|pair| {
        Some(Goal {
            what: what(pair, "of one rank's tokens per second"),
            least: pair.way.goals?[at],
            measured: median(&one.ours, sequences) / median(&pair.ours, sequences),
        })
    });
    let leads = ranks.iter().filter_map(|pair| {
        Some(Goal {
            what: what(pair, "lead over torch, at least that on one rank"),
            least: one.lead(sequences)?,
            measured: pair.lead(sequences)?,
        })
    });
    of_one_rank.chain(leads).collect()
}
