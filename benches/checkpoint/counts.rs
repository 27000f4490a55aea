//! Measurements that need no clock: bytes read, peak memory, equality of plans.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::ScopedJoinHandle;

use anyhow::{Context, anyhow};
use meshgrad::ckpt::Folder;
use meshgrad::ckpt::exec::{Replica, execute, execute_shared};
use meshgrad::ckpt::graph::{Expr, Graph};
use meshgrad::ckpt::plan::{Catalog, LoadPlan, LoadRequest, Options};
use meshgrad::ckpt::source::{Backend, BackendChoice, Sources};
use meshgrad_harness::proc_bytes;
use serde_json::{Value, json};

use super::files::Files;
use super::goals::Goal;
use super::loads::{IDENTITY, THREADS, arena, bind, options, targets_in};
use super::peers::Peers;

/// Ranks that share a tensor.
const RANKS: u64 = 8;

/// Ranks that all load the whole tensor.
const REPLICAS: usize = 4;

/// Bytes of memory that a load may use beyond its plan.
const SLACK: u64 = 16 << 20;

/// Additional bytes of a mapped file that may be resident.
const MAPPED_SLACK: u64 = 32 << 20;

const BACKENDS: [Backend; 3] = [Backend::Pread, Backend::Direct, Backend::Mapped];

