//! `meshgrad ckpt plan`: computes what loading would cost each rank.
//!
//! The report is data, which `--json` prints; [`text`] formats it as tables.

mod text;

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, bail, ensure};
use meshgrad::ckpt::Folder;
use meshgrad::ckpt::layout::Layout;
use meshgrad::ckpt::mapping::{Bound, Template, TensorSpec};
use meshgrad::ckpt::plan::{Catalog, LoadPlan, LoadRequest, Options};
use serde::Serialize;

use super::arguments::{
    AllowArguments, LinkArguments, check_placements, mapping_errors, parse_mesh, parse_template,
    path_text, read_layout, read_map,
};
use super::size::ByteSize;
use super::source::{Source, Summary};
use super::warn;
use crate::answer::Answer;
use crate::table::printable;

#[derive(clap::Args)]
#[command(after_help = "Exit codes: 0 success, 1 the map does not fit, or an error.")]
pub(super) struct PlanArguments {
    /// A Hugging Face folder, a safetensors file, pytorch_model.bin or its folder, a folder of
    /// torch.distributed.checkpoint, a checkpoint, or a run: its newest checkpoint.
    source: PathBuf,
    /// The map from SOURCE to the tensors to load [default: the identity].
    #[arg(long, value_name = "FILE")]
    map: Option<PathBuf>,
    /// The mesh axes and their sizes, as in `ep=8,tp=2` [default: one rank, which loads
    /// everything].
    #[arg(long, value_name = "AXES", requires = "placements", value_parser = parse_mesh)]
    mesh: Option<String>,
    /// Which axes shard which dims of which tensors, one rule per line, as in
    /// `{r:path}.weight = tp:0`.
    #[arg(long, value_name = "FILE", requires = "mesh")]
    placements: Option<PathBuf>,
    /// Plan for this rank only.
    #[arg(long, value_name = "R|all", default_value = "all")]
    rank: Ranks,
    /// Load only tensors whose names match, as in `model.layers.{l}.{r:path}`. May be repeated.
    #[arg(long, value_name = "TEMPLATE", value_parser = parse_template)]
    tensors: Vec<Template>,
    #[command(flatten)]
    allow: AllowArguments,
    #[command(flatten)]
    links: LinkArguments,
    /// Maximum memory of a load, including the tensors.
    #[arg(long, value_name = "SIZE")]
    budget: Option<ByteSize>,
    /// Merge reads of ranges at most this far apart [default: 256KiB].
    #[arg(long, value_name = "SIZE")]
    gap: Option<ByteSize>,
    /// Plan O_DIRECT reads, which bypass the page cache and read whole disk blocks.
    #[arg(long)]
    direct: bool,
    /// Read bandwidth for the estimate of seconds.
    #[arg(long, value_name = "SIZE/s", default_value = "3GB/s")]
    bandwidth: Bandwidth,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// One rank or all.
#[derive(Clone, Copy)]
enum Ranks {
    All,
    One(u64),
}

impl FromStr for Ranks {
    type Err = String;

    fn from_str(text: &str) -> Result<Ranks, String> {
        match (text, text.parse()) {
            ("all", _) => Ok(Ranks::All),
            (_, Ok(rank)) => Ok(Ranks::One(rank)),
            _ => Err(format!("`{text}` is neither a rank nor `all`")),
        }
    }
}

/// Bytes per second.
#[derive(Clone, Copy)]
struct Bandwidth(u64);

impl FromStr for Bandwidth {
    type Err = String;

