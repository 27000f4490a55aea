//! `meshgrad ckpt bench`: times loads of a checkpoint against plain reads of the same files, to
//! distinguish a slow load from a slow disk.
//!
//! ```text
//! opening   index and headers; the plan
//! reading   plain pread, with digests, plain O_DIRECT; our loads by each backend
//! writing   plain writes with a sync; our save                     with --write
//! ```
//!
//! The methods of a group run in interleaved rounds ([`rounds`]) with the same kind of memory
//! ([`memory`]).

mod baseline;
mod budget;
mod load;
mod memory;
mod mount;
mod report;
mod rounds;
mod save;

use std::cell::RefCell;
use std::path::PathBuf;

use indicatif::ProgressBar;
use memmap2::MmapMut;
use meshgrad::ckpt::Folder;
use meshgrad_harness::{Machine, map_touched, timed};

use super::arguments::LinkArguments;
use super::interrupt::Interrupt;
use super::size::{self, ByteSize};
use super::source::Source;
use super::values::progress_bar;
use super::warn;
use crate::answer::Answer;
use baseline::Files;
use budget::{Allocation, allocate};
use load::{Loader, Method, Pages, Planner, Residency};
use mount::Mount;
use report::{Report, Writing};
use rounds::{Contestant, Measurement, Sample, measure};
use save::Writer;

#[derive(clap::Args)]
#[command(after_help = "Exit codes: 0 success, 1 error.")]
pub(super) struct BenchArguments {
    /// A Hugging Face folder, a file of safetensors or PyTorch, a checkpoint, or a run: its newest
    /// checkpoint.
    path: PathBuf,
    /// Memory for tensors, windows and plans.
    #[arg(long, value_name = "SIZE", default_value = "2GiB")]
    budget: ByteSize,
    /// Samples per contestant, after one that is not counted.
    #[arg(long, value_name = "N", default_value_t = 7,
          value_parser = clap::value_parser!(u32).range(1..))]
    samples: u32,
    /// Backend of our loads. May be repeated.
    #[arg(long = "backend", value_name = "BACKEND", value_delimiter = ',',
          default_values = ["pread", "direct", "mmap"])]
    methods: Vec<Method>,
    /// Drop the files' pages from the page cache before each sample.
    #[arg(long)]
    cold: bool,
    /// Also time saves of a checkpoint of the same size in DIR; the files are removed.
    #[arg(long, value_name = "DIR")]
    write: Option<PathBuf>,
    #[command(flatten)]
    links: LinkArguments,
    /// Print JSON, with every sample.
    #[arg(long)]
    json: bool,
}

pub(super) fn bench(arguments: &BenchArguments, threads: usize) -> anyhow::Result<Answer> {
    let interrupt = Interrupt::listen()?;
    let source = Source::open(&arguments.path, arguments.links.links())?;
    let bench = Bench::new(arguments, &source, threads, &interrupt)?;
    let report = bench.run()?;

    if arguments.json {
        return Answer::json(&report, 0);
    }
    warn(&report.warnings);
    Ok(Answer::success(report.text()))
}

/// The state that all contestants share.
struct Bench<'a> {
    arguments: &'a BenchArguments,
    source: &'a Source,
    threads: usize,
    allocation: Allocation,
    files: Files,
    memory: RefCell<MmapMut>,
    progress: ProgressBar,
    interrupt: &'a Interrupt,
}