/// A rank's shard, and the bytes read for it.
struct Share {
    what: &'static str,
    needed: u64,
    read: u64,
    /// Maximum bytes that may be read.
    limit: u64,
    /// Bytes read by other libraries.
    others: Vec<(&'static str, f64)>,
}

/// L1: bytes read for the shard of a rank.
pub(super) fn shares(
    files: &Files,
    peers: &Peers,
    rows_json: &mut Value,
) -> anyhow::Result<Vec<Goal>> {
    let mut shares = Vec::new();
    for (what, dim) in [("1/8 of the rows", 0), ("1/8 of the columns", 1)] {
        let folder = Folder::open(&files.shared)?;
        let tensor = folder.get("weight").context("the file has no `weight`")?;
        let bytes = tensor.byte_len() as u64;
        let mut graph = Graph::new();
        let shape: Vec<u64> = tensor.shape.iter().map(|extent| *extent as u64).collect();
        let expr = graph.source("weight", tensor.dtype, &shape)?;
        let mut region: Vec<Range<u64>> = shape.iter().map(|extent| 0..*extent).collect();
        region[dim].end /= RANKS;
        let options = options(Backend::Pread, THREADS);
        let (needed, read) = read_share(&folder, &graph, expr, region, &options)?;
        shares.push(Share {
            what,
            needed,
            read,
            // A shard of columns is in all rows, so the whole tensor is read once.
            limit: if dim == 0 { with_margin(needed) } else { with_margin(bytes) },
            others: peers.bytes_read(&files.shared, dim, RANKS)?,
        });
    }
    shares.extend(expert_shares(&files.experts)?);
    shares.push(replicas(&files.shared)?);

    let rows = shares.iter().map(|it| {
        println!(
            "| {} | {:.1} | {:.3} | {} |",
            it.what,
            it.needed as f64 / 1e6,
            it.read as f64 / it.needed as f64,
            by_others(&it.others, it.needed),
        );
        let others = it.others.iter().map(|(name, read)| json!({"name": name, "bytes": read}));
        let others: Value = others.collect();
        json!({
            "what": it.what,
            "needed_bytes": it.needed,
            "read_bytes": it.read,
            "limit_bytes": it.limit,
            "others_read_bytes": others,
        })
    });
    println!("\n| rank 0 needs | MB | read / needed | other libraries |\n|---|---|---|---|");
    *rows_json = rows.collect();
    let goals = shares.iter().map(|it| {
        let what = format!("bytes read / allowed, {}", it.what);
        Goal::at_most("L1", &what, it.read as f64 / it.limit as f64, 1.0).hard()
    });
    Ok(goals.collect())
}

fn with_margin(bytes: u64) -> u64 {
    bytes + bytes / 50
}

fn by_others(others: &[(&str, f64)], needed: u64) -> String {
    let each = others.iter().map(|(name, read)| format!("{name} {:.3}", read / needed as f64));
    each.collect::<Vec<_>>().join(", ")
}

/// Rank 0 of 8 expert-parallel x 2 tensor-parallel ranks: a sixteenth of each projection.
fn expert_shares(folder: &Path) -> anyhow::Result<Vec<Share>> {
    let folder = Folder::open(folder)?;
    let map =
        "gate_up = unflatten(stack(concat(experts.{e}.gate, experts.{e}.up), each=e), 2, dim=1)
               down = stack(experts.{e}.down, each=e)";
    let bound = bind(&folder, map)?;
    let joined = options(Backend::Pread, THREADS);
    let exact = Options { gap: 0, ..joined.clone() };
    let share = |what, name: &str, tensor_parallel: usize, options: &Options| {
        let expr = bound.expr(name).context("the map has no such output")?;
        let shape = bound.graph().shape(expr).to_vec();
        let mut region: Vec<Range<u64>> = shape.iter().map(|extent| 0..*extent).collect();
        region[0].end /= 8;
        region[tensor_parallel].end /= 2;
        let reads_whole_rows = tensor_parallel + 1 == shape.len() && options.gap > 0;
        let (needed, read) = read_share(&folder, bound.graph(), expr, region, options)?;
        let limit = if reads_whole_rows { 2 * needed } else { needed };
        anyhow::Ok(Share { what, needed, read, limit: with_margin(limit), others: Vec::new() })
    };
    Ok(vec![
        share("1/16 of gate and up, by expert and row", "gate_up", 2, &joined)?,
        share("1/16 of down, by expert and column", "down", 2, &joined)?,
        share("the same, gaps never read", "down", 2, &exact)?,
    ])
}

/// A plan that loads all tensors unchanged.
fn plan_of_all(folder: &Folder, backend: Backend) -> anyhow::Result<LoadPlan> {
    let bound = bind(folder, IDENTITY)?;
    let (catalog, options) = (Catalog::of(folder), options(backend, THREADS));
    Ok(LoadPlan::new(bound.graph(), &catalog, &bound.requests(), &options)?)
}

/// The bytes that replicas of a tensor read together.
fn replicas(folder: &Path) -> anyhow::Result<Share> {
    let folder = Folder::open(folder)?;
    let plan = plan_of_all(&folder, Backend::Pread)?;
    let load = |replica: &Replica| -> anyhow::Result<()> {
        let sources = Sources::open(&folder, BackendChoice::Auto)?;
        let mut memory = vec![0; plan.memory().targets as usize];
        let sink = targets_in(&plan, &mut memory);
        execute_shared(&plan, &sources, &sink, replica, &|_| {})?;
        Ok(())
    };
    let before = rchar()?;
    std::thread::scope(|scope| {
        let replicas = Replica::all(REPLICAS).into_iter();
        let threads: Vec<_> = replicas.map(|replica| scope.spawn(move || load(&replica))).collect();
        let join = |thread: ScopedJoinHandle<'_, anyhow::Result<()>>| {
            thread.join().map_err(|_| anyhow!("a replica panicked"))?
        };
        threads.into_iter().try_for_each(join)
    })?;
    let needed = plan.needed_bytes();
    Ok(Share {
        what: "all, by each of 4 replicas",
        needed,
        read: rchar()? - before,
        limit: with_margin(needed),
        others: Vec::new(),
    })
}

/// Loads a region; returns its bytes and the bytes that this process read.
fn read_share(
    folder: &Folder,
    graph: &Graph,
    expr: Expr,
    region: Vec<Range<u64>>,
    options: &Options,
) -> anyhow::Result<(u64, u64)> {
    let wants = [LoadRequest::new("share", expr, region)];
    let plan = LoadPlan::new(graph, &Catalog::of(folder), &wants, options)?;
    let sources = Sources::open(folder, BackendChoice::Auto)?;
    let mut memory = vec![0; plan.targets()[0].bytes as usize];
    let sink = targets_in(&plan, &mut memory);
    let before = rchar()?;
    execute(&plan, &sources, &sink, &|_| {})?;
    // Reading /proc itself adds a few hundred bytes.
    Ok((plan.needed_bytes(), rchar()? - before))
}

/// Bytes that system calls of this process have read.
fn rchar() -> anyhow::Result<u64> {
    proc_bytes("/proc/self/io", "rchar").context("no rchar in /proc/self/io")
}

