//! `meshgrad pipeline`: generates, proves, simulates and draws a pipeline schedule.

mod costs_file;
mod view;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::{Context, ensure};
use meshgrad::pipeline::{Auto, Costs, Lowering, Named, Schedule, Shape};

use crate::answer::{self, Answer};
use crate::table::display_path;
use view::Shown;

/// Durations default to F = I = W = 1 and B = 2, per stage and microbatch. Communication is free.
#[derive(clap::Args)]
pub(crate) struct PipelineArguments {
    /// gpipe, looped_bfs, 1f1b, interleaved, zb1p, interleaved_zb, zbv, dual_pipe_v, inference; auto
    /// (the fastest one found); or a .csv file of computations, one row per rank, as torch writes it.
    #[arg(long, value_name = "NAME|FILE")]
    schedule: Choice,
    /// Number of ranks.
    #[arg(long, value_name = "N")]
    ranks: Option<usize>,
    /// Number of stages of all ranks together.
    #[arg(long, value_name = "N")]
    stages: Option<usize>,
    /// Number of microbatches per step.
    #[arg(long, value_name = "N")]
    microbatches: Option<usize>,
    /// Durations and sizes, as TOML or JSON: forward, backward, input, weight, send, activation,
    /// pending (each one number, or a list with one per stage), overlap (0 to 1).
    #[arg(long, value_name = "FILE")]
    durations: Option<PathBuf>,
    /// Most memory that a rank may use, in the unit of `activation` [default unit: the activations
    /// of one stage and microbatch].
    #[arg(long, value_name = "N", value_parser = memory_cap)]
    memory_cap: Option<f64>,
    /// Draw the run.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write the computations of every rank, as torch reads them.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Print JSON, with the actions of every rank.
    #[arg(long)]
    json: bool,
}

/// The value of `--schedule`.
#[derive(Clone)]
enum Choice {
    Named(Named),
    Auto,
    File(PathBuf),
}

impl FromStr for Choice {
    type Err = meshgrad::pipeline::Error;

    fn from_str(text: &str) -> Result<Choice, Self::Err> {
        match text {
            "auto" => Ok(Choice::Auto),
            _ if Path::new(text).extension().is_some_and(|it| it == "csv") => {
                Ok(Choice::File(text.into()))
            }
            name => name.parse().map(Choice::Named),
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Named(named) => named.fmt(f),
            Choice::Auto => f.write_str("auto"),
            Choice::File(path) => f.write_str(&display_path(path)),
        }
    }
}

fn memory_cap(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok();
    let cap = number.filter(|it| it.is_finite() && *it >= 0.0);
    cap.ok_or_else(|| "expected a number of at least 0".to_string())
}

pub(crate) fn pipeline(arguments: &PipelineArguments) -> ExitCode {
    let missing = arguments.missing_flags();
    if !missing.is_empty() {
        let flags = missing.join(", ");
        eprintln!("error: missing {flags}; only a .csv schedule works without them");
        return ExitCode::from(2);
    }
    answer::print(answer(arguments), 1)
}

impl PipelineArguments {
    fn missing_flags(&self) -> Vec<&'static str> {
        if matches!(self.schedule, Choice::File(_)) {
            return Vec::new();
        }
        let flags = [
            ("--ranks", self.ranks),
            ("--stages", self.stages),
            ("--microbatches", self.microbatches),
        ];
        let missing = flags.into_iter().filter(|(_, value)| value.is_none());
        missing.map(|(flag, _)| flag).collect()
    }

    /// The shape of the flags. Those that are missing are taken from the file.
    fn shape(&self, of_file: Option<&Schedule>) -> anyhow::Result<Shape> {
        let number = |flag: &str, given: Option<usize>, in_file: Option<usize>| {
            let (given, in_file) = (given.or(in_file), in_file.or(given));
            ensure!(
                given == in_file,
                "{flag} is {}, but the file has {}; leave the flag out",
                given.unwrap_or_default(),
                in_file.unwrap_or_default()
            );
            Ok(given.unwrap_or_default())
        };
        let placement = of_file.map(Schedule::placement);
        Ok(Shape::new(
            number("--ranks", self.ranks, placement.map(|it| it.ranks()))?,
            number("--stages", self.stages, placement.map(|it| it.stages()))?,
            number("--microbatches", self.microbatches, of_file.map(Schedule::microbatches))?,
        )?)
    }

    fn costs(&self, stages: usize) -> anyhow::Result<Costs> {
        match &self.durations {
            Some(path) => costs_file::read(path, stages),
            None => Ok(Costs::uniform(stages)),
        }
    }
}

fn answer(arguments: &PipelineArguments) -> anyhow::Result<Answer> {
    let shown = shown(arguments)?;
    if let Some(path) = &arguments.csv {
        write(path, &shown.schedule.to_csv())?;
    }
    if let Some(path) = &arguments.svg {
        write(path, &shown.program.svg(&shown.simulation, &shown.title()))?;
    }
    match arguments.json {
        true => Answer::json(&shown.json(), 0),
        false => Ok(Answer::success(shown.text())),
    }
}

fn shown(arguments: &PipelineArguments) -> anyhow::Result<Shown> {
    let mut found = None;
    let schedule = match &arguments.schedule {
        Choice::Named(named) => named.schedule(arguments.shape(None)?)?,
        Choice::File(path) => {
            let text = std::fs::read_to_string(path);
            let text = text.with_context(|| format!("cannot read {}", display_path(path)))?;
            let schedule = Schedule::from_csv(&text).with_context(|| display_path(path))?;
            arguments.shape(Some(&schedule))?;
            schedule
        }
        Choice::Auto => {
            let shape = arguments.shape(None)?;
            let costs = arguments.costs(shape.stages())?;
            let auto = Auto::search(shape, &costs, arguments.memory_cap)?;
            found = Some(auto.named.map_or("synthesized", Named::name));
            auto.schedule
        }
    };
    let name = arguments.schedule.to_string();
    let costs = arguments.costs(schedule.placement().stages())?;
    let program = schedule.lower(&Lowering::default())?;
    let simulation = program.simulate(&costs)?;
    if let (Some(cap), None) = (arguments.memory_cap, found) {
        let peak = simulation.peak_memory();
        ensure!(
            peak <= cap,
            "{name} needs a memory of {peak}, but --memory-cap is {cap}; use --schedule auto"
        );
    }
    Ok(Shown { name, found, schedule, program, simulation })
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", display_path(path)))
}
