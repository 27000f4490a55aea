//! Redistributions beside those of torch's DTensor on gloo, the cost of finding a plan that is
//! known, and of making one. The measurements are interleaved: in every round, each contestant
//! starts its ranks, measures all figures and ends.
//!
//! ```text
//! cargo bench -p meshgrad-comm --bench redistribute -- [--torch venv/bin/python] [--json FILE]
//! ```
//!
//! The ranks of `local` are threads; those of `host` and `dtensor` are processes of this host. Each
//! rank computes with one thread. A figure is the mean time of a call on the slowest rank, where
//! each call starts after the previous one is complete.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use clap::{Parser, ValueEnum};
use meshgrad_collectives::Redistribute;
use meshgrad_comm::{Collectives, Local, Plan, Rank, Redistributor, Reduction, Tcp};
use meshgrad_harness::{Options, PeerOptions, Spread, finish, interleave, seconds};
use meshgrad_mesh::{
    Hosts, LinkCosts, Mesh, Placement, Redistribution, Reduction as Partial, Sharding,
};
use meshgrad_runtime::{DType, Error, Kind, Result, Tensor};
use serde_json::{Value, json};

const RANKS: [usize; 2] = [2, 4];
/// The extents of square f32 tensors of 4 KiB to 16 MiB.
const EXTENTS: [usize; 4] = [32, 128, 512, 2048];
/// Up to this size, the goal is to be twice as fast as DTensor.
const GOAL_BYTES: usize = 1 << 20;

/// Times redistributions.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    peer: PeerOptions,
    /// Number of interleaved rounds.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// What a started process does.
    #[arg(long, hide = true)]
    role: Option<Contestant>,
    #[arg(long, hide = true, default_value_t = 0)]
    rank: usize,
    #[arg(long, hide = true, default_value_t = 2)]
    ranks: usize,
    /// The file through which processes meet.
    #[arg(long, hide = true)]
    meeting: Option<PathBuf>,
}

/// Whose redistributions are measured.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Contestant {
    Local,
    Tcp,
    Dtensor,
}

/// A figure: the name of the redistribution, the bytes of the whole tensor and the ranks.
type Figure = (String, usize, usize);
type Samples = BTreeMap<Figure, BTreeMap<Contestant, Vec<f64>>>;

fn main() -> anyhow::Result<()> {
    let mut arguments = Arguments::parse();
    if arguments.options.smoke {
        arguments.rounds = 0;
    }
    let ranks = arguments.ranks;
    match (arguments.role, &arguments.meeting) {
        (None, _) => compare(&arguments),
        (Some(Contestant::Local), _) => {
            Local::new(ranks).threads(1).launch(|rank| measure(rank))?;
            Ok(())
        }
        (Some(Contestant::Tcp), Some(meeting)) => {
            let host = Tcp::through_file(arguments.rank, ranks, meeting);
            Ok(measure(&host.threads(1).join()?)?)
        }
        _ => bail!("dtensor.py does this"),
    }
}

