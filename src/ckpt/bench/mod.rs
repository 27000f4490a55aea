//! `meshgrad ckpt bench`: how fast this checkpoint is read on this machine, by us and by plain reads
//! beside us, so that a slow load can be told from a slow disk.
//!
//! ```text
//! opening   index and headers; the plan
//! reading   plain pread, the same digested, plain O_DIRECT; our loads in each way
//! writing   plain writes and a sync; our save                     with --write
//! ```
//!
//! All of one kind take turns ([`rounds`]) and land in memory of one kind ([`memory`]); what is
//! unlike is named.

mod fit;
mod load;
mod machine;
mod memory;
mod plain;
mod report;
mod rounds;
mod save;
mod stop;

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::Instant;

use indicatif::ProgressBar;
use memmap2::MmapMut;
use meshgrad::ckpt::Folder;

use super::origin::Origin;
use super::size::{self, ByteSize};
use super::values::progress_bar;
use super::warn;
use crate::answer::Answer;
use fit::{Fit, fit};
use load::{Fate, Loader, Pages, Planner, Way};
use machine::{Machine, Mount};
use plain::Files;
use report::{Report, Writing};
use rounds::{Contestant, Standing, Turn, hold};
use save::Writer;
use stop::Stop;

#[derive(clap::Args)]
#[command(after_help = "Exit codes: 0 done, 1 an error.")]
pub(super) struct BenchArguments {
    /// A Hugging Face folder, a safetensors file, a checkpoint, or a run: its newest checkpoint.
    path: PathBuf,
    /// Memory for all of it: tensors, windows, plans.
    #[arg(long, value_name = "SIZE", default_value = "2GiB")]
    budget: ByteSize,
    /// Samples of each kind; one before them is not counted.
    #[arg(long, value_name = "N", default_value_t = 7,
          value_parser = clap::value_parser!(u32).range(1..))]
    samples: u32,
    /// How we load. May be repeated.
    #[arg(long = "backend", value_name = "WAY", value_delimiter = ',',
          default_values = ["pread", "direct", "mmap"])]
    ways: Vec<Way>,
    /// Drop the files' pages from the page cache before each sample.
    #[arg(long)]
    cold: bool,
    /// Write a checkpoint of the same size there too; nothing of it stays.
    #[arg(long, value_name = "DIR")]
    write: Option<PathBuf>,
    /// Print JSON, with every sample.
    #[arg(long)]
    json: bool,
}

pub(super) fn bench(arguments: &BenchArguments, threads: usize) -> anyhow::Result<Answer> {
    let stop = Stop::listen()?;
    let origin = Origin::open(&arguments.path)?;
    let bench = Bench::new(arguments, &origin, threads, &stop)?;
    let report = bench.run()?;

    if arguments.json {
        return Answer::json(&report, 0);
    }
    warn(&report.warnings);
    Ok(Answer::success(report.text()))
}

/// What all samples share.
struct Bench<'a> {
    arguments: &'a BenchArguments,
    origin: &'a Origin,
    threads: usize,
    fit: Fit,
    files: Files,
    memory: RefCell<MmapMut>,
    progress: ProgressBar,
    stop: &'a Stop,
}

