//! `meshgrad ckpt reshard`: splits a model, or the shards of other ranks, into one folder per rank,
//! and merges the folders.
//!
//! ```text
//! DESTINATION/layout.json                    the mesh, the placements, and all tensors
//! DESTINATION/rank-00003/model.safetensors   the shards of rank 3
//! ```

mod merge;
mod record;
mod split_folder;

use std::path::PathBuf;
use std::time::Instant;

use meshgrad::ckpt::FileWriter;
use meshgrad::ckpt::layout::Layout;
use meshgrad::ckpt::mapping::{AllowedProblems, Mapping, TensorSpec};
use meshgrad::ckpt::plan::LoadRequest;
use serde::Serialize;

use super::arguments::{LinkArguments, check_placements, mapping_errors, parse_mesh, read_layout};
use super::destination::{ConfigChange, Sidecars, stage, summary_rows};
use super::interrupt::Interrupt;
use super::size::{self, ByteSize};
use super::source::{Metadata, REGION_KEY, Source, Summary};
use super::stream::{Limits, Stream, extents, file_shape};
use super::values::progress_bar;
use super::warn;
use crate::answer::Answer;
use crate::table::Side::{Left, Right};
use crate::table::{Table, printable};
use record::{LAYOUT_FILE, LayoutRecord, Regions, rank_file};
use split_folder::SplitFolder;