/// The redistributions of a square tensor on one axis.
fn redistributions() -> [(&'static str, Placement, Placement); 4] {
    let (rows, columns) = (Placement::shard(0), Placement::shard(1));
    let (partial, whole) = (Placement::Partial(Partial::Sum), Placement::Replicate);
    [
        ("shard(0) to replicate", rows.clone(), whole.clone()),
        ("shard(0) to shard(1)", rows.clone(), columns),
        ("partial to shard(0)", partial.clone(), rows),
        ("partial to replicate", partial, whole),
    ]
}

/// What a rank does. Rank 0 prints the figures.
fn measure(rank: &dyn Rank) -> Result<()> {
    let (world, redistributor) = (rank.world()?, Redistributor::new(rank));
    let mesh = Mesh::new(&[rank.world_size()], &["tp"])?;
    for (name, from, to) in redistributions() {
        for extent in EXTENTS {
            let sharding = |placement: &Placement| {
                Sharding::new(&mesh, [("tp", placement.clone())], &[extent, extent])
            };
            let (from, to) = (sharding(&from)?, sharding(&to)?);
            let shape = from.local_shape(rank.rank()).unwrap_or_default();
            let x = Tensor::zeros(rank.device(), &shape, DType::F32, Kind::Value)?;
            let x = x.with_sharding(&from, rank.rank())?;

            let bytes = 4 * extent * extent;
            let calls = calls(bytes);
            for _ in 0..2 {
                redistributor.redistribute(&x, &to)?;
            }
            world.barrier()?.wait()?;
            let began = Instant::now();
            for _ in 0..calls {
                redistributor.redistribute(&x, &to)?;
            }
            let own = began.elapsed().as_secs_f64() / calls as f64;
            let own = Tensor::scalar(rank.device(), own)?;
            let slowest: f64 = world.all_reduce(&own, Reduction::Max)?.wait()?.item()?;
            if rank.rank() == 0 {
                println!("figure {bytes} {slowest:e} {name}");
            }
        }
    }
    Ok(())
}

fn calls(bytes: usize) -> usize {
    ((16 << 20) / bytes).clamp(5, 50)
}

/// Starts all contestants, in turn.
fn compare(arguments: &Arguments) -> anyhow::Result<()> {
    let torch = arguments.peer.torch.as_deref();
    let mut contestants = vec![Contestant::Local, Contestant::Tcp];
    contestants.extend(torch.map(|_| Contestant::Dtensor));
    let mut samples = Samples::new();
    for ranks in RANKS {
        interleave(contestants.len(), arguments.rounds, |round, at| {
            for (figure, seconds) in run(contestants[at], ranks, torch)? {
                if round > 0 || arguments.rounds == 0 {
                    let of_figure = samples.entry(figure).or_default();
                    of_figure.entry(contestants[at]).or_default().push(seconds);
                }
            }
            anyhow::Ok(())
        })?;
    }
    let rows = report(&samples, &contestants);
    let known = known_plans()?;
    let made = made_plans(if arguments.options.smoke { 1 } else { 5 })?;
    let report = json!({
        "bench": "redistribute", "rounds": arguments.rounds,
        "figures": rows, "known_plan_ns": known, "new_plan_ms": made,
    });
    finish(&arguments.options, report, version(torch))
}

/// Starts the ranks of a contestant, and reads its figures.
fn run(
    contestant: Contestant,
    ranks: usize,
    torch: Option<&Path>,
) -> anyhow::Result<Vec<(Figure, f64)>> {
    let own = std::env::current_exe()?;
    let value = contestant.to_possible_value();
    let role = value.map_or_else(String::new, |value| value.get_name().to_owned());
    let processes = if contestant == Contestant::Local { 1 } else { ranks };
    let meeting = std::env::temp_dir().join(format!("redistribute-{}", std::process::id()));
    // A file of the last ranks would be taken for the meeting point.
    let _ = std::fs::remove_file(&meeting);
    let start = |rank: usize| -> anyhow::Result<Child> {
        let mut command = match (contestant, torch) {
            (Contestant::Dtensor, Some(python)) => {
                let mut command = Command::new(python);
                command.arg(
                    Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/redistribute/dtensor.py"),
                );
                command
            }
            _ => Command::new(&own),
        };
        command.args(["--role", &role, "--rank", &rank.to_string()]);
        command.args(["--ranks", &ranks.to_string(), "--meeting"]).arg(&meeting);
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().context("cannot start a rank")
    };
    let children = (0..processes).map(start).collect::<anyhow::Result<Vec<_>>>()?;
    let mut figures = Vec::new();
    for child in children {
        let output = child.wait_with_output()?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{role} failed: {error}");
        let text = String::from_utf8_lossy(&output.stdout);
        for line in text.lines().filter_map(|line| line.strip_prefix("figure ")) {
            let figure = figure(line, ranks).with_context(|| format!("`{line}` is no figure"))?;
            figures.push(figure);
        }
    }
    let _ = std::fs::remove_file(&meeting);
    Ok(figures)
}

fn figure(line: &str, ranks: usize) -> Option<(Figure, f64)> {
    let mut words = line.splitn(3, ' ');
    let (bytes, seconds) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    Some(((words.next()?.to_owned(), bytes, ranks), seconds))
}

/// Prints a table of microseconds and whether the goal is reached, and returns the table's rows.
fn report(samples: &Samples, contestants: &[Contestant]) -> Vec<Value> {
    println!("us per call: median (minimum - maximum)\n");
    println!("| redistribution | bytes | ranks | local | host | dtensor | dtensor / host |");
    println!("|---|---|---|---|---|---|---|");
    let mut rows = Vec::new();
    let (mut reached, mut missed) = (0, Vec::new());
    for ((name, bytes, ranks), of_figure) in samples {
        let micros = |contestant| {
            let samples: &Vec<f64> = of_figure.get(&contestant)?;
            let micros: Vec<f64> = samples.iter().map(|seconds| 1e6 * seconds).collect();
            Spread::try_of(&micros)
        };
        let [local, host, dtensor] =
            [Contestant::Local, Contestant::Tcp, Contestant::Dtensor].map(micros);
        let ratio = dtensor.zip(host).map(|(dtensor, host)| dtensor.median / host.median);
        let text = ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
        let cells = [local, host, dtensor].map(meshgrad_harness::cell).join(" | ");
        println!("| {name} | {bytes} | {ranks} | {cells} | {text} |");
        match ratio {
            Some(ratio) if *bytes <= GOAL_BYTES && ratio >= 2.0 => reached += 1,
            Some(_) if *bytes <= GOAL_BYTES => {
                missed.push(format!("{name}, {bytes} bytes, {ranks} ranks"))
            }
            _ => {}
        }
        let [local, host, dtensor] = [local, host, dtensor].map(|spread| spread.map(Spread::json));
        rows.push(json!({
            "redistribution": name, "bytes": bytes, "ranks": ranks,
            "us": {"local": local, "host": host, "dtensor": dtensor},
        }));
    }
    if contestants.contains(&Contestant::Dtensor) {
        let all = reached + missed.len();
        println!(
            "\ngoal: host at least twice as fast as DTensor up to 1 MiB: reached in {reached} of {all} figures"
        );
        missed.iter().for_each(|figure| println!("missed: {figure}"));
    }
    rows
}

/// A mesh of `axes` axes of two ranks, and shardings of a tensor on it: all axes on dim 0, the same
/// in the other order, all on dim 1, and partial.
fn shardings(axes: usize) -> anyhow::Result<Vec<Sharding>> {
    let names: Vec<String> = (0..axes).map(|axis| format!("axis{axis}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mesh = Mesh::new(&vec![2; axes], &names)?;
    let sharding = |placement: &Placement, names: &[&str]| {
        let along: Vec<_> = names.iter().map(|name| (*name, placement.clone())).collect();
        Sharding::new(&mesh, along, &[4096, 4096])
    };
    let backwards: Vec<&str> = names.iter().rev().copied().collect();
    Ok(vec![
        sharding(&Placement::shard(0), &names)?,
        sharding(&Placement::shard(0), &backwards)?,
        sharding(&Placement::shard(1), &names)?,
        sharding(&Placement::Partial(Partial::Sum), &names)?,
        sharding(&Placement::Replicate, &names)?,
    ])
}

/// Nanoseconds to find a known plan, and to redistribute if there is nothing to do.
fn known_plans() -> anyhow::Result<Value> {
    const LOOKUPS: usize = 100_000;
    println!("\n| axes | ns to find a known plan | ns of a redistribution to the same sharding |");
    println!("|---|---|---|");
    let mut rows = Vec::new();
    for axes in [1, 2, 4] {
        let all = shardings(axes)?;
        let (mut known, mut nothing) = (Vec::new(), Vec::new());
        Plan::new(1 << axes)?.trace(0, |rank| {
            let redistributor = Redistributor::new(rank);
            let shape = all[0].local_shape(0).unwrap_or_default();
            let x = Tensor::zeros(Rank::device(rank), &shape, DType::F32, Kind::Value)?;
            let x = x.with_sharding(&all[0], 0)?;
            for pair in all.iter().flat_map(|from| all.iter().map(move |to| (from, to))) {
                redistributor.plan(pair.0, pair.1, 32)?;
            }
            for _ in 0..11 {
                let (time, done) = seconds(|| {
                    (0..LOOKUPS).try_for_each(|at| {
                        let (from, to) = (&all[at % all.len()], &all[at / all.len() % all.len()]);
                        black_box(redistributor.plan(from, to, 32)?);
                        Ok::<_, Error>(())
                    })
                });
                done?;
                known.push(1e9 * time / LOOKUPS as f64);
                let (time, done) = seconds(|| {
                    (0..LOOKUPS).try_for_each(|_| {
                        black_box(redistributor.redistribute(&x, &all[0])?);
                        Ok::<_, Error>(())
                    })
                });
                done?;
                nothing.push(1e9 * time / LOOKUPS as f64);
            }
            Ok::<_, Error>(())
        })?;
        let (known, nothing) = (Spread::of(&known), Spread::of(&nothing));
        println!("| {axes} | {known} | {nothing} |");
        rows.push(json!({"axes": axes, "known": known.json(), "nothing": nothing.json()}));
    }
    Ok(json!(rows))
}

/// Milliseconds to make a plan between all pairs of [`shardings`], on hosts of 4 ranks.
fn made_plans(rounds: usize) -> anyhow::Result<Value> {
    println!("\n| axes | ms to make a plan, over all pairs |");
    println!("|---|---|");
    let mut rows = Vec::new();
    for axes in 1..=6 {
        let all = shardings(axes)?;
        let mut times = Vec::new();
        for _ in 0..rounds {
            for (from, to) in all.iter().flat_map(|from| all.iter().map(move |to| (from, to))) {
                let (hosts, links) = (Hosts::Uniform(4), LinkCosts::default());
                let (time, plan) = seconds(|| Redistribution::plan(from, to, 32, &hosts, &links));
                black_box(plan?);
                times.push(1e3 * time);
            }
        }
        let times = Spread::of(&times);
        println!("| {axes} | {times} |");
        rows.push(json!({"axes": axes, "ms": times.json()}));
    }
    Ok(json!(rows))
}

fn version(torch: Option<&Path>) -> Value {
    let version = |python: &Path| {
        let print = ["-c", "import torch; print(torch.__version__)"];
        let output = Command::new(python).args(print).output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    json!({"torch": torch.and_then(version)})
}
