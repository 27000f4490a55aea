//! The emulator runs every kernel that the ops launch, in several schedules. It must report no
//! error, every instruction must be executed, and a meta device must count the same work.
//!
//! `cargo test -p meshgrad-runtime --lib launches::schedules -- --nocapture` prints a table.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::{env, fs, io};

use serde::{Deserialize, Serialize};

use super::ptxas::assemble::in_parallel;
use super::{DTYPES, LAUNCHES, launch, launched, sample};
use crate::Device;

/// The number of random schedules of an exhaustive run, in addition to the eager and the lazy one.
const RANDOM_SCHEDULES: u64 = 8;

/// The environment variable with the path that a child process writes its [`Reached`] to.
const REACHED: &str = "MESHGRAD_TEST_REACHED";

/// The executed instructions of each kernel, by its name.
type Reached = BTreeMap<String, Lines>;

/// The lines of a kernel's PTX that hold instructions.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Lines {
    reached: BTreeSet<u32>,
    /// Lines not executed so far, with their text.
    missed: BTreeMap<u32, String>,
}

impl Lines {
    /// Merges the lines of other launches. A line is missed if no launch reached it.
    fn add(&mut self, other: Lines) {
        self.reached.extend(other.reached);
        self.missed.extend(other.missed);
        self.missed.retain(|line, _| !self.reached.contains(line));
    }
}

/// The emulator reads its schedule from the environment once per process. For each schedule, this
/// test therefore starts a child process that runs [`all_launches_in_one_schedule`].
#[test]
fn launches_execute_every_instruction_of_every_kernel() {
    if !Device::emulator_is_built() {
        println!("skipped: the emulator is not built");
        return;
    }
    let folder = env::temp_dir().join(format!("meshgrad-schedules-{}", process::id()));
    fs::create_dir_all(&folder).unwrap();
    let by_schedule = in_parallel(&schedules(), |schedule| reached_in(schedule, &folder));
    fs::remove_dir_all(&folder).unwrap();

    let mut all = Reached::new();
    let kernels = kernels_by_family();
    for (schedule, reached) in by_schedule {
        let idle: Vec<&String> = kernels
            .iter()
            .flat_map(|(_, kernels)| kernels)
            .filter(|kernel| !reached.contains_key(*kernel))
            .collect();
        assert!(idle.is_empty(), "never launched in {schedule}: {idle:?}");
        add(&mut all, reached);
    }
    let missed: Vec<String> =
        kernels.iter().flat_map(|(family, kernels)| missed(family, kernels, &all)).collect();
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

fn add(all: &mut Reached, more: Reached) {
    for (kernel, lines) in more {
        all.entry(kernel).or_default().add(lines);
    }
}

/// Returns the instructions of a family's kernels that no launch executed. Prints the family's row
/// of the table.
fn missed(family: &str, kernels: &BTreeSet<String>, all: &Reached) -> Vec<String> {
    let of_family = || kernels.iter().map(|kernel| (kernel, &all[kernel]));
    let missed: Vec<String> = of_family()
        .flat_map(|(kernel, lines)| {
            let missed = lines.missed.iter();
            missed.map(move |(line, text)| format!("{kernel}: line {line} never executed: {text}"))
        })
        .collect();
    let instructions: usize =
        of_family().map(|(_, lines)| lines.reached.len() + lines.missed.len()).sum();
    println!(
        "{family}: {} kernels, {instructions} instructions, {} never executed",
        kernels.len(),
        missed.len()
    );
    missed
}

/// The kernels of each family, except those that an earlier family launches.
fn kernels_by_family() -> Vec<(&'static str, BTreeSet<String>)> {
    let mut before = BTreeSet::new();
    LAUNCHES
        .iter()
        .map(|(family, launches)| {
            let kernels = launched(*launches).kernels.into_keys();
            let new = kernels.filter(|kernel| before.insert(kernel.clone()));
            (*family, new.collect())
        })
        .collect()
}

/// The emulator's `SCHEDULE` and `ASYNC` options: asynchronous copies complete as early as
/// possible, as late as possible, or at random.
fn schedules() -> Vec<[String; 2]> {
    let random = sample::schedules(RANDOM_SCHEDULES).into_iter().map(|seed| {
        let (schedule, asynchronous) = (2 + seed, 3 + seed);
        [format!("random:{schedule}"), format!("random:{asynchronous}")]
    });
    let plain = [["ordered", "eager"], ["random:1", "lazy"]];
    let plain = plain.map(|options| options.map(str::to_owned));
    plain.into_iter().chain(random).collect()
}

/// Runs all launches in a child process. Returns the name of the schedule and the instructions that
/// were executed.
fn reached_in([schedule, asynchronous]: &[String; 2], folder: &Path) -> (String, Reached) {
    let name = format!("{schedule}-{asynchronous}").replace(':', "");
    let path = folder.join(&name);
    let output = Command::new(env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture"])
        .arg("launches::schedules::all_launches_in_one_schedule")
        .env("MESHGRAD_EMULATOR_SCHEDULE", schedule)
        .env("MESHGRAD_EMULATOR_ASYNC", asynchronous)
        .env("MESHGRAD_EMULATOR_COUNTERS", path.with_extension("counters"))
        .env(REACHED, &path)
        .output()
        .unwrap();
    let words = [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
    assert!(output.status.success(), "{name}: {}", words.concat());
    let reached = fs::read(&path).unwrap();
    (name, serde_json::from_slice(&reached).unwrap())
}

#[test]
#[ignore = "started by launches_execute_every_instruction_of_every_kernel"]
fn all_launches_in_one_schedule() {
    let Some(path) = env::var_os(REACHED).map(PathBuf::from) else {
        println!("skipped: {REACHED} is not set");
        return;
    };
    let counters = path.with_extension("counters");
    let device = Device::emulator(0).unwrap();
    let counted = Device::meta(device.properties());
    let mut all = Reached::new();
    for (family, launches) in LAUNCHES {
        for dtype in DTYPES {
            let run = launch(*launches, &device, dtype).and_then(|()| device.synchronize());
            run.unwrap_or_else(|error| panic!("{family}, {dtype}: {error}"));
            launch(*launches, &counted, dtype).unwrap();
            assert_eq!(device.work(), counted.work(), "{family}, {dtype}");
            add(&mut all, take(&counters).unwrap());
        }
    }
    fs::write(path, serde_json::to_vec(&all).unwrap()).unwrap();
}

/// The emulator's counters of one launch.
#[derive(Deserialize)]
struct Counters {
    kernel: String,
    by_instruction: Vec<Executed>,
    unreached: Vec<Unreached>,
}

#[derive(Deserialize)]
struct Executed {
    line: u32,
}

#[derive(Deserialize)]
struct Unreached {
    line: u32,
    text: String,
}

/// Reads the counters of the launches since the last call, and deletes the file.
fn take(counters: &Path) -> io::Result<Reached> {
    let mut reached = Reached::new();
    for launch in fs::read_to_string(counters)?.lines() {
        let launch: Counters = serde_json::from_str(launch)?;
        let lines = Lines {
            reached: launch.by_instruction.iter().map(|it| it.line).collect(),
            missed: launch.unreached.into_iter().map(|it| (it.line, it.text)).collect(),
        };
        reached.entry(launch.kernel).or_default().add(lines);
    }
    fs::remove_file(counters)?;
    Ok(reached)
}
