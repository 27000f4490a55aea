//! `meshgrad ckpt convert`: a folder made of another by a map.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::ensure;
use meshgrad::ckpt::exec::check_ties;
use meshgrad::ckpt::mapping::{AllowedProblems, Bound, Mapping, Problem};
use serde::Serialize;

use super::arguments::{Waived, mapping_errors, path_text, read_map};
use super::catalog::display_path;
use super::destination::{FloatType, copy_sidecar_files, folder_writer, stage, summary_rows};
use super::size::{self, ByteSize};
use super::source::{Source, Summary};
use super::stream::{Limits, Stream};
use super::values::progress_bar;
use super::warn;
use crate::answer::Answer;
use crate::table::Side::{Left, Right};
use crate::table::{Table, printable};

#[derive(clap::Args)]
#[command(after_help = "Exit codes: 0 done, 1 the map does not fit, or an error.")]
pub(super) struct ConvertArguments {
    /// A Hugging Face folder, a safetensors file, a checkpoint, or a run: its newest checkpoint.
    source: PathBuf,
    /// The folder that is made; it must not exist.
    destination: PathBuf,
    /// What is made, on the left, of what there is, on the right.
    #[arg(long, value_name = "FILE")]
    map: PathBuf,
    /// The other way: what there is is on the left side of the map.
    #[arg(long)]
    inverse: bool,
    /// Convert floats of 16 bits and more, rounding to nearest even.
    #[arg(long, value_name = "DTYPE", ignore_case = true)]
    dtype: Option<FloatType>,
    #[command(flatten)]
    waived: Waived,
    /// Memory for the tensors' data.
    #[arg(long, value_name = "SIZE", default_value = "2GiB")]
    budget: ByteSize,
    /// The most data in one file.
    #[arg(long, value_name = "SIZE", default_value = "5GB")]
    max_shard: ByteSize,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What was done.
#[derive(Serialize)]
pub(super) struct Report {
    source: Summary,
    map: Option<String>,
    inverse: bool,
    destination: Summary,
    #[serde(rename = "way_back")]
    inverse_report: Option<Inverse>,
    dtype: Option<&'static str>,
    /// Tensors that were rounded to it.
    rounded: u64,
    /// Problems that were waived.
    waived: Vec<String>,
    copied: Vec<String>,
    read_bytes: u64,
    seconds: f64,
}

/// Whether the map can be undone.
#[derive(Serialize)]
struct Inverse {
    proven: bool,
    /// Why there is none.
    why: Option<String>,
    /// Pairs of tensors that must be equal for it.
    ties: u64,
}

/// What is made of an source, and how.
pub(super) struct Conversion<'a> {
    pub(super) source: &'a Source,
    pub(super) mapping: &'a Mapping,
    pub(super) waivers: AllowedProblems,
    pub(super) dtype: Option<FloatType>,
    pub(super) destination: &'a PathBuf,
    pub(super) max_shard: ByteSize,
    pub(super) limits: Limits,
}

pub(super) fn convert(arguments: &ConvertArguments, threads: usize) -> anyhow::Result<Answer> {
    let mapping = read_map(Some(&arguments.map))?;
    let mapping = match arguments.inverse {
        true => mapping.reversed(),
        false => mapping,
    };
    let source = Source::open(&arguments.source)?;
    let conversion = Conversion {
        source: &source,
        mapping: &mapping,
        waivers: arguments.waived.waivers()?,
        dtype: arguments.dtype,
        destination: &arguments.destination,
        max_shard: arguments.max_shard,
        limits: Limits {
            budget: arguments.budget,
            threads,
        },
    };
    let bound = match mapping.bind(&source.specs(), None, &conversion.waivers) {
        Ok(bound) => bound,
        Err(report) => {
            let map = Some(arguments.map.clone());
            return mapping_errors(source.folder.path(), &map, &report, arguments.json);
        }
    };
    let mut report = conversion.run(&bound)?;
    report.map = Some(path_text(&arguments.map));
    report.inverse = arguments.inverse;
    report.inverse_report = Some(Inverse::of(&bound));

    if arguments.json {
        return Answer::json(&report, 0);
    }
    warn(&source.warnings);
    Ok(Answer::success(report.text()))
}

