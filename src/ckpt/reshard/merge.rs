//! Merges the shards of all ranks. A shard that several ranks hold is read from its primary replica.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Instant;

use anyhow::{anyhow, bail, ensure};
use indicatif::ProgressBar;
use meshgrad::ckpt::exec::{gather, rows_per_batch};
use meshgrad::ckpt::graph::{Expr, Graph, GraphError};
use meshgrad::ckpt::layout::Layout;
use meshgrad::ckpt::mapping::TensorSpec;
use meshgrad::ckpt::{TensorFile, TensorInfo, TensorSink};

use super::record::{LayoutRecord, Regions, rank_file};
use super::{Report, ReshardArguments};
use crate::ckpt::catalog::display_path;
use crate::ckpt::destination::{copy_sidecar_files, folder_writer, stage};
use crate::ckpt::size;
use crate::ckpt::source::Summary;
use crate::ckpt::stream::{Limits, extents, file_shape};
use crate::ckpt::values::progress_bar;

type Region = Vec<Range<u64>>;

pub(super) fn merge(arguments: &ReshardArguments, limits: Limits) -> anyhow::Result<Report> {
    let start = Instant::now();
    let record = LayoutRecord::read(&arguments.source)?;
    let (layout, specs) = record.layout()?;
    let files = open(arguments, &layout, &specs)?;
    let of_files = |file: &TensorFile| file.tensors().iter().map(bytes_of).sum::<u64>();
    let source = Summary {
        path: arguments.source.clone(),
        tensors: files.iter().map(|file| file.tensors().len() as u64).sum(),
        files: files.len() as u64,
        bytes: files.iter().map(of_files).sum(),
    };

    let writer = folder_writer(&specs, arguments.max_shard.0)?;
    let bytes = specs.iter().map(|it| size_of(it, &it.shape)).sum();
    let mut staging = stage(&arguments.destination)?;
    let copied = copy_sidecar_files(Some(&arguments.source), &mut staging, None)?;
    let progress = progress_bar(bytes);
    let specs: BTreeMap<&str, &TensorSpec> = specs.iter().map(|it| (&*it.name, it)).collect();
    let mut merger = Merger {
        layout: &layout,
        files: &files,
        limits,
        progress: &progress,
        read_bytes: 0,
    };
    writer.write(&mut staging, "", |tensor, data| {
        match specs.get(&*tensor.name) {
            Some(spec) => merger.write_tensor(spec, data),
            None => Err(anyhow!("`{}` is not in the layout", tensor.name)),
        }
    })?;
    let read_bytes = merger.read_bytes;
    let checkpoint = staging.commit()?;
    progress.finish_and_clear();

    let is_data = |path: &str| path.ends_with(".safetensors");
    Ok(Report {
        source,
        mesh: layout.to_string(),
        ranks: layout.ranks(),
        destination: Summary {
            path: arguments.destination.clone(),
            tensors: specs.len() as u64,
            files: checkpoint.files().filter(|(path, _)| is_data(path)).count() as u64,
            bytes,
        },
        copied,
        read_bytes,
        rank_bytes: Vec::new(),
        seconds: start.elapsed().as_secs_f64(),
    })
}

fn bytes_of(tensor: &TensorInfo) -> u64 {
    tensor.byte_len() as u64
}

/// Bytes of a region of this shape.
fn size_of(spec: &TensorSpec, shape: &[u64]) -> u64 {
    let elements = shape.iter().fold(1u64, |all, it| all.saturating_mul(*it));
    elements
        .saturating_mul(spec.dtype.bits() as u64)
        .div_ceil(8)
}

/// Opens the files of all ranks and checks them against the layout.
fn open(
    arguments: &ReshardArguments,
    layout: &Layout,
    specs: &[TensorSpec],
) -> anyhow::Result<Vec<TensorFile>> {
    let mut files = Vec::new();
    for rank in 0..layout.ranks() {
        let file = TensorFile::open(arguments.source.join(rank_file(rank)))?;
        let regions = Regions::of(layout, specs, rank)?;
        regions.check(specs, &file)?;
        for (spec, (name, region)) in specs.iter().zip(&regions.0) {
            let path = display_path(file.path());
            let Some(found) = file.get(name) else {
                bail!("{path} lacks `{name}`");
            };
            let shape = file_shape(&extents(region));
            ensure!(
                (found.dtype, &found.shape) == (spec.dtype, &shape),
                "{path}: `{name}` is {} {:?}, the layout requires {} {shape:?}",
                found.dtype,
                found.shape,
                spec.dtype
            );
        }
        let (found, required) = (file.tensors().len(), specs.len());
        let path = display_path(file.path());
        ensure!(
            found == required,
            "{path} has {found} tensors, the layout requires {required}"
        );
        files.push(file);
    }
    Ok(files)
}

