//! Writing tensors as they are made, with no more memory than a budget.
//!
//! A writer asks for one tensor after the other. What is asked for is made together with as many of
//! those that follow as half of the budget holds, by one plan; the other half is for its windows. A
//! tensor that is larger than that is made some rows at a time.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use indicatif::ProgressBar;
use meshgrad::ckpt::exec::{Slices, execute, rows_per_batch};
use meshgrad::ckpt::graph::Graph;
use meshgrad::ckpt::plan::{Catalog, LoadPlan, LoadRequest, Options, PlanError};
use meshgrad::ckpt::source::{BackendChoice, Sources};
use meshgrad::ckpt::{Dtype, Folder, TensorInfo, TensorSink};

use super::size::ByteSize;

/// Memory and threads for making tensors.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    pub(super) budget: ByteSize,
    pub(super) threads: usize,
}

impl Limits {
    /// Bytes of tensors that are held at once.
    pub(super) fn target_bytes(self) -> u64 {
        self.budget.0 / 2
    }
}

/// Makes tensors in the order in which they are asked for: within one dtype, by name.
pub(super) struct Stream<'a> {
    graph: &'a Graph,
    catalog: Catalog<'a>,
    sources: Sources,
    options: Options,
    /// Bytes of tensors that are held at once.
    target_bytes: u64,
    /// All tensors, by name.
    wants: BTreeMap<Arc<str>, LoadRequest>,
    /// Those that are made and were not asked for yet.
    ready: BTreeMap<Arc<str>, Vec<u8>>,
    progress: &'a ProgressBar,
    read_bytes: u64,
}

impl<'a> Stream<'a> {
    pub(super) fn new(
        graph: &'a Graph,
        folder: &'a Folder,
        wants: Vec<LoadRequest>,
        limits: Limits,
        progress: &'a ProgressBar,
    ) -> anyhow::Result<Stream<'a>> {
        let wants = wants.into_iter().map(|want| (want.target.clone(), want));
        Ok(Stream {
            graph,
            catalog: Catalog::of(folder),
            sources: Sources::open(folder, BackendChoice::Auto)?,
            options: Options {
                threads: limits.threads,
                budget: Some(limits.budget.0),
                ..Options::for_folder(folder)
            },
            target_bytes: limits.target_bytes(),
            wants: wants.collect(),
            ready: BTreeMap::new(),
            progress,
            read_bytes: 0,
        })
    }

    /// Bytes that were read.
    pub(super) fn read_bytes(&self) -> u64 {
        self.read_bytes
    }

    /// Gives a tensor to its file.
    pub(super) fn write_tensor(
        &mut self,
        tensor: &TensorInfo,
        sink: &mut TensorSink<'_>,
    ) -> anyhow::Result<()> {
        if !self.ready.contains_key(tensor.name.as_str()) {
            // What is left is of another file.
            self.ready.clear();
            self.load_group(&tensor.name)?;
        }
        let Some(bytes) = self.ready.remove(tensor.name.as_str()) else {
            return self.write_by_rows(tensor, sink);
        };
        sink.append(&bytes)?;
        self.progress.inc(bytes.len() as u64);
        Ok(())
    }

    /// Makes a tensor and some that follow it; nothing if it alone is too large.
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
                Err(PlanError::Infeasible { .. }) => group.truncate(group.len() / 2),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// A tensor and those of its dtype that follow it, as many as may be held at once.
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

    fn write_by_rows(
        &mut self,
        tensor: &TensorInfo,
        sink: &mut TensorSink<'_>,
    ) -> anyhow::Result<()> {
        let unknown = || anyhow!("`{}` was not planned", tensor.name);
        let want = self
            .wants
            .get(tensor.name.as_str())
            .ok_or_else(unknown)?
            .clone();
        let mut at_once = self.target_bytes;
        let mut all = by_rows(&want, tensor.dtype, at_once);
        // The least is one row: if that does not fit, the plan says what it needs.
        while at_once > 0 {
            match all
                .first()
                .map(|rows| self.plan(std::slice::from_ref(rows)))
            {
                Some(Err(PlanError::Infeasible { .. })) => at_once /= 2,
                _ => break,
            }
            all = by_rows(&want, tensor.dtype, at_once);
        }
        for rows in all {
            let plan = self.plan(&[rows]);
            let plan = plan.with_context(|| format!("cannot make `{}`", tensor.name))?;
            for bytes in self.execute(&plan)? {
                sink.append(&bytes)?;
                self.progress.inc(bytes.len() as u64);
            }
        }
        Ok(())
    }

    fn plan(&self, wants: &[LoadRequest]) -> Result<LoadPlan, PlanError> {
        LoadPlan::new(self.graph, &self.catalog, wants, &self.options)
    }

    fn execute(&mut self, plan: &LoadPlan) -> anyhow::Result<Vec<Vec<u8>>> {
        let targets = plan.targets().iter();
        let mut made: Vec<Vec<u8>> = targets.map(|it| vec![0; it.bytes as usize]).collect();
        let slices = Slices::new(made.iter_mut().map(|it| &mut it[..]));
        let stats = execute(plan, &self.sources, &slices, &|_| {})?;
        self.read_bytes += stats.read_bytes;
        Ok(made)
    }
}

/// A region as regions of whole rows, of so many bytes or one row each.
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

/// A shape as files have it.
pub(super) fn file_shape(shape: &[u64]) -> Vec<usize> {
    shape.iter().map(|extent| *extent as usize).collect()
}
