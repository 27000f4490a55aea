//! The time of ops, interleaved with torch's.
//!
//! A measurement enqueues many ops, waits for the last, and divides the host's time by their
//! number. Launches overlap with earlier work, as in a training step. Ops cycle through several
//! sets of operands if one set would stay in the cache.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, bail};
use meshgrad::prelude::*;
use meshgrad::runtime::op_cases::{CaseOperands, OpCase, Written};
use meshgrad_harness::{Options, Peer, PeerOptions, Spread, cell, finish, numbers, timed};
use serde_json::{Value, json};

use super::jobs::{Amount, Group, Inputs, Job, copy, groups};
use super::peak;
use super::shapes::{Section, Shapes};
use super::torch::{start_torch, torch_name};
use crate::device::OnGpu;

/// Time GPU ops at the shapes of benches/shapes.toml, compared with a copy and torch.
#[derive(clap::Args)]
pub(crate) struct TimeGpu {
    #[command(flatten)]
    device: OnGpu,
    #[command(flatten)]
    time: Time,
}

impl TimeGpu {
    pub(crate) fn run(&self, cpu: &Device) -> anyhow::Result<()> {
        self.time.run(self.device.open(cpu)?, "gpu", Section::Gpu)
    }
}

/// Time CPU ops at the shapes of a small model, compared with a copy, an FMA loop and torch.
#[derive(clap::Args)]
pub(crate) struct TimeCpu {
    #[command(flatten)]
    time: Time,
}

impl TimeCpu {
    pub(crate) fn run(&self, cpu: &Device) -> anyhow::Result<()> {
        self.time.run(cpu.clone(), "cpu", Section::Cpu)
    }
}

#[derive(clap::Args)]
struct Time {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    peer: PeerOptions,
    /// Interleaved measurements of each implementation.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// A file with other shapes: the keys of one section of benches/shapes.toml.
    #[arg(long, value_name = "FILE")]
    shapes: Option<PathBuf>,
    /// Only ops whose name or dtype contains this; if repeated, all must match.
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Approximate seconds per measurement.
    #[arg(long, default_value_t = 0.05)]
    seconds: f64,
}

/// Assumed size of a CPU's last-level cache, in bytes.
const CPU_CACHE: usize = 32 << 20;

/// The two implementations: meshgrad and, if requested, torch.
struct Comparison {
    device: Device,
    peer: Option<Peer>,
    /// Requests that failed in torch, with their errors.
    peer_errors: Vec<String>,
    versions: Value,
    rounds: usize,
    seconds: f64,
    smoke: bool,
}

/// Seconds per op.
struct Times {
    meshgrad: Spread,
    torch: Option<Spread>,
    /// Under torch.compile.
    compiled: Option<Spread>,
}

impl Times {
    /// The faster of torch eager and torch.compile.
    fn best_of_torch(&self) -> Option<f64> {
        let all = [self.torch, self.compiled].into_iter().flatten();
        all.map(|spread| spread.median).reduce(f64::min)
    }
}

impl Time {
    /// The groups, with the jobs that match `--only`.
    fn selected(&self, groups: Vec<Group>) -> anyhow::Result<Vec<Group>> {
        let is_selected = |job: &Job| {
            let names = [job.name, job.dtype.name()];
            let matches = |text: &String| names.iter().any(|name| name.contains(text.as_str()));
            self.only.iter().all(matches)
        };
        let jobs = || groups.iter().flat_map(|group| &group.jobs);
        if !jobs().any(is_selected) {
            let names: BTreeSet<_> = jobs().map(|job| job.name).collect();
            let names = Vec::from_iter(names).join(", ");
            bail!("--only {}: no op matches; ops are {names}", self.only.join(" --only "));
        }
        let filtered = groups.into_iter().map(|mut group| {
            group.jobs.retain(is_selected);
            group
        });
        Ok(filtered.filter(|group| !group.jobs.is_empty()).collect())
    }

    fn run(&self, device: Device, bench: &str, section: Section) -> anyhow::Result<()> {
        let section = if self.options.smoke { Section::Smoke } else { section };
        let shapes = Shapes::read(self.shapes.as_deref(), section)?;
        let groups = self.selected(groups(&shapes))?;
        let mut comparison = Comparison::new(self, device)?;
        let gpu = comparison.device.properties().gpu.clone();
        let model = gpu.map_or_else(String::new, |gpu| format!(" ({})", gpu.model));
        let (device, rounds) = (comparison.device.clone(), comparison.rounds);
        println!("{device}{model}, {rounds} rounds: medians (min - max)\n");

        let bandwidth = copy(shapes.copy);
        let (job, times) = comparison.times(&bandwidth)?.remove(0);
        let mut bounds = Bounds::new(&device, job.amount.rate(times.meshgrad.min));
        println!("A copy of {} f32: {:.2} GB/s", shapes.copy, bounds.copy);
        if let Some(fma) = bounds.f32 {
            println!("Multiply-adds of f32 in registers: {:.3} TFLOP/s", fma);
        }
        println!(
            "\n| | shape | dtype | | meshgrad | torch | torch.compile | of bound | torch's best \
             time / meshgrad |"
        );
        println!("|---|---|---|---|---|---|---|---|---|");
        let mut rows = vec![row(job, &bandwidth.title, &times, &bounds)];
        for group in groups {
            for (job, times) in comparison.times(&group)? {
                bounds.record(job, &times);
                rows.push(row(job, &group.title, &times, &bounds));
            }
        }

        let report = json!({
            "bench": bench, "device": device.to_string(), "gpu": model.trim(),
            "rounds": rounds, "bounds": bounds.json(), "peer_errors": comparison.peer_errors,
            "rows": rows,
        });
        finish(&self.options, report, comparison.versions)
    }
}

