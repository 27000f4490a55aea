//! Latency and bandwidth of collectives over every transport, compared with gloo and with plain MPI
//! calls. The measurements are interleaved: in every round, each contestant starts its ranks,
//! measures all sizes and ends.
//!
//! ```text
//! cargo bench -p meshgrad-comm --features mpi --bench collectives -- [--torch venv/bin/python] [--json FILE]
//! ```
//!
//! mpirun starts the ranks of all contestants except `local`, whose ranks are threads. Each rank
//! computes with one thread. A figure is the mean time of a call on the slowest rank, where each
//! call starts after the previous one is complete.

mod raw;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};
use clap::{Parser, ValueEnum};
use meshgrad_collectives::{Counters, Counts, Fingerprint, Request};
use meshgrad_comm::launch::Environment;
use meshgrad_comm::speed::{self, MEASURED, Timing};
use meshgrad_comm::{Collective, Local, Mpi, ProcessRank, Rank};
use meshgrad_harness::{Options, PeerOptions, Spread, finish, interleave, seconds};
use meshgrad_runtime::Result;
use serde_json::{Value, json};

const RANKS: [usize; 3] = [2, 4, 8];
/// Bytes of the whole tensor.
const SIZES: [usize; 7] = [8, 1 << 10, 16 << 10, 256 << 10, 1 << 20, 8 << 20, 64 << 20];

/// Times collectives.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    peer: PeerOptions,
    /// Number of interleaved rounds.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Bytes of the largest tensor.
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20)]
    max_bytes: usize,
    /// What a started rank does.
    #[arg(long, hide = true)]
    role: Option<Contestant>,
    /// The ranks of `local`.
    #[arg(long, hide = true, default_value_t = 2)]
    ranks: usize,
}

/// Whose collectives are measured.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
enum Contestant {
    Local,
    Tcp,
    Mpi,
    /// Calls of MPI.
    Raw,
    Gloo,
}

/// A figure: the collective, the bytes and the ranks.
type Figure = (&'static str, usize, usize);
type Samples = BTreeMap<(Figure, Contestant), Vec<f64>>;

fn main() -> anyhow::Result<()> {
    let mut arguments = Arguments::parse();
    if arguments.options.smoke {
        (arguments.rounds, arguments.max_bytes) = (0, 1 << 10);
    }
    match arguments.role {
        None => compare(&arguments),
        Some(role) => measure(role, &arguments),
    }
}

fn sizes(max: usize) -> impl Iterator<Item = usize> {
    SIZES.into_iter().filter(move |bytes| *bytes <= max)
}

/// What a rank of a contestant does. Rank 0 prints the figures.
fn measure(role: Contestant, arguments: &Arguments) -> anyhow::Result<()> {
    let max = arguments.max_bytes;
    let over = |world: ProcessRank| -> anyhow::Result<()> { Ok(all(&world, max)?) };
    match role {
        Contestant::Local => {
            let local = Local::new(arguments.ranks).threads(1);
            local.launch(|rank| all(rank, max))?;
            Ok(())
        }
        Contestant::Tcp => {
            let environment = Environment::read()?.context("mpirun starts this")?;
            over(environment.tcp()?.threads(1).join()?)
        }
        Contestant::Mpi => over(Mpi::new().threads(1).join()?),
        Contestant::Raw => raw::measure(sizes(max)),
        Contestant::Gloo => bail!("gloo.py does this"),
    }
}

fn all(rank: &dyn Rank, max: usize) -> Result<()> {
    let world = rank.world()?;
    for collective in MEASURED {
        for bytes in sizes(max) {
            let timing = speed::measure(&world, collective, bytes)?;
            if rank.rank() == 0 {
                print(collective, bytes, timing.seconds);
            }
        }
    }
    Ok(())
}

fn print(collective: Collective, bytes: usize, seconds: f64) {
    println!("figure {collective} {bytes} {seconds:e}");
}

/// Starts all contestants, in turn.
fn compare(arguments: &Arguments) -> anyhow::Result<()> {
    let torch = arguments.peer.torch.as_deref();
    let mut contestants =
        vec![Contestant::Local, Contestant::Tcp, Contestant::Mpi, Contestant::Raw];
    contestants.extend(torch.map(|_| Contestant::Gloo));
    let mut samples = Samples::new();
    for ranks in RANKS {
        interleave(contestants.len(), arguments.rounds, |round, contestant| {
            let contestant = contestants[contestant];
            let figures = run(contestant, ranks, arguments, torch)?;
            if round > 0 || arguments.rounds == 0 {
                for (figure, seconds) in figures {
                    samples.entry((figure, contestant)).or_default().push(seconds);
                }
            }
            anyhow::Ok(())
        })?;
    }
    let rows = report(&samples);
    let ticket = nanoseconds_of_a_ticket();
    println!("\na ticket: {ticket} ns");
    let report = json!({
        "bench": "collectives",
        "rounds": arguments.rounds,
        "figures": rows,
        "ticket_ns": ticket.json(),
    });
    finish(&arguments.options, report, versions(torch))
}

/// Starts the ranks of a contestant, and reads its figures.
fn run(
    contestant: Contestant,
    ranks: usize,
    arguments: &Arguments,
    torch: Option<&Path>,
) -> anyhow::Result<Vec<(Figure, f64)>> {
    let own = std::env::current_exe()?;
    let mut command = match (contestant, torch) {
        (Contestant::Local, _) => Command::new(own),
        (Contestant::Gloo, None) => bail!("gloo needs --torch"),
        (Contestant::Gloo, Some(python)) => {
            let mut command = mpirun(ranks);
            command.arg(python).arg(gloo());
            command
        }
        _ => {
            let mut command = mpirun(ranks);
            command.arg(own);
            command
        }
    };
    command.args(["--role", &name(contestant), "--ranks", &ranks.to_string()]);
    let max = arguments.max_bytes.to_string();
    let output = command.args(["--max-bytes", &max]).output();
    let output = output.context("cannot start the ranks; is Open MPI installed?")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{} failed: {error}", name(contestant));
    text.lines()
        .filter_map(|line| line.strip_prefix("figure "))
        .map(|line| figure(line, ranks).with_context(|| format!("`{line}` is not a figure")))
        .collect()
}

fn figure(line: &str, ranks: usize) -> Option<(Figure, f64)> {
    let words: Vec<&str> = line.split(' ').collect();
    let [collective, bytes, seconds] = words[..] else {
        return None;
    };
    let collective = MEASURED.into_iter().find(|it| it.name() == collective)?;
    let figure = (collective.name(), bytes.parse().ok()?, ranks);
    Some((figure, seconds.parse().ok()?))
}

fn mpirun(ranks: usize) -> Command {
    let mut command = Command::new("mpirun");
    command.args(["--oversubscribe", "-n", &ranks.to_string()]);
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1");
    command.env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command
}

fn gloo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/collectives/gloo.py")
}

