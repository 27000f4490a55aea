//! Loads and converts tensors for a writer within a memory budget.
//!
//! The writer requests tensors in order. One plan computes the requested tensor together with as
//! many following ones as fit into half of the budget; the other half is for windows. A larger
//! tensor is computed in groups of rows.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use indicatif::ProgressBar;
use meshgrad::ckpt::exec::{Slices, execute, rows_per_batch};
use meshgrad::ckpt::graph::Graph;
use meshgrad::ckpt::plan::{Catalog, Infeasible, LoadPlan, LoadRequest, Options};
use meshgrad::ckpt::source::Sources;
use meshgrad::ckpt::{Dtype, Error, Result, TensorInfo, TensorSink};

use super::interrupt::Interrupt;
use super::size::ByteSize;
use super::source::Source;

/// Memory and threads of a conversion, and the flag that stops it.
#[derive(Clone)]
pub(super) struct Limits {
    pub(super) interrupt: Interrupt,
    pub(super) budget: ByteSize,
    pub(super) threads: usize,
}

impl Limits {
    /// Maximum bytes of tensors in memory.
    pub(super) fn target_bytes(&self) -> u64 {
        self.budget.0 / 2
    }
}

/// Computes tensors in the order of the writer: by name within each dtype.
pub(super) struct Stream<'a> {
    graph: Cow<'a, Graph>,
    catalog: Catalog<'a>,
    sources: Sources,
    options: Options,
    /// Maximum bytes of tensors in memory.
    target_bytes: u64,
    /// All tensors, by name.
    wants: BTreeMap<Arc<str>, LoadRequest>,
    /// Tensors that are computed but not written yet.
    ready: BTreeMap<Arc<str>, Vec<u8>>,
    progress: &'a ProgressBar,
    interrupt: Interrupt,
    read_bytes: u64,
}