    fn from_str(text: &str) -> Result<Bandwidth, String> {
        let size: ByteSize = text.strip_suffix("/s").unwrap_or(text).parse()?;
        match size.0 {
            0 => Err("the bandwidth must be greater than 0".to_owned()),
            bytes => Ok(Bandwidth(bytes)),
        }
    }
}

#[derive(Serialize)]
struct Report {
    source: Summary,
    map: Option<String>,
    mesh: Option<String>,
    /// The number of loaded tensors; `inputs` counts the source tensors that they are made from.
    outputs: u64,
    inputs: u64,
    /// Problems that were allowed.
    allowed: Vec<String>,
    bytes_per_second: u64,
    /// The number of ranks of the layout.
    rank_count: u64,
    ranks: Vec<RankReport>,
}

#[derive(Serialize)]
struct RankReport {
    rank: u64,
    targets: u64,
    needed_bytes: u64,
    read_bytes: u64,
    amplification: f64,
    reads: u64,
    extents: u64,
    files: u64,
    memory: MemoryReport,
    seconds: f64,
    digest: String,
}

#[derive(Serialize)]
struct MemoryReport {
    targets: u64,
    windows: u64,
    plan: u64,
    total: u64,
}

pub(super) fn plan(arguments: &PlanArguments, threads: usize) -> anyhow::Result<Answer> {
    let mapping = read_map(arguments.map.as_deref())?;
    let layout = match (&arguments.mesh, &arguments.placements) {
        (Some(mesh), Some(placements)) => read_layout(mesh, placements)?.0,
        _ => Layout::single(),
    };
    let ranks = match arguments.rank {
        Ranks::All => 0..layout.ranks(),
        Ranks::One(rank) => {
            let ranks = layout.ranks();
            ensure!(
                rank < ranks,
                "rank {rank} is out of range: the layout has ranks 0 to {}",
                ranks - 1
            );
            rank..rank + 1
        }
    };
    let source = Source::open(&arguments.source, arguments.links.links())?;
    let allowed_problems = arguments.allow.problems()?;
    let bound = match mapping.bind(&source.specs(), None, &allowed_problems) {
        Ok(bound) => bound,
        Err(report) => {
            let path = source.path();
            return mapping_errors(path, &arguments.map, &report, arguments.json);
        }
    };
    if let Some(placements) = &arguments.placements {
        let outputs: Vec<TensorSpec> = bound.outputs().collect();
        check_placements(&layout, placements, &outputs)?;
    }
    let made = select(&bound, &arguments.tensors)?;

    let catalog = Catalog::of(source.stored());
    let options = options(arguments, source.stored(), threads);
    let rank_report = |rank| -> anyhow::Result<RankReport> {
        let wants = wants(&bound, &made, &layout, rank)?;
        let (graph, wants) = source.over_stored(bound.graph(), wants)?;
        let plan = LoadPlan::new(&graph, &catalog, &wants, &options);
        let plan = plan.with_context(|| format!("rank {rank}"))?;
        Ok(RankReport::new(rank, &plan, arguments.bandwidth))
    };
    let used = made.iter().filter_map(|it| bound.expr(&it.name));
    let used = used.flat_map(|expr| bound.graph().sources_of(expr));
    let used: std::collections::BTreeSet<&str> = used.collect();
    let report = Report {
        source: source.summary(),
        map: arguments.map.as_deref().map(path_text),
        mesh: arguments.mesh.clone(),
        outputs: made.len() as u64,
        inputs: used.len() as u64,
        allowed: bound.report().allowed.iter().map(|it| it.to_string()).collect(),
        bytes_per_second: arguments.bandwidth.0,
        rank_count: layout.ranks(),
        ranks: ranks.map(rank_report).collect::<anyhow::Result<_>>()?,
    };

    if arguments.json {
        return Answer::json(&report, 0);
    }
    warn(&source.warnings);
    Ok(Answer::success(report.text()))
}

fn options(arguments: &PlanArguments, folder: &Folder, threads: usize) -> Options {
    let base = match arguments.direct {
        true => Options::direct(),
        false => Options::for_folder(folder),
    };
    Options {
        gap: arguments.gap.map_or(base.gap, |gap| gap.0),
        budget: arguments.budget.map(|budget| budget.0),
        threads,
        ..base
    }
}

/// The outputs that match one of the templates, or all outputs without templates.
fn select(bound: &Bound, templates: &[Template]) -> anyhow::Result<Vec<TensorSpec>> {
    let mut made: Vec<TensorSpec> = bound.outputs().collect();
    for template in templates {
        if !made.iter().any(|it| template.matches(&it.name).is_some()) {
            let (count, first) = (made.len(), made.first());
            let first =
                first.map_or(String::new(), |it| format!(", such as `{}`", printable(&it.name)));
            bail!("`{template}` matches none of the {count} outputs{first}");
        }
    }
    let matches = |it: &TensorSpec| templates.iter().any(|one| one.matches(&it.name).is_some());
    made.retain(|it| templates.is_empty() || matches(it));
    Ok(made)
}

/// The shards that a rank loads.
fn wants(
    bound: &Bound,
    made: &[TensorSpec],
    layout: &Layout,
    rank: u64,
) -> anyhow::Result<Vec<LoadRequest>> {
    let mut wants = Vec::with_capacity(made.len());
    for spec in made {
        if let Some(expr) = bound.expr(&spec.name) {
            let region = layout.region(&spec.name, &spec.shape, rank)?;
            wants.push(LoadRequest::new(spec.name.as_str(), expr, region));
        }
    }
    Ok(wants)
}

impl RankReport {
    fn new(rank: u64, plan: &LoadPlan, bandwidth: Bandwidth) -> RankReport {
        let (reads, memory) = (plan.reads(), plan.memory());
        RankReport {
            rank,
            targets: plan.targets().len() as u64,
            needed_bytes: plan.needed_bytes(),
            read_bytes: plan.read_bytes(),
            amplification: plan.amplification(),
            reads: reads.reads as u64,
            extents: reads.extents as u64,
            files: reads.files as u64,
            memory: MemoryReport {
                targets: memory.targets,
                windows: memory.windows,
                plan: memory.plan,
                total: memory.total(),
            },
            seconds: plan.seconds_at(bandwidth.0 as f64),
            digest: plan.digest().to_string(),
        }
    }
}
