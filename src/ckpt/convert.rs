//! `meshgrad ckpt convert`: applies a map to a model.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::ensure;
use meshgrad::ckpt::mapping::{self, AllowedProblems, Bound, Mapping, Problem};
use serde::Serialize;

use super::arguments::{
    AllowArguments, LinkArguments, mapping_errors, path_text, read_map, read_renames,
};
use super::destination::{ConfigChange, FloatType, Sidecars, folder_writer, stage, summary_rows};
use super::interrupt::Interrupt;
use super::overflow::{InfiniteElements, Overflow};
use super::size::{self, ByteSize};
use super::source::{Source, Summary};
use super::stream::{Limits, Stream};
use super::ties::check_ties;
use super::values::progress_bar;
use super::warn;
use crate::answer::Answer;
use crate::table::Side::{Left, Right};
use crate::table::{Table, display_path, printable};

#[derive(clap::Args)]
#[command(after_help = "Exit codes: 0 success, 1 the map does not fit, or an error.")]
pub(super) struct ConvertArguments {
    /// A Hugging Face folder, a safetensors file, pytorch_model.bin or its folder, a folder of
    /// torch.distributed.checkpoint, a checkpoint, or a run: its newest checkpoint.
    source: PathBuf,
    /// The folder to create; it must not exist.
    destination: PathBuf,
    /// The map: outputs on the left, inputs on the right [default: all names are kept].
    #[arg(long, value_name = "FILE")]
    map: Option<PathBuf>,
    /// A table of renames instead of a map: `OLD NEW` per line, with captures as in a map. All other
    /// names are kept.
    #[arg(long, value_name = "FILE", conflicts_with = "map")]
    renames: Option<PathBuf>,
    /// Apply the inverse of the map: SOURCE has the left side.
    #[arg(long)]
    inverse: bool,
    /// Convert floats of 16 bits and more, rounding to nearest even.
    #[arg(long, value_name = "DTYPE", ignore_case = true)]
    dtype: Option<FloatType>,
    #[command(flatten)]
    allow: AllowArguments,
    #[command(flatten)]
    links: LinkArguments,
    /// Memory for tensor data.
    #[arg(long, value_name = "SIZE", default_value = "2GiB")]
    budget: ByteSize,
    /// Maximum data per file.
    #[arg(long, value_name = "SIZE", default_value = "5GB")]
    max_shard: ByteSize,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The result of a conversion.
#[derive(Serialize)]
pub(super) struct Report {
    source: Summary,
    map: Option<String>,
    inverse: bool,
    destination: Summary,
    round_trip: Option<RoundTrip>,
    dtype: Option<&'static str>,
    /// Tensors that were rounded to `dtype`.
    rounded: u64,
    /// Tensors with finite elements that `dtype` or the map made infinite.
    overflows: Vec<Overflow>,
    /// Of an export: which weights of the run are written, and the low-rank updates merged into
    /// them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) weights: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) merged: Option<u64>,
    /// Changes of config.json because the map changes dtypes.
    config: Vec<String>,
    /// Problems that were allowed.
    allowed: Vec<String>,
    /// What is wrong with the source, and what the destination lacks.
    warnings: Vec<String>,
    copied: Vec<String>,
    read_bytes: u64,
    seconds: f64,
}

/// Whether the map is invertible.
#[derive(Serialize)]
struct RoundTrip {
    proven: bool,
    /// Why the map has no proven inverse.
    why: Option<String>,
    /// The number of pairs of tensors that must be equal for the inverse to exist.
    ties: u64,
    /// Tensors that the inverse produces although the source lacks them.
    added: Vec<String>,
}

/// A source, a map and how to apply it.
pub(super) struct Conversion<'a> {
    pub(super) source: &'a Source,
    pub(super) mapping: &'a Mapping,
    pub(super) allowed_problems: AllowedProblems,
    pub(super) dtype: Option<FloatType>,
    /// A file beside the model that does not describe the destination.
    pub(super) left_out: Option<&'a str>,
    pub(super) destination: &'a PathBuf,
    pub(super) max_shard: ByteSize,
    pub(super) limits: Limits,
}

