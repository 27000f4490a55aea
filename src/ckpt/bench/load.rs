//! Loads by meshgrad: a plan of all tensors without a map, executed by one of the backends.

use std::cell::RefCell;
use std::time::Instant;

use anyhow::ensure;
use clap::ValueEnum;
use indicatif::ProgressBar;
use memmap2::MmapMut;
use meshgrad::ckpt::Folder;
use meshgrad::ckpt::exec::{Sink, Stats, execute, rows_per_batch};
use meshgrad::ckpt::graph::Graph;
use meshgrad::ckpt::mapping::TensorSpec;
use meshgrad::ckpt::plan::{Catalog, LoadPlan, LoadRequest, Options, Targets};
use meshgrad::ckpt::source::{Backend, BackendChoice, Sources};
use meshgrad_harness::map_new;

use super::memory::{Pool, ResidentTargets};
use crate::ckpt::interrupt::Interrupt;
use crate::ckpt::source::Source;

/// The values of `--backend`.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Method {
    /// Positioned reads through the page cache.
    Pread,
    /// Direct reads, which bypass the page cache.
    Direct,
    /// Copies from a memory map.
    Mmap,
    /// The default of loads.
    Auto,
}

impl Method {
    pub(super) fn choice(self) -> BackendChoice {
        match self {
            Method::Pread => BackendChoice::Only(Backend::Pread),
            Method::Direct => BackendChoice::Only(Backend::Direct),
            Method::Mmap => BackendChoice::Only(Backend::Mapped),
            Method::Auto => BackendChoice::Auto,
        }
    }

    fn options(self) -> Options {
        match self {
            Method::Direct => Options::direct(),
            _ => Options::default(),
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Method::Pread => "pread",
            Method::Direct => "O_DIRECT",
            Method::Mmap => "mmap",
            Method::Auto => "auto",
        }
    }
}

/// How long loaded tensors stay in memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Residency {
    /// All tensors until the end of the load.
    Resident,
    /// Each tensor, or each chunk of a larger one, until it is complete.
    Streamed { chunk: u64 },
}

/// Plans loads.
pub(super) struct Planner<'f> {
    pub(super) source: &'f Source,
    pub(super) threads: usize,
    pub(super) residency: Residency,
    /// Bytes for tensors, windows and the plan.
    pub(super) budget: u64,
}

impl Planner<'_> {
    pub(super) fn plan(&self, method: Method) -> anyhow::Result<LoadPlan> {
        let mut graph = Graph::new();
        let mut wants = Vec::new();
        for TensorSpec { name, dtype, shape } in self.source.specs() {
            let source = graph.source(&name, dtype, &shape)?;
            match self.residency {
                Residency::Resident => wants.push(LoadRequest::all(name, &graph, source)),
                Residency::Streamed { chunk } => {
                    for rows in rows_per_batch(&shape, dtype, chunk) {
                        // Numbered, because chunks of a tensor need distinct names.
                        wants.push(LoadRequest::new(wants.len().to_string(), source, rows));
                    }
                }
            }
        }
        let options = Options {
            threads: self.threads,
            budget: Some(self.budget),
            targets: match self.residency {
                Residency::Resident => Targets::Retained,
                Residency::Streamed { .. } => Targets::Released,
            },
            ..method.options()
        };
        let (graph, wants) = self.source.over_stored(&graph, wants)?;
        let catalog = Catalog::of(self.source.stored());
        Ok(LoadPlan::new(&graph, &catalog, &wants, &options)?)
    }
}

/// Why one of the files cannot be read by this method, or `None`.
pub(super) fn refusal(folder: &Folder, method: Method) -> anyhow::Result<Option<String>> {
    let sources = Sources::open(folder, method.choice())?;
    let refused = sources.files().iter().find_map(|it| it.fallback_reason.clone());
    Ok(refused)
}

/// The memory of the tensors.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pages {
    /// Pages that earlier samples touched.
    Reused,
    /// Untouched pages.
    New,
}

/// Runs loads.
pub(super) struct Loader<'a> {
    pub(super) planner: Planner<'a>,
    pub(super) memory: &'a RefCell<MmapMut>,
    pub(super) progress: &'a ProgressBar,
    pub(super) interrupt: &'a Interrupt,
}

impl Loader<'_> {
    /// Seconds of one load, without planning and opening.
    pub(super) fn load(&self, method: Method, pages: Pages) -> anyhow::Result<f64> {
        let plan = self.planner.plan(method)?;
        let sources = Sources::open(self.planner.source.stored(), method.choice())?;
        let most = plan.memory().targets;
        let (seconds, stats) = match (self.planner.residency, pages) {
            (Residency::Resident, Pages::Reused) => {
                let mut memory = self.memory.borrow_mut();
                self.execute(
                    &plan,
                    &sources,
                    &ResidentTargets::new(&plan, &mut memory, self.interrupt),
                )
            }
            (Residency::Resident, Pages::New) => {
                let mut memory = map_new(most as usize)?;
                self.execute(
                    &plan,
                    &sources,
                    &ResidentTargets::new(&plan, &mut memory, self.interrupt),
                )
            }
            (Residency::Streamed { .. }, Pages::Reused) => {
                self.execute(&plan, &sources, &Pool::recycled(most, self.interrupt))
            }
            (Residency::Streamed { .. }, Pages::New) => {
                self.execute(&plan, &sources, &Pool::new_each_time(most, self.interrupt))
            }
        }?;
        let wanted: u64 = plan.targets().iter().map(|target| target.bytes).sum();
        ensure!(
            stats.written_bytes == wanted,
            "a load wrote {} of {wanted} bytes: please report this bug",
            stats.written_bytes
        );
        Ok(seconds)
    }

    fn execute<S: Sink<Error = anyhow::Error>>(
        &self,
        plan: &LoadPlan,
        sources: &Sources,
        sink: &S,
    ) -> anyhow::Result<(f64, Stats)> {
        let begin = self.progress.position();
        let start = Instant::now();
        let stats = execute(plan, sources, sink, &|read| {
            self.progress.set_position(begin + read);
        })?;
        Ok((start.elapsed().as_secs_f64(), stats))
    }
}
