//! Times loads, plans and saves of checkpoints, compared with common libraries and with plain reads
//! and writes.
//!
//! ```text
//! cargo bench --bench checkpoint -- [--torch venv/bin/python] [--json FILE] [--gigabytes 2]
//! ```
//!
//! Times are comparable only on a quiet machine and with the same kind of destination memory.
//! Samples that other processes disturbed are repeated, and the report shows the destination memory
//! of each load. Goals for bytes, memory and plan digests do not depend on the clock, so missing
//! one is a failure.

mod counts;
mod files;
mod goals;
mod loads;
mod noise;
mod peers;
mod planning;
mod rounds;
mod saves;

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use files::{Files, Sizes};
use goals::Goal;
use meshgrad_harness::{Options, PeerOptions, finish};
use noise::Monitor;
use peers::Peers;
use planning::Steps;
use rounds::{Cache, Length, Measurement, measure};
use serde_json::{Value, json};

/// Times loads, plans and saves of checkpoints against other libraries.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    peer: PeerOptions,
    /// Size of the checkpoint.
    #[arg(long, default_value_t = 2.0)]
    gigabytes: f64,
    /// Clean samples per contestant.
    #[arg(long, default_value_t = 7)]
    samples: usize,
    /// After this many minutes only contestants without a sample continue.
    #[arg(long, default_value_t = 15.0)]
    minutes: f64,
    /// Maximum seconds to wait for a quiet moment before each sample.
    #[arg(long, default_value_t = 4.0)]
    patience: f64,
    /// What to measure [default: all].
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// Internal, for the child process: loads a checkpoint and prints how much the process's memory
    /// grew.
    #[arg(long, hide = true, num_args = 2, value_names = ["FOLDER", "BACKEND"])]
    measure_memory: Option<Vec<String>>,
    /// Where to create the checkpoints, which are removed at the end [default: the system's
    /// temporary folder].
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Part {
    /// Measurements that need no clock.
    Counts,
    Loads,
    Planning,
    Saves,
}