pub(super) fn convert(arguments: &ConvertArguments, threads: usize) -> anyhow::Result<Answer> {
    let file = arguments.map.as_ref().or(arguments.renames.as_ref());
    let mapping = match &arguments.renames {
        Some(table) => read_renames(table)?,
        None => read_map(arguments.map.as_deref())?,
    };
    let mapping = match arguments.inverse {
        true => mapping.reversed(),
        false => mapping,
    };
    let source = Source::open_intact(&arguments.source, arguments.links.links())?;
    let conversion = Conversion {
        source: &source,
        mapping: &mapping,
        allowed_problems: arguments.allow.problems()?,
        dtype: arguments.dtype,
        left_out: None,
        destination: &arguments.destination,
        max_shard: arguments.max_shard,
        limits: Limits { interrupt: Interrupt::listen()?, budget: arguments.budget, threads },
    };
    let bound = match mapping.bind(&source.specs(), None, &conversion.allowed_problems) {
        Ok(bound) => bound,
        Err(report) => {
            let map = file.cloned();
            return mapping_errors(source.path(), &map, &report, arguments.json);
        }
    };
    let mut report = conversion.run(&bound)?;
    report.map = file.map(|file| path_text(file));
    report.inverse = arguments.inverse;
    report.round_trip = Some(RoundTrip::of(&bound));

    if arguments.json {
        return Answer::json(&report, 0);
    }
    Ok(report.answer())
}

impl Conversion<'_> {
    /// Computes the outputs of `bound`, writes them and commits the folder.
    pub(super) fn run(&self, bound: &Bound) -> anyhow::Result<Report> {
        let start = Instant::now();
        let retyped = match self.dtype {
            Some(dtype) => {
                let allowed_problems = self.allowed_problems.clone().and("narrowed")?;
                let wanted = dtype.of(bound);
                Some((self.mapping).bind(&self.source.specs(), Some(&wanted), &allowed_problems)?)
            }
            None => None,
        };
        let allowed = bound.report().allowed.iter().map(ToString::to_string);
        let allowed = allowed.collect();
        let exact = bound;
        let bound = retyped.as_ref().unwrap_or(exact);
        check_ties(bound, self.source, &self.limits)?;

        let made: Vec<_> = bound.outputs().collect();
        ensure!(
            !made.is_empty(),
            "the map has no outputs: no rule matches tensors of {}; check its direction \
             (--inverse)",
            display_path(self.source.path())
        );
        let (metadata, conflicts) = self.source.metadata();
        let writer = folder_writer(&made, &metadata, self.max_shard.0)?;
        let bytes = made
            .iter()
            .map(|it| it.shape.iter().product::<u64>() * it.dtype.bits() as u64 / 8)
            .sum();
        let mut staging = stage(self.destination)?;
        let sidecars = Sidecars::of(self.source).without(self.left_out);
        let change = ConfigChange::of(&self.source.specs(), &made, self.dtype);
        let copied = sidecars.copy(&mut staging, &change)?;
        let progress = progress_bar(bytes);
        let wants = bound.requests();
        let mut stream = Stream::new(bound.graph(), self.source, wants, &self.limits, &progress)?;
        let mut infinite = InfiniteElements::new(exact, &made)?;
        writer.write(&mut staging, "", |tensor, data| {
            stream.each_part(tensor, |bytes| {
                infinite.add(tensor, bytes);
                Ok(data.append(bytes)?)
            })
        })?;
        let read_bytes = stream.read_bytes();
        let overflows = infinite.overflows(self.source, &self.limits)?;
        let checkpoint = staging.commit()?;
        progress.finish_and_clear();

        let warnings = self.source.warnings.iter().cloned();
        let warnings = warnings.chain(conflicts).chain(copied.warnings()).collect();
        let is_data = |path: &str| path.ends_with(".safetensors");
        Ok(Report {
            source: self.source.summary(),
            map: None,
            inverse: false,
            destination: Summary {
                path: self.destination.clone(),
                tensors: made.len() as u64,
                files: checkpoint.files().filter(|(path, _)| is_data(path)).count() as u64,
                bytes,
            },
            round_trip: None,
            dtype: self.dtype.map(|dtype| dtype.dtype().name()),
            rounded: retyped.as_ref().map_or(0, rounded),
            overflows,
            weights: None,
            merged: None,
            config: change.described(&copied.names),
            allowed,
            warnings,
            copied: copied.names,
            read_bytes,
            seconds: start.elapsed().as_secs_f64(),
        })
    }
}