#[derive(clap::Args)]
pub(super) struct ReshardArguments {
    /// A model, as for convert, or a folder that this subcommand wrote. --merge requires the latter.
    source: PathBuf,
    /// The folder to create; it must not exist.
    destination: PathBuf,
    /// The mesh axes and their sizes, as in `ep=8,tp=2`.
    #[arg(long, value_name = "AXES", required_unless_present = "merge", value_parser = parse_mesh)]
    mesh: Option<String>,
    /// Which axes shard which dims of which tensors, one rule per line, as in
    /// `{r:path}.weight = tp:0`.
    #[arg(long, value_name = "FILE", required_unless_present = "merge")]
    placements: Option<PathBuf>,
    /// Merge the shards of all ranks.
    #[arg(long, conflicts_with_all = ["mesh", "placements"])]
    merge: bool,
    #[command(flatten)]
    links: LinkArguments,
    /// Memory for tensor data.
    #[arg(long, value_name = "SIZE", default_value = "2GiB")]
    budget: ByteSize,
    /// Maximum data per merged file.
    #[arg(long, value_name = "SIZE", default_value = "5GB", requires = "merge")]
    max_shard: ByteSize,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The result of a split or merge.
#[derive(Serialize)]
struct Report {
    source: Summary,
    mesh: String,
    ranks: u64,
    destination: Summary,
    copied: Vec<String>,
    /// What the destination lacks.
    warnings: Vec<String>,
    read_bytes: u64,
    /// Bytes of each rank's shards; empty after a merge.
    rank_bytes: Vec<u64>,
    seconds: f64,
}

pub(super) fn reshard(arguments: &ReshardArguments, threads: usize) -> anyhow::Result<Answer> {
    let budget = arguments.budget;
    let limits = Limits { interrupt: Interrupt::listen()?, budget, threads };
    let report = match (&arguments.mesh, &arguments.placements) {
        (Some(mesh), Some(file)) => {
            let (layout, placements) = read_layout(mesh, file)?;
            let (source, compared) = open(arguments, &limits)?;
            let specs = source.specs();
            check_placements(&layout, file, &specs)?;
            let mapping = Mapping::identity();
            if let Err(report) = mapping.bind(&specs, None, &AllowedProblems::none()) {
                return mapping_errors(source.path(), &None, &report, arguments.json);
            }
            let record = LayoutRecord::new(mesh, &placements, &layout, &specs);
            let mut report = split(arguments, &source, &layout, &record, &limits)?;
            report.read_bytes += compared;
            report.warnings.splice(0..0, source.warnings);
            report
        }
        _ => merge::merge(arguments, &limits)?,
    };
    match arguments.json {
        true => Answer::json(&report, 0),
        false => {
            warn(&report.warnings);
            Ok(Answer::success(report.text()))
        }
    }
}

/// Opens a model, or the shards of ranks after comparing their replicas. Also returns the bytes
/// that the comparison read.
fn open(arguments: &ReshardArguments, limits: &Limits) -> anyhow::Result<(Source, u64)> {
    if !SplitFolder::is_at(&arguments.source) {
        return Ok((Source::open_intact(&arguments.source, arguments.links.links())?, 0));
    }
    let split = SplitFolder::open(&arguments.source, arguments.links.links())?;
    let compared = split.check_replicas(limits)?;
    Ok((split.source, compared))
}

/// Writes the shards of all ranks.
fn split(
    arguments: &ReshardArguments,
    source: &Source,
    layout: &Layout,
    record: &LayoutRecord,
    limits: &Limits,
) -> anyhow::Result<Report> {
    let start = Instant::now();
    let specs = source.specs();
    let (metadata, mut warnings) = source.metadata();
    let mut rank_bytes = Vec::new();
    for rank in 0..layout.ranks() {
        let (file, _) = rank_writer(layout, &specs, &metadata, rank)?;
        rank_bytes.push(file.data_len());
    }
    let bytes: u64 = rank_bytes.iter().sum();

    let mut staging = stage(&arguments.destination)?;
    staging.check_space(bytes)?;
    let copied = Sidecars::of(source).copy(&mut staging, &ConfigChange::default())?;
    warnings.extend(copied.warnings());
    let identity = Mapping::identity().bind(&specs, None, &AllowedProblems::none())?;
    let progress = progress_bar(bytes);
    let mut read_bytes = 0;
    for rank in 0..layout.ranks() {
        let (file, regions) = rank_writer(layout, &specs, &metadata, rank)?;
        let wants = regions.0.into_iter().filter_map(|(name, region)| {
            let expr = identity.expr(&name)?;
            Some(LoadRequest::new(name, expr, region))
        });
        let (graph, wants) = (identity.graph(), wants.collect());
        let mut stream = Stream::new(graph, source, wants, limits, &progress)?;
        staging.write_with(&rank_file(rank), |out| {
            file.write_to(out, |tensor, data| stream.write_tensor(tensor, data))
        })?;
        read_bytes += stream.read_bytes();
    }
    staging.write(LAYOUT_FILE, record.to_json()?.as_bytes())?;
    staging.commit()?;
    progress.finish_and_clear();

    Ok(Report {
        source: source.stored_summary(),
        mesh: layout.to_string(),
        ranks: layout.ranks(),
        destination: Summary {
            path: arguments.destination.clone(),
            tensors: specs.len() as u64 * layout.ranks(),
            files: layout.ranks(),
            bytes,
        },
        copied: copied.names,
        warnings,
        read_bytes,
        rank_bytes,
        seconds: start.elapsed().as_secs_f64(),
    })
}

/// The file of a rank, and the regions of its shards.
fn rank_writer(
    layout: &Layout,
    specs: &[TensorSpec],
    metadata: &Metadata,
    rank: u64,
) -> anyhow::Result<(FileWriter, Regions)> {
    let regions = Regions::of(layout, specs, rank)?;
    let mut file = FileWriter::new();
    for (spec, (name, region)) in specs.iter().zip(&regions.0) {
        file.add(name, spec.dtype, &file_shape(&extents(region)))?;
    }
    file.set_metadata("format", "pt");
    for (key, value) in metadata {
        file.set_metadata(key, value);
    }
    file.set_metadata(REGION_KEY, &regions.to_json(specs)?);
    Ok((file, regions))
}

impl Report {
    fn text(&self) -> String {
        let mut table = Table::new([Left, Left, Right, Right, Right]);
        table.row(self.source.row("source"));
        table.row(self.destination.row("destination"));
        let mut notes = Table::new([Left, Left]);
        let mut note = |title: &str, text: String| notes.row([title.to_owned(), text]);
        let ranks = size::counted(self.ranks, "rank");
        note("layout", format!("{}, {ranks}", printable(&self.mesh)));
        let least = self.rank_bytes.iter().min().copied();
        if let (Some(least), Some(most)) = (least, self.rank_bytes.iter().max().copied()) {
            let (least, most) = (size::bytes(least), size::bytes(most));
            note("shards", format!("{least} to {most} per rank"));
        }
        let bytes = (self.read_bytes, self.destination.bytes);
        for row in summary_rows(&self.copied, bytes, self.seconds) {
            notes.row(row);
        }
        format!("{table}\n{notes}")
    }
}
