//! The emulator runs every kernel that the ops launch, in many orders: it finds no mistake, nothing
//! of a kernel is left that no launch reaches, and a device that only counts counts the same.
//!
//! `cargo test -p meshgrad-runtime --lib plan::launches::orders -- --nocapture` shows the table.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::{env, fs, io};

use serde::{Deserialize, Serialize};

use super::ptxas::assemble::in_parallel;
use super::{DTYPES, LAUNCHES, launched};
use crate::Device;

/// Seeds beside the eager and the lazy order.
const RANDOM_ORDERS: u64 = 8;

/// Where the process of one order writes what it reached.
const REACHED: &str = "MESHGRAD_TEST_REACHED";

/// What was executed, kernel by kernel.
type Reached = BTreeMap<String, Lines>;

/// The lines of a kernel's PTX that hold instructions.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Lines {
    reached: BTreeSet<u32>,
    /// With their text. What one launch misses another may reach.
    missed: BTreeMap<u32, String>,
}

impl Lines {
    /// Adds what other launches reached and missed.
    fn add(&mut self, other: Lines) {
        self.reached.extend(other.reached);
        self.missed.extend(other.missed);
        self.missed.retain(|line, _| !self.reached.contains(line));
    }
}

/// The emulator takes its order from the environment when a program first asks for it, so every
/// order is a process of its own: this test's program, at the test below.
#[test]
fn no_instruction_of_any_kernel_is_left_that_no_launch_reaches() {
    if !Device::emulator_is_built() {
        println!("no emulator: nothing is run");
        return;
    }
    let folder = env::temp_dir().join(format!("meshgrad-orders-{}", process::id()));
    fs::create_dir_all(&folder).unwrap();
    let in_orders = in_parallel(&orders(), |order| reached_in(order, &folder));
    fs::remove_dir_all(&folder).unwrap();

    let mut all = Reached::new();
    let kernels = kernels_by_family();
    for (order, reached) in in_orders {
        let idle: Vec<&String> = kernels
            .iter()
            .flat_map(|(_, kernels)| kernels)
            .filter(|kernel| !reached.contains_key(*kernel))
            .collect();
        assert!(idle.is_empty(), "never launched {order}: {idle:?}");
        add(&mut all, reached);
    }
    let missed: Vec<String> = kernels
        .iter()
        .flat_map(|(family, kernels)| missed(family, kernels, &all))
        .collect();
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

fn add(all: &mut Reached, more: Reached) {
    for (kernel, lines) in more {
        all.entry(kernel).or_default().add(lines);
    }
}

/// What nobody reached of a family's kernels; prints its line of the table.
fn missed(family: &str, kernels: &BTreeSet<String>, all: &Reached) -> Vec<String> {
    let of_family = || kernels.iter().map(|kernel| (kernel, &all[kernel]));
    let missed: Vec<String> = of_family()
        .flat_map(|(kernel, lines)| {
            let missed = lines.missed.iter();
            missed.map(move |(line, text)| format!("{kernel}: nothing reaches line {line}: {text}"))
        })
        .collect();
    let instructions: usize = of_family()
        .map(|(_, lines)| lines.reached.len() + lines.missed.len())
        .sum();
    println!(
        "{family}: {} kernels, {instructions} instructions, {} that nothing reaches",
        kernels.len(),
        missed.len()
    );
    missed
}

/// The kernels of each family that none before it launches.
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

/// In which order kernels run, and when their asynchronous copies land: as soon and as late as can
/// be, and at random.
fn orders() -> Vec<[String; 2]> {
    let random = (0..RANDOM_ORDERS).map(|seed| {
        let (schedule, asynchronous) = (2 + seed, 3 + seed);
        [
            format!("random:{schedule}"),
            format!("random:{asynchronous}"),
        ]
    });
    let plain = [["ordered", "eager"], ["random:1", "lazy"]].map(|order| order.map(str::to_owned));
    plain.into_iter().chain(random).collect()
}

/// What all launches reach in an order, and how it is called.
fn reached_in(order: &[String; 2], folder: &Path) -> (String, Reached) {
    let [schedule, asynchronous] = order;
    let name = format!("{schedule}-{asynchronous}").replace(':', "");
    let path = folder.join(&name);
    let output = Command::new(env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture"])
        .arg("launches::orders::all_launches_in_one_order")
        .env("MESHGRAD_EMULATOR_SCHEDULE", schedule)
        .env("MESHGRAD_EMULATOR_ASYNC", asynchronous)
        .env(
            "MESHGRAD_EMULATOR_COUNTERS",
            path.with_extension("counters"),
        )
        .env(REACHED, &path)
        .output()
        .unwrap();
    let words = [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
    assert!(output.status.success(), "{name}: {}", words.concat());
    let reached = fs::read(&path).unwrap();
    (name, serde_json::from_slice(&reached).unwrap())
}

#[test]
#[ignore = "another test runs it, in many orders"]
fn all_launches_in_one_order() {
    let Some(path) = env::var_os(REACHED).map(PathBuf::from) else {
        println!("nobody asks for what is reached");
        return;
    };
    let counters = path.with_extension("counters");
    let device = Device::emulator(0).unwrap();
    let counted = Device::meta(device.properties());
    let mut all = Reached::new();
    for (family, launches) in LAUNCHES {
        for dtype in DTYPES {
            let run = launches(&device, dtype).and_then(|()| device.synchronize());
            run.unwrap_or_else(|error| panic!("{family}, {dtype}: {error}"));
            launches(&counted, dtype).unwrap();
            assert_eq!(device.work(), counted.work(), "{family}, {dtype}");
            add(&mut all, take(&counters).unwrap());
        }
    }
    fs::write(path, serde_json::to_vec(&all).unwrap()).unwrap();
}

/// What one launch did, as the emulator writes it.
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

/// What launches reached since the last time.
fn take(counters: &Path) -> io::Result<Reached> {
    let mut reached = Reached::new();
    for launch in fs::read_to_string(counters)?.lines() {
        let launch: Counters = serde_json::from_str(launch)?;
        let lines = Lines {
            reached: launch.by_instruction.iter().map(|it| it.line).collect(),
            missed: launch
                .unreached
                .into_iter()
                .map(|it| (it.line, it.text))
                .collect(),
        };
        reached.entry(launch.kernel).or_default().add(lines);
    }
    fs::remove_file(counters)?;
    Ok(reached)
}