/// The number of tensors that lose precision.
fn rounded(bound: &Bound) -> u64 {
    let allowed = bound.report().allowed.iter();
    let narrowed = allowed.filter(|it| matches!(it, Problem::Narrowed { .. }));
    narrowed.count() as u64
}

impl RoundTrip {
    fn of(bound: &Bound) -> RoundTrip {
        let (why, found) = match bound.round_trip() {
            Ok(found) => (None, found),
            Err(error) => (Some(error.to_string()), mapping::RoundTrip::default()),
        };
        RoundTrip { proven: why.is_none(), why, ties: found.ties.len() as u64, added: found.added }
    }

    fn text(&self) -> String {
        match (&self.why, self.ties) {
            (Some(why), _) => {
                let mut lines = why.lines().map(str::trim);
                let first = [lines.next(), lines.next()].into_iter().flatten();
                let first = first.collect::<Vec<_>>().join(", as ");
                printable(&format!("none: {first}"))
            }
            (None, 0) => format!("exact: a round trip changes no element{}", self.additions()),
            (None, ties) => {
                let ties = size::counted(ties, "pair");
                format!("exact if {ties} of tensors are equal{}", self.additions())
            }
        }
    }

    /// The tensors that a round trip adds, as the end of a sentence.
    fn additions(&self) -> String {
        match &self.added[..] {
            [] => String::new(),
            [one] => format!(" and adds {}", printable(one)),
            [first, ..] => {
                let tensors = size::counted(self.added.len() as u64, "tensor");
                format!(" and adds {tensors}, such as {}", printable(first))
            }
        }
    }
}

impl Report {
    /// The report as text; prints warnings.
    pub(super) fn answer(&self) -> Answer {
        warn(&self.warnings);
        Answer::success(self.text())
    }

    fn text(&self) -> String {
        let mut table = Table::new([Left, Left, Right, Right, Right]);
        table.row(self.source.row("source"));
        table.row(self.destination.row("destination"));
        let mut notes = Table::new([Left, Left]);
        let mut note = |title: &str, text: String| notes.row([title.to_owned(), text]);
        if let Some(map) = &self.map {
            let direction = if self.inverse { ", inverted" } else { "" };
            note("map", format!("{}{direction}", printable(map)));
        }
        if let Some(round_trip) = &self.round_trip {
            let rounded = round_trip.proven && self.rounded > 0;
            let end = if rounded { "; rounding is not undone" } else { "" };
            note("inverse", round_trip.text() + end);
        }
        if let Some(weights) = &self.weights {
            note("weights", weights.clone());
        }
        if let Some(merged) = self.merged {
            note("merged", size::counted(merged, "low-rank update"));
        }
        if let Some(dtype) = self.dtype {
            let rounded = size::counted(self.rounded, "tensor");
            note("dtype", format!("{dtype}, {rounded} rounded"));
        }
        if let [first, ..] = &self.overflows[..] {
            let elements = self.overflows.iter().map(|it| it.elements).sum();
            let tensors = size::counted(self.overflows.len() as u64, "tensor");
            note(
                "overflow",
                format!(
                    "{} of {tensors}, such as {}, became infinite: a dtype of a larger range can hold them",
                    size::counted(elements, "element"),
                    printable(&first.tensor)
                ),
            );
        }
        if !self.config.is_empty() {
            note("config", self.config.join(", "));
        }
        if !self.allowed.is_empty() {
            note("allowed", size::counted(self.allowed.len() as u64, "problem"));
        }
        let bytes = (self.read_bytes, self.destination.bytes);
        for row in summary_rows(&self.copied, bytes, self.seconds) {
            notes.row(row);
        }
        format!("{table}\n{notes}")
    }
}
