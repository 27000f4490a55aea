//! Times checking a parallel configuration and computing its groups, compared with megatron-core
//! and torchtitan for the same degrees. There is no communication. The measurements are
//! interleaved.
//!
//! ```text
//! cargo bench --bench parallel -- [--torch venv/bin/python] [--json FILE]
//! ```
//!
//! `--torch` is a Python with the packages of scripts/parallel-golden/requirements.txt.
//!
//! | figure | what is timed |
//! |---|---|
//! | check | checking settings: degrees, order, domains, all groups |
//! | groups of rank 0 | check, plus the ranks of each group of rank 0 |
//! | all lists | check, plus the lists of all groups for Megatron's tokens (such as `tp-dp`) |

use std::hint::black_box;

use clap::Parser;
use meshgrad::dist::parallel::{
    Order, ParallelConfig, ParallelState, Parallelism, Settings, Source,
};
use meshgrad_harness::{Options, Peer, PeerOptions, Spread, finish, numbers, seconds};
use serde_json::{Value, json};

/// Degrees for each world size, as in `benches/torch/parallel_dims.py`.
const CONFIGURATIONS: [(usize, [(Parallelism, usize); 5]); 2] = [
    (
        1_024,
        [
            (Parallelism::Pp, 8),
            (Parallelism::DpReplicate, 2),
            (Parallelism::CpShard, 2),
            (Parallelism::Tp, 2),
            (Parallelism::Ep, 64),
        ],
    ),
    (
        100_000,
        [
            (Parallelism::Pp, 10),
            (Parallelism::DpReplicate, 5),
            (Parallelism::CpShard, 2),
            (Parallelism::Tp, 8),
            (Parallelism::Ep, 50),
        ],
    ),
];

const OURS: [&str; 3] = ["check", "groups of rank 0", "all lists"];
const THEIRS: [&str; 4] =
    ["torchtitan_check", "torchtitan_meshes", "megatron_lists", "megatron_initialize"];

/// The tokens that `initialize_model_parallel` passes to its two generators.
const DENSE: [&str; 10] =
    ["pp", "dp-cp", "dp", "cp", "tp-pp", "tp", "pp", "tp-dp-cp", "tp-dp", "tp-cp"];
const EXPERT: [&str; 7] = ["pp", "ep", "tp", "tp-ep", "tp-ep-pp", "dp", "tp-ep-pp"];

/// Times the check of parallel configurations.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    peer: PeerOptions,
    /// Number of interleaved rounds.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

fn main() -> anyhow::Result<()> {
    let mut arguments = Arguments::parse();
    if arguments.options.smoke {
        arguments.rounds = 1;
    }
    let mut peer = arguments.peer.start("parallel_dims.py", &["--serve"])?;
    let mut rows = Vec::new();

    println!("| ranks | figure | ms: median (min - max) |\n|---|---|---|");
    for (world, degrees) in CONFIGURATIONS {
        for (figure, times) in rounds(arguments.rounds, world, &degrees, peer.as_mut())? {
            let spread = Spread::of(&times);
            println!("| {world} | {figure} | {} |", in_milliseconds(spread));
            rows.push(json!({"ranks": world, "figure": figure, "ms": spread.json()}));
        }
    }
    let versions = peer.map_or(Value::Null, |peer| peer.hello["peers"].clone());
    let report = json!({"bench": "parallel", "rounds": arguments.rounds, "figures": rows});
    finish(&arguments.options, report, versions)
}

fn in_milliseconds(spread: Spread) -> String {
    format!("{:.4} ({:.4} - {:.4})", spread.median, spread.min, spread.max)
}

/// Milliseconds of each figure.
fn rounds(
    rounds: usize,
    world: usize,
    degrees: &[(Parallelism, usize)],
    mut peer: Option<&mut Peer>,
) -> anyhow::Result<Vec<(String, Vec<f64>)>> {
    let settings = settings(world, degrees);
    let mut ours = OURS.map(|figure| (format!("meshgrad: {figure}"), Vec::new()));
    let mut theirs = THEIRS.map(|figure| (figure.replacen('_', ": ", 1), Vec::new()));

    for _ in 0..rounds {
        for ((_, times), milliseconds) in ours.iter_mut().zip(milliseconds_of(&settings)?) {
            times.push(milliseconds);
        }
        let Some(peer) = peer.as_deref_mut() else {
            continue;
        };
        let answer = peer.ask(&json!({"figures": THEIRS, "world": world}))?;
        for ((_, times), seconds) in theirs.iter_mut().zip(numbers(&answer["seconds"])) {
            times.push(1e3 * seconds);
        }
    }
    let all = ours.into_iter().chain(theirs);
    Ok(all.filter(|(_, times)| !times.is_empty()).collect())
}

fn settings(world: usize, degrees: &[(Parallelism, usize)]) -> Settings {
    let mut settings = Settings::new();
    let location = || Source::code("the bench");
    settings.world(world, location()).order(Order::MEGATRON, location());
    for (kind, size) in degrees {
        settings.set(*kind, *size, location());
    }
    settings.set(Parallelism::Etp, 1, location());
    settings
}

/// Milliseconds of each of [`OURS`].
fn milliseconds_of(settings: &Settings) -> anyhow::Result<[f64; 3]> {
    let (check, config) = seconds(|| ParallelConfig::new(settings));
    let config = config?;
    let state = ParallelState::new(config.clone());
    let (of_rank, groups) = seconds(|| state.groups_of(0));
    black_box(groups);
    let (lists, done) = seconds(|| -> anyhow::Result<()> {
        for (generator, tokens) in
            [(config.dense_generator(), &DENSE[..]), (config.expert_generator(), &EXPERT)]
        {
            for token in tokens {
                black_box(generator.ranks(token)?);
            }
        }
        Ok(())
    });
    done?;
    Ok([check, check + of_rank, check + lists].map(|seconds| 1e3 * seconds))
}
