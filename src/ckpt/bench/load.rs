//! Our own loads: every tensor as it is, by a plan, in one of the ways there are.

use std::cell::RefCell;
use std::time::Instant;

use anyhow::ensure;
use clap::ValueEnum;
use indicatif::ProgressBar;
use memmap2::MmapMut;
use meshgrad::ckpt::Folder;
use meshgrad::ckpt::exec::{Sink, Stats, execute, rows_at_a_time};
use meshgrad::ckpt::graph::Graph;
use meshgrad::ckpt::mapping::TensorSpec;
use meshgrad::ckpt::plan::{Catalog, LoadPlan, Options, Targets, Want};
use meshgrad::ckpt::source::{Backend, Choice, Sources};

use super::memory::{Held, Pool, map};
use super::stop::Stop;

/// The backends by the names of the command line.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Way {
    /// Positioned reads through the page cache.
    Pread,
    /// Reads past the page cache.
    Direct,
    /// Copies out of a memory map.
    Mmap,
    /// What loads take when they are not told.
    Auto,
}

impl Way {
    pub(super) fn choice(self) -> Choice {
        match self {
            Way::Pread => Choice::Only(Backend::Pread),
            Way::Direct => Choice::Only(Backend::Direct),
            Way::Mmap => Choice::Only(Backend::Mapped),
            Way::Auto => Choice::Auto,
        }
    }

    fn options(self) -> Options {
        match self {
            Way::Direct => Options::direct(),
            _ => Options::default(),
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Way::Pread => "pread",
            Way::Direct => "O_DIRECT",
            Way::Mmap => "mmap",
            Way::Auto => "auto",
        }
    }
}

/// What becomes of tensors that are loaded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// All are in memory at the end.
    Held,
    /// Each leaves when it is complete; larger ones are loaded so many bytes at a time.
    Leaving { piece: u64 },
}

/// What plans are made of.
pub(super) struct Planner<'f> {
    pub(super) folder: &'f Folder,
    pub(super) threads: usize,
    pub(super) fate: Fate,
    /// For tensors, windows and the plan itself.
    pub(super) budget: u64,
}

impl Planner<'_> {
    pub(super) fn plan(&self, way: Way) -> anyhow::Result<LoadPlan> {
        let mut graph = Graph::new();
        let mut wants = Vec::new();
        for tensor in self.folder.tensors() {
            let TensorSpec { name, dtype, shape } = TensorSpec::from(tensor);
            let source = graph.source(&name, dtype, &shape)?;
            match self.fate {
                Fate::Held => wants.push(Want::all(name, &graph, source)),
                Fate::Leaving { piece } => {
                    for rows in rows_at_a_time(&shape, dtype, piece) {
                        // A number: no tensor's name and a part's can be the same.
                        wants.push(Want::new(wants.len().to_string(), source, rows));
                    }
                }
            }
        }
        let options = Options {
            threads: self.threads,
            budget: Some(self.budget),
            targets: match self.fate {
                Fate::Held => Targets::Stay,
                Fate::Leaving { .. } => Targets::Leave,
            },
            ..way.options()
        };
        let catalog = Catalog::of(self.folder);
        Ok(LoadPlan::new(&graph, &catalog, &wants, &options)?)
    }
}

/// Why files are not read in this way, if one is not.
pub(super) fn refusal(folder: &Folder, way: Way) -> anyhow::Result<Option<String>> {
    let sources = Sources::of(folder, way.choice())?;
    let refused = sources.files().iter().find_map(|it| it.refused.clone());
    Ok(refused)
}

/// Of which memory the tensors are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pages {
    /// Those that were used before.
    Used,
    /// Those that nobody has touched.
    New,
}

/// Memory and a way to the user, for one load after the other.
pub(super) struct Loader<'a> {
    pub(super) planner: Planner<'a>,
    pub(super) memory: &'a RefCell<MmapMut>,
    pub(super) progress: &'a ProgressBar,
    pub(super) stop: &'a Stop,
}

impl Loader<'_> {
    /// Seconds of one load. Planning and opening are not in them.
    pub(super) fn load(&self, way: Way, pages: Pages) -> anyhow::Result<f64> {
        let plan = self.planner.plan(way)?;
        let sources = Sources::of(self.planner.folder, way.choice())?;
        let most = plan.memory().targets;
        let (seconds, stats) = match (self.planner.fate, pages) {
            (Fate::Held, Pages::Used) => {
                let mut memory = self.memory.borrow_mut();
                self.execute(&plan, &sources, &Held::new(&plan, &mut memory, self.stop))
            }
            (Fate::Held, Pages::New) => {
                let mut memory = map(most as usize)?;
                self.execute(&plan, &sources, &Held::new(&plan, &mut memory, self.stop))
            }
            (Fate::Leaving { .. }, Pages::Used) => {
                self.execute(&plan, &sources, &Pool::recycled(most, self.stop))
            }
            (Fate::Leaving { .. }, Pages::New) => {
                self.execute(&plan, &sources, &Pool::new_each_time(most, self.stop))
            }
        }?;
        let wanted: u64 = plan.targets().iter().map(|target| target.bytes).sum();
        ensure!(
            stats.written_bytes == wanted,
            "a load gave {} bytes of {wanted}: please report this",
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