fn name(contestant: Contestant) -> String {
    let value = contestant.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Prints a table of microseconds, and returns its rows.
fn report(samples: &Samples) -> Vec<Value> {
    println!("| collective | bytes | ranks | contestant | us: median (min - max) | bus GB/s |");
    println!("|---|---|---|---|---|---|");
    let row = |(((collective, bytes, ranks), contestant), samples): (
        &(Figure, Contestant),
        &Vec<f64>,
    )| {
        let spread = Spread::of(samples);
        let micro =
            Spread { median: 1e6 * spread.median, min: 1e6 * spread.min, max: 1e6 * spread.max };
        let kind = MEASURED.into_iter().find(|it| it.name() == *collective);
        let timing = Timing {
            collective: kind.unwrap_or(Collective::Barrier),
            ranks: *ranks,
            bytes: *bytes,
            seconds: spread.median,
        };
        let bus = timing.bus_bandwidth() / 1e9;
        let contestant = name(*contestant);
        println!("| {collective} | {bytes} | {ranks} | {contestant} | {micro} | {bus:.3} |");
        json!({
            "collective": collective, "bytes": bytes, "ranks": ranks, "contestant": contestant,
            "us": micro.json(), "bus_gb_s": (bus * 1e4).round() / 1e4,
        })
    };
    samples.iter().map(row).collect()
}

/// The time to create a collective's ticket: its number, fingerprint and source line.
fn nanoseconds_of_a_ticket() -> Spread {
    const TICKETS: usize = 1_000_000;
    let counters = Counters::new(8);
    let samples = [(); 5].map(|()| {
        let (seconds, ()) = seconds(|| {
            for count in 0..TICKETS {
                let request = Request {
                    fingerprint: Fingerprint {
                        collective: Collective::AllReduce,
                        dtype: Some(meshgrad_runtime::DType::F32),
                        counts: Counts::Even(count),
                        reduction: Some(meshgrad_comm::Reduction::Sum),
                        root: None,
                    },
                    peer: None,
                    caller: std::panic::Location::caller(),
                };
                std::hint::black_box(counters.ticket(request));
            }
        });
        1e9 * seconds / TICKETS as f64
    });
    Spread::of(&samples)
}

fn versions(torch: Option<&Path>) -> Value {
    let output = |command: &mut Command| {
        let output = command.output();
        let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        text.unwrap_or_default().lines().next().map(str::to_owned)
    };
    let of_torch = |python: &Path| {
        output(Command::new(python).args(["-c", "import torch; print(torch.__version__)"]))
    };
    json!({
        "mpirun": output(Command::new("mpirun").arg("--version")),
        "torch": torch.and_then(of_torch),
    })
}
