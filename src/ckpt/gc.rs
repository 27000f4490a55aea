//! `meshgrad ckpt gc`: removes old checkpoints and leftovers of a run.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::ensure;
use meshgrad::ckpt::{
    Committed, Error, Leftover, LeftoverKind, Scan, keep_last, leftovers, path_of, scan, surplus,
    sweep,
};
use serde::Serialize;

use super::arguments::path_text;
use super::size::{self, counted};
use super::verify::problem;
use crate::answer::Answer;
use crate::table::Side::{Left, Right};
use crate::table::{Table, display_path, printable};

#[derive(clap::Args)]
pub(super) struct GcArguments {
    /// The run: the folder that contains the checkpoints.
    run: PathBuf,
    /// Keep only this many of the newest complete checkpoints; without it only leftovers of
    /// interrupted saves are removed.
    #[arg(long, value_name = "K")]
    keep: Option<NonZeroUsize>,
    /// Print what would be removed, and remove nothing.
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
    /// Removed items; in a dry run, those that would be removed.
    removed: Vec<Item>,
    /// Bytes of the removed items.
    bytes: u64,
    /// The complete checkpoints that stay.
    kept: Vec<String>,
    /// Folders that are kept although they are not complete checkpoints.
    left_alone: Vec<LeftAlone>,
}

#[derive(Serialize)]
struct Item {
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
    ensure!(Committed::open(run).is_err(), "{} is a checkpoint; pass its run", display_path(run));
    let removed = match (arguments.dry_run, arguments.keep) {
        (false, Some(keep)) => keep_last(run, keep)?,
        (false, None) => sweep(run)?,
        (true, keep) => would_be_removed(run, keep)?,
    };
    let report = Report::new(arguments, &removed, &scan(run)?, &leftovers(run)?);

    match arguments.json {
        true => Answer::json(&report, 0),
        false => Ok(Answer::success(report.text())),
    }
}

fn would_be_removed(run: &Path, keep: Option<NonZeroUsize>) -> anyhow::Result<Vec<Leftover>> {
    let mut all = match keep {
        Some(keep) => surplus(run, keep)?,
        None => Vec::new(),
    };
    all.extend(leftovers(run)?);
    all.retain(|it| it.kind != LeftoverKind::RunningSave);
    Ok(all)
}

impl Item {
    fn new(leftover: &Leftover) -> Item {
        Item {
            path: path_text(&leftover.path),
            what: match leftover.kind {
                LeftoverKind::Checkpoint => "checkpoint",
                LeftoverKind::InterruptedSave => "interrupted save",
                LeftoverKind::InterruptedRemoval => "interrupted removal",
                LeftoverKind::RunningSave => "running save",
            },
            bytes: leftover.bytes,
        }
    }
}

impl LeftAlone {
    fn running(save: &Leftover) -> LeftAlone {
        LeftAlone { path: path_text(&save.path), why: "a running save".to_owned() }
    }

    fn of_error(run: &Path, error: &Error) -> LeftAlone {
        let path = path_text(path_of(error).unwrap_or(run));
        LeftAlone { path, why: problem(error) }
    }
}

impl Report {
    /// A report of the removed items and of what remains.
    fn new(
        arguments: &GcArguments,
        removed: &[Leftover],
        scan: &Scan,
        leftovers: &[Leftover],
    ) -> Report {
        let run = arguments.run.as_path();
        let is_kept = |it: &&Committed| removed.iter().all(|removed| removed.path != it.path());
        let kept = scan.complete.iter().filter(is_kept);

        let is_running = |it: &&Leftover| it.kind == LeftoverKind::RunningSave;
        let running = leftovers.iter().filter(is_running).map(LeftAlone::running);
        let incomplete = scan.incomplete.iter();
        let incomplete = incomplete.map(|error| LeftAlone::of_error(run, error));
        Report {
            run: path_text(run),
            dry_run: arguments.dry_run,
            removed: removed.iter().map(Item::new).collect(),
            bytes: removed.iter().map(|it| it.bytes).sum(),
            kept: kept.map(|it| path_text(it.path())).collect(),
            left_alone: running.chain(incomplete).collect(),
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
            table.row(["keep".to_owned(), printable(path), String::new(), "checkpoint".to_owned()]);
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