/// L2: the growth of memory beyond preallocated targets. Each backend runs in a new process, so
/// that earlier loads do not count.
pub(super) fn memory(folder: &Path, rows_json: &mut Value) -> anyhow::Result<Vec<Goal>> {
    let (mut goals, mut rows) = (Vec::new(), Vec::new());
    println!("\n| peak memory, MB | targets | windows | measured without targets | allowed |");
    println!("|---|---|---|---|---|");
    for backend in BACKENDS {
        let mut child = Command::new(std::env::current_exe()?);
        let child = child.arg("--measure-memory").arg(folder).arg(backend.to_string());
        let output = child.stderr(Stdio::inherit()).output()?;
        let mut row: Value = serde_json::from_slice(&output.stdout).context("no answer")?;
        let bytes = |name: &str| row[name].as_u64().context(name.to_owned());
        let (targets, windows) = (bytes("planned_targets")?, bytes("planned_windows")?);
        let rise = bytes("rise")?;

        let slack = if backend == Backend::Mapped { MAPPED_SLACK } else { 0 };
        let limit = windows + SLACK + slack;
        let mb = |bytes: u64| bytes as f64 / 1e6;
        println!(
            "| {backend} | {:.0} | {:.1} | {:.1} | {:.1} |",
            mb(targets),
            mb(windows),
            mb(rise),
            mb(limit),
        );
        let what = format!("peak memory without targets / bound, {backend}");
        goals.push(Goal::at_most("L2", &what, rise as f64 / limit as f64, 1.0).hard());
        row["limit"] = json!(limit);
        rows.push(row);
    }
    *rows_json = json!(rows);
    Ok(goals)
}

/// The child process of [`memory`]: loads into preallocated memory and prints the growth.
pub(super) fn print_memory(folder: &Path, backend: &str) -> anyhow::Result<()> {
    let mut backends = BACKENDS.into_iter();
    let backend = backends.find(|it| it.to_string() == backend).context("no such backend")?;
    let folder = Folder::open(folder)?;
    let plan = plan_of_all(&folder, backend)?;
    let planned = plan.memory();
    let arena = arena(planned.targets)?;
    let mut arena = arena.borrow_mut();
    let sink = targets_in(&plan, &mut arena);

    let resident = |name| proc_bytes("/proc/self/status", name).context("no VmRSS, VmHWM");
    // The plan is already in memory, so only windows may be added.
    fs::write("/proc/self/clear_refs", "5").context("/proc/self/clear_refs")?;
    let before = resident("VmRSS")?;
    let sources = Sources::open(&folder, BackendChoice::Only(backend))?;
    execute(&plan, &sources, &sink, &|_| {})?;
    let peak = resident("VmHWM")?;
    let row = json!({
        "backend": backend.to_string(),
        "planned_targets": planned.targets,
        "planned_windows": planned.windows,
        "planned_plan": planned.plan,
        "rise": peak.saturating_sub(before),
    });
    println!("{row}");
    Ok(())
}

/// L3: plans of one model are equal, even if the tensors of the graph are in different orders.
/// (Hash maps also have a different seed each time.)
pub(super) fn digests(folder: &Path) -> anyhow::Result<Goal> {
    const REPEATS: usize = 32;

    let folder = Folder::open(folder)?;
    let mut digests = Vec::new();
    for repeat in 0..REPEATS {
        let catalog = Catalog::of(&folder);
        let tensors: Vec<_> = folder.tensors().collect();
        let mut graph = Graph::new();
        let mut wants = Vec::new();
        let skipped = repeat * tensors.len() / REPEATS;
        for tensor in tensors.iter().cycle().skip(skipped).take(tensors.len()) {
            let shape: Vec<u64> = tensor.shape.iter().map(|extent| *extent as u64).collect();
            let source = graph.source(&tensor.name, tensor.dtype, &shape)?;
            wants.push(LoadRequest::all(tensor.name.as_str(), &graph, source));
        }
        wants.sort_by(|a, b| a.target.cmp(&b.target));
        let plan = LoadPlan::new(&graph, &catalog, &wants, &Options::default())?;
        digests.push(plan.digest().to_bytes());
    }
    digests.sort_unstable();
    digests.dedup();
    let what = format!("distinct digests of {REPEATS} plans of one model");
    Ok(Goal::at_most("L3", &what, digests.len() as f64, 1.0).hard())
}
