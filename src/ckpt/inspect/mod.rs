//! `meshgrad ckpt inspect`: lists the tensors under a path.
//!
//! The report is data, which `--json` prints; [`text`] formats it as tables.

mod text;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use glob::Pattern;
use meshgrad::ckpt::{Committed, Dtype};
use serde::Serialize;

use super::arguments::LinkArguments;
use super::catalog::{Catalog, Entry, Kind};
use super::size::ByteSize;
use super::values::{Statistics, Workers, statistics};
use super::{parse_glob, warn};
use crate::answer::Answer;
use crate::table::display_path;

/// If at most this many tensors are selected by name, each is listed individually.
const MAX_LISTED: usize = 32;

#[derive(clap::Args)]
pub(super) struct InspectArguments {
    /// A file of safetensors or PyTorch, a folder of them, a checkpoint, or a run: its newest
    /// checkpoint.
    path: PathBuf,
    /// Show only tensors that match; `*` is any text. May be repeated.
    #[arg(long, value_name = "GLOB", value_parser = parse_glob)]
    tensors: Vec<Pattern>,
    /// Read all elements of the selected tensors: min, max, mean, standard deviation, zeros, NaN.
    #[arg(long)]
    stats: bool,
    /// Memory for tensor data.
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    budget: ByteSize,
    #[command(flatten)]
    links: LinkArguments,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    path: String,
    kind: &'static str,
    #[serde(skip)]
    description: String,
    step: Option<u64>,
    warnings: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<Vec<CheckpointReport>>,
    parameters: u64,
    total: Total,
    file_bytes: u64,
    dtypes: Vec<DtypeReport>,
    parts: Vec<PartReport>,
    files: Vec<FileReport>,
    tensors: Vec<TensorReport>,
    #[serde(skip)]
    has_stats: bool,
}

#[derive(Serialize)]
struct CheckpointReport {
    name: String,
    step: Option<u64>,
    path: String,
    files: usize,
    bytes: u64,
}

#[derive(Serialize, Default, Clone, Copy)]
struct Total {
    tensors: u64,
    elements: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct DtypeReport {
    dtype: &'static str,
    #[serde(flatten)]
    total: Total,
}

#[derive(Serialize)]
struct PartReport {
    name: String,
    #[serde(flatten)]
    total: Total,
}

#[derive(Serialize)]
struct FileReport {
    path: String,
    bytes: u64,
    tensors: usize,
    metadata: BTreeMap<String, String>,
}

#[derive(Serialize)]
struct TensorReport {
    name: String,
    dtype: &'static str,
    shape: Vec<usize>,
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    stats: Option<Statistics>,
}

impl Total {
    fn of<'a>(entries: impl IntoIterator<Item = &'a Entry<'a>>) -> Total {
        let mut total = Total::default();
        for entry in entries {
            total.tensors += 1;
            // Sparse files may claim any size.
            total.elements = total.elements.saturating_add(entry.elements());
            total.bytes = total.bytes.saturating_add(entry.bytes());
        }
        total
    }
}

pub(super) fn inspect(arguments: &InspectArguments, threads: usize) -> anyhow::Result<Answer> {
    let catalog = Catalog::open(&arguments.path, arguments.links.links())?;
    let selected = catalog.select(&arguments.tensors)?;
    let mut report = Report::new(&catalog, &selected)?;
    if arguments.stats {
        let workers = Workers::new(arguments.budget, threads, catalog.buffers())?;
        report.add_stats(statistics(&selected, workers)?);
    }
    if arguments.json {
        return Answer::json(&report, 0);
    }

    warn(&report.warnings);
    let one_by_one = !arguments.tensors.is_empty() && selected.len() <= MAX_LISTED;
    Ok(Answer::success(report.text(one_by_one)))
}

impl Report {
    fn new(catalog: &Catalog, selected: &[Entry]) -> anyhow::Result<Report> {
        let entries = catalog.entries();
        let mut dtypes: BTreeMap<Dtype, Vec<&Entry>> = BTreeMap::new();
        for entry in &entries {
            dtypes.entry(entry.info.dtype).or_default().push(entry);
        }
        let dtypes = dtypes
            .into_iter()
            .map(|(dtype, entries)| DtypeReport { dtype: dtype.name(), total: Total::of(entries) });

        let parts = catalog
            .parts
            .iter()
            .map(|part| PartReport { name: part.name.clone(), total: Total::of(&part.entries()) });
        let parts: Vec<PartReport> = parts.collect();
        let files: Vec<FileReport> = files(catalog)?;
        let step = match &catalog.kind {
            Kind::Checkpoint(checkpoint) => checkpoint.step(),
            _ => None,
        };

        // Optimizer state does not count as parameters.
        let model = parts.iter().find(|part| part.name.is_empty());
        let total = Total::of(&entries);
        Ok(Report {
            path: catalog.path.to_string_lossy().into_owned(),
            kind: catalog.kind.name(),
            description: catalog.kind.describe(),
            step,
            warnings: catalog.warnings.clone(),
            run: catalog.run.as_ref().map(|run| checkpoints(&run.complete)),
            parameters: model.map_or(total.elements, |model| model.total.elements),
            total,
            file_bytes: files.iter().map(|file| file.bytes).sum(),
            dtypes: dtypes.collect(),
            parts,
            files,
            tensors: selected.iter().map(TensorReport::new).collect(),
            has_stats: false,
        })
    }

    fn add_stats(&mut self, all: Vec<Option<Statistics>>) {
        self.has_stats = true;
        for (tensor, stats) in self.tensors.iter_mut().zip(all) {
            tensor.stats = stats;
        }
    }
}

fn checkpoints(complete: &[Committed]) -> Vec<CheckpointReport> {
    let reports = complete.iter().map(|checkpoint| CheckpointReport {
        name: checkpoint.path().file_name().unwrap_or_default().to_string_lossy().into_owned(),
        step: checkpoint.step(),
        path: checkpoint.path().to_string_lossy().into_owned(),
        files: checkpoint.files().len(),
        bytes: checkpoint.files().map(|(_, bytes)| bytes).sum(),
    });
    reports.collect()
}

fn files(catalog: &Catalog) -> anyhow::Result<Vec<FileReport>> {
    let reports = catalog.files().map(|file| {
        let path = file.path();
        let metadata =
            fs::metadata(path).with_context(|| format!("cannot open {}", display_path(path)))?;
        Ok(FileReport {
            path: path.to_string_lossy().into_owned(),
            bytes: metadata.len(),
            tensors: file.tensors().len(),
            metadata: file.metadata().clone(),
        })
    });
    reports.collect()
}

impl TensorReport {
    fn new(entry: &Entry) -> TensorReport {
        TensorReport {
            name: entry.name.clone(),
            dtype: entry.info.dtype.name(),
            shape: entry.info.shape.clone(),
            bytes: entry.bytes(),
            stats: None,
        }
    }
}
