//! Merges the shards of all ranks. A shard that several ranks hold is written from its first replica,
//! and the others must be equal.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Instant;

use anyhow::{anyhow, bail, ensure};
use indicatif::ProgressBar;
use meshgrad::ckpt::exec::{gather, rows_per_batch};
use meshgrad::ckpt::graph::{Expr, Graph, GraphError};
use meshgrad::ckpt::layout::Layout;
use meshgrad::ckpt::mapping::TensorSpec;
use meshgrad::ckpt::source::{self, BackendChoice, Opened, Sources};
use meshgrad::ckpt::{Committed, TensorFile, TensorInfo, TensorSink};

use super::record::{LAYOUT_FILE, LayoutRecord, Regions, rank_file};
use super::{Report, ReshardArguments};
use crate::ckpt::catalog::display_path;
use crate::ckpt::destination::{ConfigChange, Sidecars, folder_writer, stage};
use crate::ckpt::size;
use crate::ckpt::source::{Summary, intact_checkpoint};
use crate::ckpt::stream::{Limits, extents, file_shape};
use crate::ckpt::values::progress_bar;

type Region = Vec<Range<u64>>;

pub(super) fn merge(arguments: &ReshardArguments, limits: &Limits) -> anyhow::Result<Report> {
    let start = Instant::now();
    let checkpoint = intact_checkpoint(&arguments.source)?;
    if let Some(checkpoint) = &checkpoint {
        checkpoint.verify_file(LAYOUT_FILE)?;
    }
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
    let sidecars = Sidecars::of_folder(&arguments.source, checkpoint.as_ref());
    let copied = sidecars.copy(&mut staging, &ConfigChange::default())?;
    let progress = progress_bar(bytes);
    let specs: BTreeMap<&str, &TensorSpec> = specs.iter().map(|it| (&*it.name, it)).collect();
    let mut merger = Merger {
        layout: &layout,
        files: &files,
        sources: &open_sources(&files, checkpoint.as_ref())?,
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

/// Opens the files for reading. Reads compare digests if there is a manifest.
fn open_sources(
    files: &[TensorFile],
    checkpoint: Option<&Committed>,
) -> anyhow::Result<Vec<Opened>> {
    let open = |file: &TensorFile| match checkpoint {
        Some(checkpoint) => Sources::open_sealed_file(file, BackendChoice::Auto, checkpoint),
        None => source::open_file(file, BackendChoice::Auto),
    };
    Ok(files.iter().map(open).collect::<Result<_, _>>()?)
}

/// Bytes of a replica that are compared at once.
const COMPARED_BYTES: usize = 256 << 10;

struct Merger<'a> {
    layout: &'a Layout,
    files: &'a [TensorFile],
    /// The same files.
    sources: &'a [Opened],
    limits: &'a Limits,
    progress: &'a ProgressBar,
    read_bytes: u64,
}

/// A shard of a tensor.
struct Part {
    region: Region,
    /// The rank that it is read from.
    rank: u64,
    /// The other ranks that hold it.
    replicas: Vec<u64>,
}

impl Merger<'_> {
    /// Writes a tensor in groups of rows. Memory must hold both the rows of the shards and the
    /// merged rows.
    fn write_tensor(&mut self, spec: &TensorSpec, sink: &mut TensorSink<'_>) -> anyhow::Result<()> {
        let parts = self.parts(spec)?;
        for rows in rows_per_batch(&spec.shape, spec.dtype, self.limits.target_bytes()) {
            self.limits.interrupt.check()?;
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
        let mut parts: Vec<Part> = Vec::new();
        let mut known: BTreeMap<Vec<u64>, usize> = BTreeMap::new();
        for rank in 0..self.layout.ranks() {
            let region = self.layout.region(&spec.name, &spec.shape, rank)?;
            if region.iter().any(|range| range.is_empty()) {
                continue;
            }
            let start = region.iter().map(|range| range.start).collect();
            match known.get(&start) {
                Some(&at) => parts[at].replicas.push(rank),
                None => {
                    known.insert(start, parts.len());
                    let replicas = Vec::new();
                    parts.push(Part {
                        region,
                        rank,
                        replicas,
                    });
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

    /// Reads rows of a shard, which are contiguous in its file, and compares the other replicas.
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
        self.read_shard(part.rank, spec, offset, &mut bytes)?;
        for rank in &part.replicas {
            self.compare(spec, part, *rank, offset, &bytes)?;
        }
        Ok(bytes)
    }

    /// Reads bytes of a rank's shard.
    fn read_shard(
        &mut self,
        rank: u64,
        spec: &TensorSpec,
        offset: u64,
        bytes: &mut [u8],
    ) -> anyhow::Result<()> {
        let file = &self.files[rank as usize];
        let tensor = file.get(&spec.name);
        let tensor = tensor.ok_or_else(|| anyhow!("`{}` is not in the layout", spec.name))?;
        let source = &self.sources[rank as usize].source;
        source.read_at(tensor.range.start + offset, bytes)?;
        self.read_bytes += bytes.len() as u64;
        Ok(())
    }

    /// Compares a replica with bytes of the shard that is written.
    fn compare(
        &mut self,
        spec: &TensorSpec,
        part: &Part,
        rank: u64,
        offset: u64,
        expected: &[u8],
    ) -> anyhow::Result<()> {
        let mut window = vec![0; expected.len().min(COMPARED_BYTES)];
        let starts = (offset..).step_by(COMPARED_BYTES);
        for (start, expected) in starts.zip(expected.chunks(COMPARED_BYTES)) {
            let found = &mut window[..expected.len()];
            self.read_shard(rank, spec, start, found)?;
            let differ = found.iter().zip(expected).position(|(a, b)| a != b);
            if let Some(at) = differ {
                let path = |rank: u64| display_path(self.files[rank as usize].path());
                bail!(
                    "{} and {} hold the same part of `{}`, but differ at byte {} of it: copy the file that \
                     is right over the other one, and remove manifest.json",
                    path(part.rank),
                    path(rank),
                    spec.name,
                    start + at as u64
                );
            }
        }
        Ok(())
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