struct Merger<'a> {
    layout: &'a Layout,
    files: &'a [TensorFile],
    limits: Limits,
    progress: &'a ProgressBar,
    read_bytes: u64,
}

/// A shard of a tensor.
#[derive(Clone)]
struct Part {
    rank: u64,
    region: Region,
}

impl Merger<'_> {
    /// Writes a tensor in groups of rows. Memory must hold both the rows of the shards and the
    /// merged rows.
    fn write_tensor(&mut self, spec: &TensorSpec, sink: &mut TensorSink<'_>) -> anyhow::Result<()> {
        let parts = self.parts(spec)?;
        for rows in rows_per_batch(&spec.shape, spec.dtype, self.limits.target_bytes()) {
            let bytes = size_of(spec, &extents(&rows));
            let (need, have) = (bytes.saturating_mul(2), self.limits.budget.0);
            ensure!(
                need <= have,
                "merging `{}` needs {} of memory, the budget is {}; raise --budget",
                spec.name,
                size::bytes(need),
                size::bytes(have)
            );
            if bytes > 0 {
                sink.append(&self.make(spec, &parts, &rows)?)?;
            }
            self.progress.inc(bytes);
        }
        Ok(())
    }

    /// The distinct non-empty shards of a tensor.
    fn parts(&self, spec: &TensorSpec) -> anyhow::Result<Vec<Part>> {
        let mut parts = Vec::new();
        for rank in 0..self.layout.ranks() {
            if self.layout.is_primary_replica(&spec.name, rank) {
                let region = self.layout.region(&spec.name, &spec.shape, rank)?;
                if region.iter().all(|range| !range.is_empty()) {
                    parts.push(Part { rank, region });
                }
            }
        }
        Ok(parts)
    }

    /// Merges some rows of a tensor.
    fn make(
        &mut self,
        spec: &TensorSpec,
        parts: &[Part],
        rows: &Region,
    ) -> anyhow::Result<Vec<u8>> {
        let mut graph = Graph::new();
        let mut memory = BTreeMap::new();
        let mut leaves = Vec::new();
        for part in parts {
            let Some(region) = clipped(&part.region, rows) else {
                continue;
            };
            let leaf = part.rank.to_string();
            let shape = extents(&region);
            leaves.push((graph.source(&leaf, spec.dtype, &shape)?, region.clone()));
            memory.insert(leaf, self.read(spec, part, &region)?);
        }
        let whole = concat(&mut graph, leaves, 0, rows.len())?;
        let found = |name: &str| memory.get(name).map(|bytes| &bytes[..]);
        let region: Region = extents(rows).iter().map(|extent| 0..*extent).collect();
        let mut out = vec![0; size_of(spec, &extents(rows)) as usize];
        gather(&graph, whole, &region, &found, &mut out)?;
        Ok(out)
    }

    /// Reads rows of a shard, which are contiguous in its file.
    fn read(&mut self, spec: &TensorSpec, part: &Part, rows: &Region) -> anyhow::Result<Vec<u8>> {
        let mut before = extents(rows);
        if let (Some(first), Some(rows), Some(own)) =
            (before.first_mut(), rows.first(), part.region.first())
        {
            *first = rows.start - own.start;
        }
        let offset = if rows.is_empty() {
            0
        } else {
            size_of(spec, &before)
        };
        let mut bytes = vec![0; size_of(spec, &extents(rows)) as usize];
        let file = &self.files[part.rank as usize];
        file.read_range_into(&spec.name, offset as usize, &mut bytes)?;
        self.read_bytes += bytes.len() as u64;
        Ok(bytes)
    }
}

/// The intersection of two regions, or `None` if it is empty.
fn clipped(region: &Region, other: &Region) -> Option<Region> {
    let both = region.iter().zip(other);
    let both = both.map(|(a, b)| a.start.max(b.start)..a.end.min(b.end));
    let clipped: Region = both.collect();
    let is_empty = clipped.iter().any(Range::is_empty);
    (!is_empty).then_some(clipped)
}

/// Concatenates a grid of leaves along each dim in turn.
fn concat(
    graph: &mut Graph,
    leaves: Vec<(Expr, Region)>,
    dim: usize,
    rank: usize,
) -> Result<Expr, GraphError> {
    if dim == rank {
        let first = leaves.first().map(|(expr, _)| *expr);
        return first.ok_or(GraphError::NoOperands { op: "concat" });
    }
    let mut slabs: BTreeMap<u64, Vec<(Expr, Region)>> = BTreeMap::new();
    for (expr, region) in leaves {
        slabs
            .entry(region[dim].start)
            .or_default()
            .push((expr, region));
    }
    let joined = slabs
        .into_values()
        .map(|slab| concat(graph, slab, dim + 1, rank));
    let joined: Vec<Expr> = joined.collect::<Result<_, _>>()?;
    match joined[..] {
        [alone] => Ok(alone),
        _ => graph.concat(&joined, dim),
    }
}
