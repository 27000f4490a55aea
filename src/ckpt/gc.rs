//! `meshgrad ckpt gc`: removing what a run does not need any more.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::ensure;
use meshgrad::ckpt::{Committed, keep_last, survey, sweep};
use serde::Serialize;

use super::Answer;
use super::catalog::shown;
use super::leftovers::{State, bytes_below, leftovers};
use super::size::{self, counted};
use super::table::Side::{Left, Right};
use super::table::{Table, printable};

#[derive(clap::Args)]
pub(super) struct GcArguments {
    /// The run: the folder that has the checkpoints.
    run: PathBuf,
    /// Keep this many of the newest complete checkpoints, and remove the older ones; without it
    /// only what interrupted saves left is removed.
    #[arg(long, value_name = "K")]
    keep: Option<NonZeroUsize>,
    /// Say what would be removed, and remove nothing.
    #[arg(long)]
    dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    run: String,
    dry_run: bool,
    /// What was removed; in a dry run, what would be.
    removed: Vec<Item>,
    /// Bytes of all that.
    bytes: u64,
    /// The complete checkpoints that stay.
    kept: Vec<String>,
    /// What stays although it is no complete checkpoint.
    left_alone: Vec<LeftAlone>,
}

#[derive(Serialize)]
struct Item {
    #[serde(skip)]
    place: PathBuf,
    path: String,
    what: &'static str,
    bytes: u64,
}

#[derive(Serialize)]
struct LeftAlone {
    path: String,
    why: String,
}

pub(super) fn gc(arguments: &GcArguments) -> anyhow::Result<Answer> {
    let run = arguments.run.as_path();
    let mut report = plan(run, arguments)?;
    if !arguments.dry_run {
        match arguments.keep {
            Some(keep) => keep_last(run, keep)?,
            None => sweep(run)?,
        }
        report.check_removed();
    }

    match arguments.json {
        true => Answer::json(&report, 0),
        false => Ok(Answer::success(report.text())),
    }
}

/// What is to be removed, and what stays.
fn plan(run: &Path, arguments: &GcArguments) -> anyhow::Result<Report> {
    ensure!(
        Committed::open(run).is_err(),
        "{} is a checkpoint; give the run that it is in",
        shown(run)
    );
    let survey = survey(run)?;
    let mut report = Report {
        run: run.to_string_lossy().into_owned(),
        dry_run: arguments.dry_run,
        removed: Vec::new(),
        bytes: 0,
        kept: Vec::new(),
        left_alone: Vec::new(),
    };

    let keep = arguments.keep.map_or(usize::MAX, NonZeroUsize::get);
    let surplus = survey.complete.len().saturating_sub(keep);
    for published in &survey.complete[..surplus] {
        report
            .removed
            .push(Item::new(published.path(), "checkpoint"));
    }
    let kept = survey.complete[surplus..].iter();
    report.kept = kept
        .map(|published| published.path().to_string_lossy().into_owned())
        .collect();

    for leftover in leftovers(run)? {
        match leftover.state {
            State::Abandoned => report
                .removed
                .push(Item::new(&leftover.path, "interrupted save")),
            State::Trash => report
                .removed
                .push(Item::new(&leftover.path, "interrupted removal")),
            State::InUse => report.left_alone.push(LeftAlone {
                path: leftover.path.to_string_lossy().into_owned(),
                why: "it is being written".to_owned(),
            }),
        }
    }
    let incomplete = survey
        .incomplete
        .iter()
        .map(|error| LeftAlone::of_error(run, error));
    report.left_alone.extend(incomplete);
    report.bytes = report.removed.iter().map(|item| item.bytes).sum();
    Ok(report)
}

impl Item {
    fn new(path: &Path, what: &'static str) -> Item {
        Item {
            place: path.to_owned(),
            path: path.to_string_lossy().into_owned(),
            what,
            // Somebody else may be removing it too.
            bytes: bytes_below(path).unwrap_or(0),
        }
    }
}

impl LeftAlone {
    fn of_error(run: &Path, error: &meshgrad::ckpt::Error) -> LeftAlone {
        use meshgrad::ckpt::Error;
        let (path, why) = match error {
            Error::Incomplete { path, flaw } => (path.as_path(), flaw.to_string()),
            Error::Io { path, .. } => (path.as_path(), error.to_string()),
            other => (run, other.to_string()),
        };
        let path = path.to_string_lossy().into_owned();
        LeftAlone { path, why }
    }
}

impl Report {
    /// Moves what is still there, because somebody began to write to it, to what is left alone.
    fn check_removed(&mut self) {
        let is_there = |item: &mut Item| fs::symlink_metadata(&item.place).is_ok();
        for item in self.removed.extract_if(.., is_there) {
            self.bytes -= item.bytes;
            self.left_alone.push(LeftAlone {
                path: item.path,
                why: "it is in use".to_owned(),
            });
        }
    }

    fn text(&self) -> String {
        let [removes, removed] = match self.dry_run {
            true => ["would remove", "would be removed"],
            false => ["removed", "removed"],
        };
        let mut table = Table::new([Left, Left, Right, Left]);
        for item in &self.removed {
            let (what, bytes) = (item.what.to_owned(), size::bytes(item.bytes));
            table.row([removes.to_owned(), printable(&item.path), bytes, what]);
        }
        for path in &self.kept {
            table.row([
                "keep".to_owned(),
                printable(path),
                String::new(),
                "checkpoint".to_owned(),
            ]);
        }
        for LeftAlone { path, why } in &self.left_alone {
            let why = printable(why);
            table.row(["left alone".to_owned(), printable(path), String::new(), why]);
        }

        let count = counted(self.removed.len() as u64, "item");
        let bytes = size::bytes(self.bytes);
        match self.removed.is_empty() {
            true => format!("{table}nothing to remove in {}\n", printable(&self.run)),
            false => format!("{table}\n{count}, {bytes} {removed}\n"),
        }
    }
}