impl Conversion<'_> {
    /// Makes what `bound` says and writes the folder.
    pub(super) fn run(&self, bound: &Bound) -> anyhow::Result<Report> {
        let start = Instant::now();
        let retyped = match self.dtype {
            Some(dtype) => {
                let waivers = self.waivers.clone().and("narrowed")?;
                let wanted = dtype.of(bound);
                Some((self.mapping).bind(&self.source.specs(), Some(&wanted), &waivers)?)
            }
            None => None,
        };
        let waived = bound.report().allowed.iter().map(ToString::to_string);
        let waived = waived.collect();
        let bound = retyped.as_ref().unwrap_or(bound);
        check_ties(bound, &self.source.folder)?;

        let made: Vec<_> = bound.outputs().collect();
        ensure!(
            !made.is_empty(),
            "nothing would be made: no rule of the map finds its tensors in {}; is the other \
             direction meant?",
            display_path(self.source.folder.path())
        );
        let writer = folder_writer(&made, self.max_shard.0)?;
        let bytes = made
            .iter()
            .map(|it| it.shape.iter().product::<u64>() * it.dtype.bits() as u64 / 8)
            .sum();
        let mut staging = stage(self.destination)?;
        let folder = &self.source.folder;
        let copied = copy_sidecar_files(self.source.folder_path(), &mut staging, self.dtype)?;
        let progress = progress_bar(bytes);
        let wants = bound.requests();
        let mut stream = Stream::new(bound.graph(), folder, wants, self.limits, &progress)?;
        writer.write(&mut staging, "", |tensor, data| {
            stream.write_tensor(tensor, data)
        })?;
        let read_bytes = stream.read_bytes();
        let checkpoint = staging.commit()?;
        progress.finish_and_clear();

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
            inverse_report: None,
            dtype: self.dtype.map(|dtype| dtype.dtype().name()),
            rounded: retyped.as_ref().map_or(0, rounded),
            waived,
            copied,
            read_bytes,
            seconds: start.elapsed().as_secs_f64(),
        })
    }
}

/// How many tensors lose digits.
fn rounded(bound: &Bound) -> u64 {
    let waived = bound.report().allowed.iter();
    let narrowed = waived.filter(|it| matches!(it, Problem::Narrowed { .. }));
    narrowed.count() as u64
}

impl Inverse {
    fn of(bound: &Bound) -> Inverse {
        match bound.inverse() {
            Ok(back) => Inverse {
                proven: true,
                why: None,
                ties: back.ties().len() as u64,
            },
            Err(error) => Inverse {
                proven: false,
                why: Some(error.to_string()),
                ties: 0,
            },
        }
    }

    fn text(&self) -> String {
        match (&self.why, self.ties) {
            (Some(why), _) => {
                let mut lines = why.lines().map(str::trim);
                let first = [lines.next(), lines.next()].into_iter().flatten();
                let first = first.collect::<Vec<_>>().join(", as ");
                printable(&format!("none: {first}"))
            }
            (None, 0) => "proven: there and back changes no element".to_owned(),
            (None, ties) => {
                let ties = size::counted(ties, "pair");
                format!("proven: there and back changes no element, where {ties} stay equal")
            }
        }
    }
}

impl Report {
    pub(super) fn text(&self) -> String {
        let mut table = Table::new([Left, Left, Right, Right, Right]);
        table.row(self.source.row("source"));
        table.row(self.destination.row("destination"));
        let mut notes = Table::new([Left, Left]);
        let mut note = |title: &str, text: String| notes.row([title.to_owned(), text]);
        if let Some(map) = &self.map {
            let direction = if self.inverse { ", backwards" } else { "" };
            note("map", format!("{}{direction}", printable(map)));
        }
        if let Some(inverse_report) = &self.inverse_report {
            note("way back", inverse_report.text());
        }
        if let Some(dtype) = self.dtype {
            let rounded = size::counted(self.rounded, "tensor");
            note("dtype", format!("{dtype}, {rounded} rounded"));
        }
        if !self.waived.is_empty() {
            note("waived", size::counted(self.waived.len() as u64, "problem"));
        }
        let bytes = (self.read_bytes, self.destination.bytes);
        for row in summary_rows(&self.copied, bytes, self.seconds) {
            notes.row(row);
        }
        format!("{table}\n{notes}")
    }
}