/// Upper bounds of a device's speed.
struct Bounds {
    /// GB/s of the fastest measurement of a copy larger than the cache. Copies vary in speed:
    /// whether the cache lines of the destination are read first depends on the addresses.
    copy: f64,
    /// TFLOP/s of multiply-adds in registers, where measured.
    f32: Option<f64>,
    /// TFLOP/s of the fastest bf16 product so far, of either implementation.
    bf16: Option<f64>,
}

impl Bounds {
    fn new(device: &Device, copy: f64) -> Bounds {
        Bounds {
            copy,
            f32: (!device.is_gpu()).then(|| peak::multiply_adds(device.properties().threads)),
            bf16: None,
        }
    }

    /// Records the rate of a bf16 product.
    fn record(&mut self, job: &Job, times: &Times) {
        if let (DType::BF16, Amount::Flops(_)) = (job.dtype, job.amount) {
            let best = times.best_of_torch().unwrap_or(f64::INFINITY);
            let rate = job.amount.rate(times.meshgrad.median.min(best));
            self.bf16 = Some(self.bf16.map_or(rate, |before| before.max(rate)));
        }
    }

    /// The rate of a job relative to its bound, if there is one.
    fn fraction(&self, job: &Job, meshgrad: Spread) -> Option<f64> {
        let bound = match (job.amount, job.dtype) {
            (Amount::Bytes(_), _) => Some(self.copy),
            (Amount::Flops(_), DType::F32) => self.f32,
            (Amount::Flops(_), _) => self.bf16,
        };
        bound.map(|bound| meshgrad.median / bound)
    }

    fn json(&self) -> Value {
        json!({
            "copy_gb_per_s": self.copy, "f32_fma_tflop_per_s": self.f32,
            "bf16_fastest_product_tflop_per_s": self.bf16,
        })
    }
}

impl Comparison {
    fn new(time: &Time, device: Device) -> anyhow::Result<Comparison> {
        let smoke = time.options.smoke;
        let torch_device = torch_name(&device);
        let threads = device.properties().threads.to_string();
        let arguments = ["--device", &torch_device, "--threads", &threads];
        let peer = start_torch(&device, &time.peer, "ops.py", &arguments)?;
        Ok(Comparison {
            device,
            versions: peer.as_ref().map_or(Value::Null, |peer| peer.hello.clone()),
            peer,
            peer_errors: Vec::new(),
            rounds: if smoke { 1 } else { time.rounds.max(1) },
            seconds: if smoke { 0.0 } else { time.seconds },
            smoke,
        })
    }