impl<'a> Stream<'a> {
    pub(super) fn new(
        graph: &'a Graph,
        source: &'a Source,
        wants: Vec<LoadRequest>,
        limits: &Limits,
        progress: &'a ProgressBar,
    ) -> anyhow::Result<Stream<'a>> {
        let (graph, wants) = source.over_stored(graph, wants)?;
        let wants = wants.into_iter().map(|want| (want.target.clone(), want));
        Ok(Stream {
            graph,
            catalog: Catalog::of(source.stored()),
            sources: source.files()?,
            options: Options {
                threads: limits.threads,
                budget: Some(limits.budget.0),
                ..Options::for_folder(source.stored())
            },
            target_bytes: limits.target_bytes(),
            wants: wants.collect(),
            ready: BTreeMap::new(),
            progress,
            interrupt: limits.interrupt.clone(),
            read_bytes: 0,
        })
    }

    /// Bytes read so far.
    pub(super) fn read_bytes(&self) -> u64 {
        self.read_bytes
    }

    /// Writes a tensor to its file.
    pub(super) fn write_tensor(
        &mut self,
        tensor: &TensorInfo,
        sink: &mut TensorSink<'_>,
    ) -> anyhow::Result<()> {
        self.each_part(tensor, |bytes| Ok(sink.append(bytes)?))
    }

    /// Calls `take` with the bytes of a tensor, at once or by rows.
    pub(super) fn each_part(
        &mut self,
        tensor: &TensorInfo,
        mut take: impl FnMut(&[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        if !self.ready.contains_key(tensor.name.as_str()) {
            // The remaining tensors belong to another file.
            self.ready.clear();
            self.load_group(&tensor.name)?;
        }
        let Some(bytes) = self.ready.remove(tensor.name.as_str()) else {
            return self.each_row_group(tensor, take);
        };
        take(&bytes)?;
        self.progress.inc(bytes.len() as u64);
        Ok(())
    }

    /// Computes a tensor and some following ones. Computes nothing if the tensor alone is too
    /// large.
    fn load_group(&mut self, name: &str) -> anyhow::Result<()> {
        let mut group = self.group(name);
        while !group.is_empty() {
            match self.plan(&group) {
                Ok(plan) => {
                    let made = self.execute(&plan)?;
                    let names = group.into_iter().map(|want| want.target);
                    self.ready = names.zip(made).collect();
                    return Ok(());
                }
                Err(error) if is_infeasible(&error) => group.truncate(group.len() / 2),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// A tensor and as many following ones of its dtype as fit into memory.
    fn group(&self, name: &str) -> Vec<LoadRequest> {
        let following = self.wants.range(Arc::from(name)..).map(|(_, want)| want);
        let mut dtype = None;
        let mut held = 0u64;
        let mut group = Vec::new();
        for want in following {
            let own = self.graph.dtype(want.expr);
            if *dtype.get_or_insert(own) != own {
                continue;
            }
            held = held.saturating_add(bytes_of(want, own));
            if held > self.target_bytes {
                break;
            }
            group.push(want.clone());
        }
        group
    }

    fn each_row_group(
        &mut self,
        tensor: &TensorInfo,
        mut take: impl FnMut(&[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let unknown = || anyhow!("`{}` is not an output", tensor.name);
        let want = self.wants.get(tensor.name.as_str()).ok_or_else(unknown)?.clone();
        let mut at_once = self.target_bytes;
        let mut all = by_rows(&want, tensor.dtype, at_once);
        // The minimum is one row. If it does not fit, the plan's error states the memory it needs.
        while at_once > 0 {
            match all.first().map(|rows| self.plan(std::slice::from_ref(rows))) {
                Some(Err(error)) if is_infeasible(&error) => at_once /= 2,
                _ => break,
            }
            all = by_rows(&want, tensor.dtype, at_once);
        }
        for rows in all {
            let plan = self.plan(&[rows]);
            let plan = plan.with_context(|| format!("cannot make `{}`", tensor.name))?;
            for bytes in self.execute(&plan)? {
                take(&bytes)?;
                self.progress.inc(bytes.len() as u64);
            }
        }
        Ok(())
    }

    fn plan(&self, wants: &[LoadRequest]) -> Result<LoadPlan> {
        LoadPlan::new(&self.graph, &self.catalog, wants, &self.options)
    }

    fn execute(&mut self, plan: &LoadPlan) -> anyhow::Result<Vec<Vec<u8>>> {
        self.interrupt.check()?;
        let targets = plan.targets().iter();
        let mut made: Vec<Vec<u8>> = targets.map(|it| vec![0; it.bytes as usize]).collect();
        let slices = Slices::new(made.iter_mut().map(|it| &mut it[..]));
        let stats = execute(plan, &self.sources, &slices, &|_| {})?;
        self.read_bytes += stats.read_bytes;
        Ok(made)
    }
}

/// Whether the budget for a plan is too small.
fn is_infeasible(error: &Error) -> bool {
    error.details::<Infeasible>().is_some()
}

/// Splits a region into groups of rows of at most `at_once` bytes, or single rows.
fn by_rows(want: &LoadRequest, dtype: Dtype, at_once: u64) -> Vec<LoadRequest> {
    let shape = extents(&want.region);
    let regions = rows_per_batch(&shape, dtype, at_once).map(|rows| {
        let mut part = want.clone();
        if let (Some(all), Some(rows)) = (part.region.first_mut(), rows.first()) {
            *all = all.start + rows.start..all.start + rows.end;
        }
        part
    });
    regions.collect()
}

/// The shape of a region.
pub(super) fn extents(region: &[Range<u64>]) -> Vec<u64> {
    region.iter().map(|range| range.end - range.start).collect()
}

fn bytes_of(want: &LoadRequest, dtype: Dtype) -> u64 {
    let elements: u64 = extents(&want.region).iter().product();
    elements.saturating_mul(dtype.bits() as u64).div_ceil(8)
}

/// A shape as a file stores it.
pub(super) fn file_shape(shape: &[u64]) -> Vec<usize> {
    shape.iter().map(|extent| *extent as usize).collect()
}