impl<'a> Bench<'a> {
    fn new(
        arguments: &'a BenchArguments,
        source: &'a Source,
        threads: usize,
        interrupt: &'a Interrupt,
    ) -> anyhow::Result<Bench<'a>> {
        let folder = source.stored();
        let allocation = allocate(source, &arguments.methods, threads, arguments.budget.0)?;
        let paths = folder.files().iter().map(|file| file.path());
        let writes = if arguments.write.is_some() { 3 } else { 0 };
        let contestants = 3 + arguments.methods.len() as u64 + 1 + writes;
        let samples = contestants * (u64::from(arguments.samples) + 1);
        Ok(Bench {
            arguments,
            source,
            threads,
            files: Files::open(paths, allocation.block, threads)?,
            memory: RefCell::new(map_touched(allocation.kept)?),
            allocation,
            progress: progress_bar(samples.saturating_mul(source.summary().bytes)),
            interrupt,
        })
    }

    fn folder(&self) -> &'a Folder {
        self.source.stored()
    }

    fn run(&self) -> anyhow::Result<Report> {
        // Created first, because it fails if the disk has too little space.
        let memory = &self.memory;
        let parent = self.arguments.write.as_deref();
        let tensors = || self.source.specs();
        let new = |parent| Writer::new(parent, tensors(), memory, &self.progress, self.interrupt);
        let writer = parent.map(new).transpose()?;

        let opening = self.open()?;
        let reading = self.read()?;
        let writing = writer.as_ref().map(|it| self.write(it)).transpose()?;
        self.progress.finish_and_clear();
        Ok(self.report(opening, reading, writing))
    }

    fn measure(&self, contestants: &[Contestant<'_>]) -> anyhow::Result<Vec<Measurement>> {
        let before = || match self.arguments.cold {
            true => baseline::drop_pages(&self.files),
            false => Ok(()),
        };
        measure(contestants, self.arguments.samples, &before, self.interrupt)
    }

    fn planner(&self) -> Planner<'a> {
        Planner {
            source: self.source,
            threads: self.threads,
            residency: self.allocation.residency,
            budget: self.allocation.for_plans,
        }
    }

    fn loader(&self) -> Loader<'_> {
        Loader {
            planner: self.planner(),
            memory: &self.memory,
            progress: &self.progress,
            interrupt: self.interrupt,
        }
    }

    fn open(&self) -> anyhow::Result<Vec<Measurement>> {
        let contestant = |name: String, sample: Sample<'a>| Contestant {
            name,
            bytes: 0,
            baseline: None,
            sample: Ok(sample),
        };
        let (planner, source) = (self.planner(), self.source);
        let tensors = size::counted(source.summary().tensors, "tensor");
        self.measure(&[
            contestant("index and headers".to_owned(), Box::new(move || timed(|| source.reopen()))),
            contestant(
                format!("plan of {tensors}"),
                Box::new(move || timed(|| planner.plan(Method::Auto))),
            ),
        ])
    }

    fn read(&self) -> anyhow::Result<Vec<Measurement>> {
        let mut all = vec![
            self.plain("plain pread", baseline::Method::Cached),
            self.plain("plain pread + xxh3", baseline::Method::Digested),
            self.plain("plain O_DIRECT", baseline::Method::Direct),
        ];
        (all[1].baseline, all[2].baseline) = (Some(0), Some(0));
        if let Some(refused) = load::refusal(self.folder(), Method::Direct)? {
            all[2].sample = Err(refused);
        }
        for method in &self.arguments.methods {
            all.push(self.load(*method, Pages::Reused)?);
        }
        if let Some(method) = self.arguments.methods.first() {
            all.push(self.load(*method, Pages::New)?);
        }
        self.measure(&all)
    }

    fn plain(&self, name: &str, method: baseline::Method) -> Contestant<'_> {
        Contestant {
            name: name.to_owned(),
            bytes: self.files.bytes(),
            baseline: None,
            sample: Ok(Box::new(move || {
                let mut memory = self.memory.borrow_mut();
                timed(|| {
                    let read =
                        self.files.read(method, &mut memory, &self.progress, self.interrupt)?;
                    let wanted = self.files.bytes();
                    anyhow::ensure!(read == wanted, "read {read} of {wanted} bytes");
                    Ok(())
                })
            })),
        }
    }

    /// A load by meshgrad, compared with the plain read of the same kind.
    fn load(&self, method: Method, pages: Pages) -> anyhow::Result<Contestant<'_>> {
        let new = match pages {
            Pages::Reused => "",
            Pages::New => " into new memory",
        };
        let loader = self.loader();
        let sample: Sample<'_> = Box::new(move || loader.load(method, pages));
        let refused = load::refusal(self.folder(), method)?;
        let refused = refused.or_else(|| self.over_budget(pages));
        Ok(Contestant {
            name: format!("load by {}{new}", method.name()),
            bytes: self.source.summary().bytes,
            baseline: Some(if method == Method::Direct { 2 } else { 0 }),
            sample: refused.map_or(Ok(sample), Err),
        })
    }

    /// Why new memory in addition to the kept memory exceeds the budget, or `None`.
    fn over_budget(&self, pages: Pages) -> Option<String> {
        let memory = self.allocation.memory;
        let need = memory.total() + memory.targets;
        let is_too_much = pages == Pages::New
            && self.allocation.residency == Residency::Resident
            && need > self.arguments.budget.0;
        is_too_much.then(|| {
            let need = size::bytes(need);
            format!("needs the memory twice; raise --budget to {need}")
        })
    }

    fn write(&self, writer: &Writer<'_>) -> anyhow::Result<Vec<Measurement>> {
        // Fills the memory with as many of the tensors as fit.
        self.loader().load(Method::Auto, Pages::Reused)?;
        let contestant = |name: &str, method, baseline| Contestant {
            name: name.to_owned(),
            bytes: self.source.summary().bytes,
            baseline,
            sample: match writer.refusal(method) {
                Some(refused) => Err(refused),
                None => Ok(Box::new(move || writer.write(method)) as Sample<'_>),
            },
        };
        self.measure(&[
            contestant("plain write, fsync", save::Method::Cached, None),
            contestant("plain O_DIRECT, fsync", save::Method::Direct, Some(0)),
            contestant("save: digests, fsync", save::Method::Save, Some(0)),
        ])
    }

    fn report(
        &self,
        opening: Vec<Measurement>,
        reading: Vec<Measurement>,
        writing: Option<Vec<Measurement>>,
    ) -> Report {
        let (arguments, machine) = (self.arguments, Machine::this());
        let file_bytes = self.files.bytes();
        let mut warnings = self.source.warnings.clone();
        if !arguments.cold && machine.memory_bytes.is_some_and(|memory| memory < file_bytes) {
            warnings.push(format!(
                "the files ({}) exceed the page cache, so samples are partly cold; --cold makes all \
                 of them cold",
                size::bytes(file_bytes)
            ));
        }
        let writing = arguments.write.as_ref().zip(writing);
        Report {
            command: command(),
            version: env!("CARGO_PKG_VERSION"),
            machine,
            source: self.source.summary(),
            file_bytes,
            file_system: Mount::of(self.folder().path()),
            threads: self.threads,
            samples: arguments.samples,
            cold: arguments.cold,
            budget: arguments.budget.0,
            memory: self.allocation.memory,
            warnings,
            opening,
            reading,
            writing: writing.map(|(path, contestants)| Writing {
                path: path.to_string_lossy().into_owned(),
                file_system: Mount::of(path),
                contestants,
            }),
        }
    }
}

/// The command line.
fn command() -> String {
    let arguments = std::env::args_os().skip(1);
    let words = arguments.map(|word| word.to_string_lossy().into_owned());
    let all: Vec<String> = ["meshgrad".to_owned()].into_iter().chain(words).collect();
    all.join(" ")
}