    /// Times every job of a group.
    fn times<'g>(&mut self, group: &'g Group) -> anyhow::Result<Vec<(&'g Job, Times)>> {
        // torch needs memory too.
        self.device.empty_cache();
        let sets = self.sets(group);
        let dtype = group.jobs[0].dtype;
        let sets: Vec<Vec<OpCase>> = (0..sets)
            .map(|set| (group.family)(&Inputs { device: &self.device, dtype, set }))
            .collect::<Result<_, _>>()?;
        let timed = group.jobs.iter().map(|job| Ok((job, self.compare(job, &calls(job, &sets)?)?)));
        timed.collect()
    }

    /// The number of sets of operands that exceeds the cache.
    fn sets(&self, group: &Group) -> usize {
        let gpu = &self.device.properties().gpu;
        let cache = gpu.as_ref().map_or(CPU_CACHE, |gpu| gpu.l2_cache);
        let most = if self.smoke { 2 } else { 32 };
        (2 * cache).div_ceil(group.bytes).clamp(1, most)
    }

    fn compare(&mut self, job: &Job, sets: &[Vec<Call<'_>>]) -> anyhow::Result<Times> {
        // Warm-up: loads kernels and fills the allocator's cache.
        self.time_meshgrad(sets, 2 * sets.len())?;
        let about = self.time_meshgrad(sets, sets.len().max(3))?;
        let least = sets.len() as f64;
        let repeats = (self.seconds / about).clamp(least, 2000.0) as usize;

        let (mut meshgrad, mut torch, mut compiled) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..self.rounds {
            meshgrad.push(self.time_meshgrad(sets, repeats)?);
            torch.extend(self.time_torch(job, false, sets.len(), repeats));
            if job.compiles {
                compiled.extend(self.time_torch(job, true, sets.len(), repeats));
            }
        }
        Ok(Times {
            meshgrad: Spread::of(&meshgrad),
            torch: Spread::try_of(&torch),
            compiled: Spread::try_of(&compiled),
        })
    }

    /// Seconds per op, the mean of `repeats` consecutive ones.
    fn time_meshgrad(&self, sets: &[Vec<Call<'_>>], repeats: usize) -> anyhow::Result<f64> {
        // Results are kept until their set is reused, so that not all are written to one address.
        let mut results = vec![Vec::new(); sets.len()];
        self.device.synchronize()?;
        let seconds = timed(|| -> meshgrad::runtime::Result<()> {
            for repeat in 0..repeats {
                let at = repeat % sets.len();
                let run = |(case, operands): &Call<'_>| case.run(operands);
                results[at] = sets[at].iter().map(run).collect::<Result<Vec<_>, _>>()?;
            }
            self.device.synchronize()
        })?;
        Ok(seconds / repeats as f64)
    }

    /// Seconds per op in torch. If its process ends, the remaining ops are timed without it.
    fn time_torch(&mut self, job: &Job, compiled: bool, sets: usize, repeats: usize) -> Vec<f64> {
        let Some(peer) = &mut self.peer else {
            return Vec::new();
        };
        let Some(mut request) = job.request.clone() else {
            return Vec::new();
        };
        request["compiled"] = json!(compiled);
        request["sets"] = json!(sets);
        request["repeats"] = json!(repeats);
        let error = match peer.ask(&request) {
            Ok(answer) => match answer["error"].as_str() {
                None => return numbers(&answer["seconds"]),
                Some(error) => error.to_owned(),
            },
            Err(error) => {
                self.peer = None; // it has ended
                format!("{error:#}")
            }
        };
        let error = format!("{request}: {error}");
        if self.peer_errors.last() != Some(&error) {
            eprintln!("torch failed at {error}");
            self.peer_errors.push(error);
        }
        Vec::new()
    }
}

/// A case to time, and its operands.
type Call<'a> = (&'a OpCase, CaseOperands);

/// The cases of a job, for each set of operands.
fn calls<'a>(job: &Job, sets: &'a [Vec<OpCase>]) -> anyhow::Result<Vec<Vec<Call<'a>>>> {
    let call = |cases: &'a [OpCase], name: &&str| {
        let case = cases.iter().find(|case| case.name == *name);
        let case = case.with_context(|| format!("`{}` has no case `{name}`", job.name))?;
        Ok((case, case.whole(Written::InPlace)))
    };
    let of_set = |cases: &'a Vec<OpCase>| job.cases.iter().map(|name| call(cases, name)).collect();
    sets.iter().map(of_set).collect()
}

impl Amount {
    /// GB/s or TFLOP/s for a time of `seconds`.
    fn rate(self, seconds: f64) -> f64 {
        match self {
            Amount::Bytes(bytes) => 1e-9 * bytes / seconds,
            Amount::Flops(flops) => 1e-12 * flops / seconds,
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Amount::Bytes(_) => "GB/s",
            Amount::Flops(_) => "TFLOP/s",
        }
    }

    /// The longest time is the lowest rate.
    fn rates(self, seconds: Spread) -> Spread {
        Spread {
            median: self.rate(seconds.median),
            min: self.rate(seconds.max),
            max: self.rate(seconds.min),
        }
    }
}

/// Prints and returns a row.
fn row(job: &Job, shape: &str, times: &Times, bounds: &Bounds) -> Value {
    let meshgrad = job.amount.rates(times.meshgrad);
    let [torch, compiled] =
        [times.torch, times.compiled].map(|times| times.map(|times| job.amount.rates(times)));
    let of_bound = bounds.fraction(job, meshgrad);
    let faster = times.best_of_torch().map(|torch| torch / times.meshgrad.median);

    let percent = |x: Option<f64>| x.map_or("-".into(), |x| format!("{:.0} %", 100.0 * x));
    println!(
        "| {} | {shape} | {} | {} | {meshgrad} | {} | {} | {} | {} |",
        job.name,
        job.dtype,
        job.amount.unit(),
        cell(torch),
        cell(compiled),
        percent(of_bound),
        faster.map_or("-".into(), |faster| format!("{faster:.2}")),
    );
    let microseconds = |s: Spread| {
        let [median, min, max] = [s.median, s.min, s.max].map(|seconds| 1e6 * seconds);
        Spread { median, min, max }.json()
    };
    json!({
        "what": job.name, "shape": shape, "dtype": job.dtype.name(), "unit": job.amount.unit(),
        "rate": {
            "meshgrad": meshgrad.json(),
            "torch": torch.map(Spread::json),
            "torch.compile": compiled.map(Spread::json),
        },
        "us": {
            "meshgrad": microseconds(times.meshgrad),
            "torch": times.torch.map(microseconds),
            "torch.compile": times.compiled.map(microseconds),
        },
        "of_bound": of_bound, "torch_best_time_by_ours": faster,
    })
}