impl<'a> Bench<'a> {
    fn new(
        arguments: &'a BenchArguments,
        origin: &'a Origin,
        threads: usize,
        stop: &'a Stop,
    ) -> anyhow::Result<Bench<'a>> {
        let folder = &origin.folder;
        let fit = fit(folder, &arguments.ways, threads, arguments.budget.0)?;
        let paths = folder.files().iter().map(|file| file.path());
        let writes = if arguments.write.is_some() { 3 } else { 0 };
        let contestants = 3 + arguments.ways.len() as u64 + 1 + writes;
        let turns = contestants * (u64::from(arguments.samples) + 1);
        Ok(Bench {
            arguments,
            origin,
            threads,
            files: Files::open(paths, fit.block, threads)?,
            memory: RefCell::new(memory::map_and_touch(fit.kept)?),
            fit,
            progress: progress_bar(turns.saturating_mul(origin.summary().bytes)),
            stop,
        })
    }

    fn folder(&self) -> &'a Folder {
        &self.origin.folder
    }

    fn run(&self) -> anyhow::Result<Report> {
        // Before anything is measured: it may have no room.
        let (folder, memory) = (self.folder(), &self.memory);
        let parent = self.arguments.write.as_deref();
        let begin = |parent| Writer::begin(parent, folder, memory, &self.progress, self.stop);
        let writer = parent.map(begin).transpose()?;

        let opening = self.open()?;
        let reading = self.read()?;
        let writing = writer.as_ref().map(|it| self.write(it)).transpose()?;
        self.progress.finish_and_clear();
        Ok(self.report(opening, reading, writing))
    }

    fn hold(&self, contestants: &[Contestant<'_>]) -> anyhow::Result<Vec<Standing>> {
        let before = || match self.arguments.cold {
            true => plain::drop_pages(&self.files),
            false => Ok(()),
        };
        hold(contestants, self.arguments.samples, &before, self.stop)
    }

    fn planner(&self) -> Planner<'a> {
        Planner {
            folder: self.folder(),
            threads: self.threads,
            fate: self.fit.fate,
            budget: self.fit.for_plans,
        }
    }

    fn loader(&self) -> Loader<'_> {
        Loader {
            planner: self.planner(),
            memory: &self.memory,
            progress: &self.progress,
            stop: self.stop,
        }
    }

    fn open(&self) -> anyhow::Result<Vec<Standing>> {
        let contestant = |name: String, turn: Turn<'a>| Contestant {
            name,
            bytes: 0,
            beside: None,
            turn: Ok(turn),
        };
        let (planner, origin) = (self.planner(), self.origin);
        let tensors = size::counted(self.folder().tensors().len() as u64, "tensor");
        self.hold(&[
            contestant(
                "index and headers".to_owned(),
                Box::new(move || timed(|| Ok(origin.open_again()?))),
            ),
            contestant(
                format!("plan of {tensors}"),
                Box::new(move || timed(|| planner.plan(Way::Auto))),
            ),
        ])
    }

    fn read(&self) -> anyhow::Result<Vec<Standing>> {
        let mut all = vec![
            self.plain("plain pread", plain::Way::Cached),
            self.plain("plain pread, xxh3 of it", plain::Way::Digested),
            self.plain("plain O_DIRECT", plain::Way::Direct),
        ];
        (all[1].beside, all[2].beside) = (Some(0), Some(0));
        if let Some(refused) = load::refusal(self.folder(), Way::Direct)? {
            all[2].turn = Err(refused);
        }
        for way in &self.arguments.ways {
            all.push(self.load(*way, Pages::Used)?);
        }
        if let Some(way) = self.arguments.ways.first() {
            all.push(self.load(*way, Pages::New)?);
        }
        self.hold(&all)
    }

    fn plain(&self, name: &str, way: plain::Way) -> Contestant<'_> {
        Contestant {
            name: name.to_owned(),
            bytes: self.files.bytes(),
            beside: None,
            turn: Ok(Box::new(move || {
                let mut memory = self.memory.borrow_mut();
                timed(|| {
                    let read = self
                        .files
                        .read(way, &mut memory, &self.progress, self.stop)?;
                    let wanted = self.files.bytes();
                    anyhow::ensure!(read == wanted, "{read} bytes were read of {wanted}");
                    Ok(())
                })
            })),
        }
    }

    /// A load of ours, beside the plain read of its kind.
    fn load(&self, way: Way, pages: Pages) -> anyhow::Result<Contestant<'_>> {
        let new = match pages {
            Pages::Used => "",
            Pages::New => " into new memory",
        };
        let loader = self.loader();
        let turn: Turn<'_> = Box::new(move || loader.load(way, pages));
        let refused = load::refusal(self.folder(), way)?;
        let refused = refused.or_else(|| self.too_much(pages));
        Ok(Contestant {
            name: format!("load by {}{new}", way.name()),
            bytes: self.origin.summary().bytes,
            beside: Some(if way == Way::Direct { 2 } else { 0 }),
            turn: refused.map_or(Ok(turn), Err),
        })
    }

    /// Why there is no new memory beside that which is kept.
    fn too_much(&self, pages: Pages) -> Option<String> {
        let memory = self.fit.memory;
        let need = memory.total() + memory.targets;
        let is_too_much =
            pages == Pages::New && self.fit.fate == Fate::Held && need > self.arguments.budget.0;
        is_too_much.then(|| {
            let need = size::bytes(need);
            format!("it takes as much again; give --budget {need} or more")
        })
    }

    fn write(&self, writer: &Writer<'_>) -> anyhow::Result<Vec<Standing>> {
        // What is in memory, then, is the tensors, as far as there is room.
        self.loader().load(Way::Auto, Pages::Used)?;
        let contestant = |name: &str, way, beside| Contestant {
            name: name.to_owned(),
            bytes: self.origin.summary().bytes,
            beside,
            turn: match writer.refusal(way) {
                Some(refused) => Err(refused),
                None => Ok(Box::new(move || writer.write(way)) as Turn<'_>),
            },
        };
        self.hold(&[
            contestant("plain write, fsync", save::Way::Cached, None),
            contestant("plain O_DIRECT, fsync", save::Way::Direct, Some(0)),
            contestant("save: digests, fsync, seal", save::Way::Save, Some(0)),
        ])
    }

    fn report(
        &self,
        opening: Vec<Standing>,
        reading: Vec<Standing>,
        writing: Option<Vec<Standing>>,
    ) -> Report {
        let (arguments, machine) = (self.arguments, Machine::this());
        let file_bytes = self.files.bytes();
        let mut warnings = self.origin.warnings.clone();
        if !arguments.cold
            && machine
                .memory_bytes
                .is_some_and(|memory| memory < file_bytes)
        {
            warnings.push(format!(
                "the page cache cannot hold {} of files: samples are partly cold; --cold makes \
                 them all so",
                size::bytes(file_bytes)
            ));
        }
        let writing = arguments.write.as_ref().zip(writing);
        Report {
            command: command(),
            version: env!("CARGO_PKG_VERSION"),
            machine,
            source: self.origin.summary(),
            file_bytes,
            file_system: Mount::of(self.folder().path()),
            threads: self.threads,
            samples: arguments.samples,
            cold: arguments.cold,
            budget: arguments.budget.0,
            memory: self.fit.memory,
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

/// How it was called.
fn command() -> String {
    let arguments = std::env::args_os().skip(1);
    let words = arguments.map(|word| word.to_string_lossy().into_owned());
    let all: Vec<String> = ["meshgrad".to_owned()].into_iter().chain(words).collect();
    all.join(" ")
}

/// Seconds of an action; what it gives is dropped later.
fn timed<T>(action: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<f64> {
    let start = Instant::now();
    let given = action()?;
    let seconds = start.elapsed().as_secs_f64();
    drop(given);
    Ok(seconds)
}