impl Arguments {
    fn measures(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    fn sizes(&self) -> Sizes {
        match self.options.smoke {
            true => Sizes::smoke(),
            false => Sizes::of((self.gigabytes * 1e9) as usize),
        }
    }

    fn patience(&self) -> Duration {
        match self.options.smoke {
            true => Duration::ZERO,
            false => Duration::from_secs_f64(self.patience),
        }
    }

    fn length(&self) -> Length {
        let (samples, max_rounds) = match self.options.smoke {
            true => (1, 1),
            false => (self.samples, 3 * self.samples),
        };
        Length {
            samples,
            max_rounds,
            deadline: Instant::now() + Duration::from_secs_f64(60.0 * self.minutes),
        }
    }
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if let Some([folder, backend]) = arguments.measure_memory.as_deref() {
        return counts::print_memory(folder.as_ref(), backend);
    }
    let (sizes, length) = (arguments.sizes(), arguments.length());
    let root = arguments.folder.clone().unwrap_or_else(std::env::temp_dir);
    let root = tempfile::Builder::new().prefix("meshgrad-checkpoint-").tempdir_in(root)?;

    let peers = Peers::start(&arguments.peer)?;
    let monitor = Monitor::new(peers.process(), arguments.patience());
    let files = Files::make(root.path(), &sizes)?;
    if arguments.measures(Part::Loads) {
        peers.prepare(&files.blocks)?;
    }
    let arena = loads::arena(sizes.bytes())?;

    let mut goals = Vec::new();
    let (mut share_rows, mut memory_rows) = (Value::Null, Value::Null);
    if arguments.measures(Part::Counts) {
        goals = counts::shares(&files, &peers, &mut share_rows)?;
        goals.extend(counts::memory(&files.blocks, &mut memory_rows)?);
        goals.push(counts::digests(&files.many)?);
    }

    let mut loaded = Vec::new();
    if arguments.measures(Part::Loads) {
        let mut loads = loads::contestants(&files.blocks, &arena);
        loads.push(loads::transpose_in_memory(sizes.tensor, &arena));
        loads.extend(peers.loads(&files.blocks));
        loaded = measure(&mut loads, Cache::Warm, &monitor, length)?;
        loads.retain(|it| !it.files.is_empty());
        loaded.extend(measure(&mut loads, Cache::Cold, &monitor, length)?);
        print_table("Loading", &loaded, sizes.bytes());
    }

    let steps: [RefCell<Steps>; 3] = Default::default();
    let mut planned = Vec::new();
    if arguments.measures(Part::Planning) {
        let mut planning = planning::contestants(&files.many, &steps);
        planning.extend(peers.headers(&files.many));
        planned = measure(&mut planning, Cache::Warm, &monitor, length)?;
        print_table(&format!("Opening {} tensors", sizes.many), &planned, 0);
    }

    let folder = files.blocks.join("saved");
    let mut saved = Vec::new();
    if arguments.measures(Part::Saves) {
        let mut saves = saves::contestants(&folder, &sizes, &arena);
        saves.push(saves::checksum(&folder, &arena));
        saves.extend(peers.saves(&files.blocks));
        saved = measure(&mut saves, Cache::Warm, &monitor, length)?;
        print_table("Saving", &saved, sizes.bytes());
    }

    let measurements: Vec<&Measurement> =
        [&loaded, &planned, &saved].into_iter().flatten().collect();
    goals.extend(timed_goals(&measurements, &sizes));
    println!("\n| | | goal | measured | |\n|---|---|---|---|---|");
    goals.iter().for_each(|goal| println!("{}", goal.row()));

    let json = |measurements: &[Measurement]| {
        measurements.iter().map(Measurement::json).collect::<Vec<_>>()
    };
    let steps = steps.iter().map(|it| it.borrow().json());
    let report = json!({
        "bench": "checkpoint",
        "bytes": sizes.bytes(),
        "tensors": sizes.blocks * files::PARTS,
        "threads": loads::THREADS,
        "samples_wanted": length.samples,
        "loads": json(&loaded),
        "tensors_planned": sizes.many,
        "planning": json(&planned),
        "planning_steps": steps.collect::<Value>(),
        "saves": json(&saved),
        "shares": share_rows,
        "memory": memory_rows,
        "goals": goals.iter().map(Goal::json).collect::<Vec<_>>(),
    });
    finish(&arguments.options, report, peers.versions())?;
    let failures = goals.iter().filter(|goal| goal.is_failure()).count();
    anyhow::ensure!(failures == 0, "{failures} goals that do not depend on the clock were missed");
    Ok(())
}

fn print_table(title: &str, measurements: &[Measurement], bytes: u64) {
    println!("\n{title}: medians (min - max)\n");
    println!("| | into | | seconds | GB/s | own CPU s | samples |");
    println!("|---|---|---|---|---|---|---|");
    measurements.iter().for_each(|it| println!("{}", it.row(bytes)));
}

/// The goals for times, as ratios of medians within one run.
fn timed_goals(measurements: &[&Measurement], sizes: &Sizes) -> Vec<Goal> {
    use Cache::{Cold, Warm};

    let median = |name: &str, cache: Cache| {
        let found = measurements.iter().find(|it| it.name == name && it.cache == cache)?;
        Some(found.seconds()?.median)
    };
    // The speed of `ours` relative to `other`.
    let speed = |ours: &str, other: &str, cache| Some(median(other, cache)? / median(ours, cache)?);
    let gigabytes = sizes.bytes() as f64 / 1e9;
    let rate = |name: &str, share: f64| Some(share * gigabytes / median(name, Warm)?);
    let (identity, stack) = ("meshgrad identity", "meshgrad stack 10 to 1");
    let direct = "meshgrad identity, O_DIRECT";

    let mut goals = vec![Goal::at_least(
        "L5",
        "speed of identity / plain pread, warm",
        speed(identity, "plain pread, 2 threads", Warm),
        0.85,
    )];
    for ours in [stack, "meshgrad concat 10 to 1", "meshgrad rename"] {
        let what = format!("speed of {} / identity, warm", &ours["meshgrad ".len()..]);
        goals.push(Goal::at_least("L6", &what, speed(ours, identity, Warm), 0.95));
    }
    let dd = "O_DIRECT as dd reads, 1 thread";
    // The cost of digests of data that was just read, and of digests in a separate pass.
    let digesting = || Some(median(loads::DIGESTED, Warm)? - median(loads::CHUNKED, Warm)?);
    let pass = || median(saves::CHECKSUM, Warm);
    let of_identity = |seconds: Option<f64>, cache| Some(seconds? / median(identity, cache)?);
    let ms = |name: &str| Some(1e3 * median(name, Warm)?);
    goals.extend([
        Goal::at_least("L7", "speed of O_DIRECT / dd's, cold", speed(direct, dd, Cold), 0.9),
        Goal::at_least(
            "L8",
            "speed of stack / torch.stack's, warm",
            speed(stack, peers::STACK, Warm),
            1.0,
        ),
        Goal::at_least("L8", "speed of stack / d9d's, warm", speed(stack, peers::D9D, Warm), 1.3),
        Goal::at_least("L8", "speed of stack / d9d's, cold", speed(stack, peers::D9D, Cold), 2.0),
        Goal::at_most("L9", "ms to open and plan, without a map", ms(planning::DIRECTLY), 150.0),
        Goal::at_most(
            "L9",
            "ms to open, bind and plan, identity map",
            ms(planning::BY_IDENTITY),
            150.0,
        ),
        Goal::at_most(
            "L9",
            "ms to open, bind and plan, experts stacked",
            ms(planning::BY_STACKED),
            150.0,
        ),
        Goal::at_most(
            "L10",
            "seconds added by digesting while reading / identity, warm",
            of_identity(digesting(), Warm),
            0.15,
        ),
        Goal::at_most(
            "L10",
            "seconds of a separate digest pass / identity, warm",
            of_identity(pass(), Warm),
            0.15,
        ),
        Goal::at_most(
            "L10",
            "seconds of a separate digest pass / identity, cold",
            of_identity(pass(), Cold),
            0.15,
        ),
        Goal::at_least(
            "L11",
            "speed of saving / dd's",
            speed(saves::OURS, saves::LIKE_DD, Warm),
            0.8,
        ),
        Goal::at_least(
            "-",
            "GB/s per core of transposing while loading",
            rate("meshgrad transpose, 1 thread", 1.0),
            4.0,
        ),
        Goal::at_least(
            "-",
            "GB/s per core of transposing in memory",
            rate(loads::TRANSPOSE_IN_MEMORY, 0.5),
            4.0,
        ),
    ]);
    goals
}
