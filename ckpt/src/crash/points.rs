//! Death at named points of the protocol: before and after each kind of step, of each process.

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::kills::{Spawn, Team};
use super::law::{self, Expect, SHARED_FILES, Save};
use super::process::{self, KEEP};
use super::script::WRITERS;
use super::{Failure, Progress, Summary, Violation};
use crate::vfs::{Fault, Op, RealFs, Rule, Vfs};

/// How a process ends at its point.
pub(super) const DEAD: i32 = 9;

/// A step of the protocol.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point {
    op: Op,
    /// In the path.
    part: String,
    nth: u64,
    is_after: bool,
}

/// The steps of the coordinator, in order: operation, part of its path, which of them.
const COORDINATOR: [(Op, &str, u64); 22] = [
    (Op::MakeDir, ".tmp-", 0),
    (Op::Lock, ".tmp-", 0),
    (Op::CreateNew, "a.safetensors", 0),
    (Op::Allocate, "a.safetensors", 0),
    (Op::MakeDir, "trainer", 0),
    (Op::OpenToWrite, "b.safetensors", 0),
    (Op::Write, "b.safetensors", 0),
    (Op::SyncData, "b.safetensors", 0),
    (Op::CreateNew, "state.json", 0),
    (Op::Write, "state.json", 0),
    (Op::SyncData, "state.json", 0),
    (Op::SyncDir, "trainer", 0),
    (Op::CreateNew, "manifest.json", 0),
    (Op::Write, "manifest.json", 0),
    (Op::SyncData, "manifest.json", 0),
    // The staging folder with its manifest; before that comes the one of the files.
    (Op::SyncDir, ".tmp-", 2),
    (Op::RenameNoReplace, "step-", 0),
    // The parent: after the publication, before and after the renaming of the old ones.
    (Op::SyncDir, "", 3),
    (Op::SyncDir, "", 4),
    (Op::RenameNoReplace, ".trash-", 0),
    (Op::SyncDir, "", 5),
    (Op::Unlink, ".trash-", 2),
];

impl Point {
    /// The points that a process meets; number 0 coordinates.
    pub(super) fn of(writer: u64) -> Vec<Point> {
        let steps: Vec<(Op, &str, u64)> = match writer {
            0 => COORDINATOR.to_vec(),
            _ => [Op::OpenToWrite, Op::Write, Op::SyncData]
                .into_iter()
                .flat_map(|op| SHARED_FILES.map(|file| (op, file, 0)))
                .collect(),
        };
        let both = steps.into_iter().flat_map(|(op, part, nth)| {
            [false, true].map(|is_after| Point {
                op,
                part: part.to_owned(),
                nth,
                is_after,
            })
        });
        both.collect()
    }

    /// Ends the process there.
    pub(super) fn rule(&self) -> Rule {
        let die = Arc::new(process::die);
        let fault = match self.is_after {
            true => Fault::After(die),
            false => Fault::Before(die),
        };
        Rule::new(fault).op(self.op).path(&self.part).nth(self.nth)
    }

    fn describe(&self) -> String {
        let moment = if self.is_after { "after" } else { "before" };
        format!("{moment} {:?} {} of `{}`", self.op, self.nth, self.part)
    }
}

/// Lets each process of a team that saves into `run`, an empty folder, die at each of its points.
///
/// # Errors
/// [`Failure::Violation`] for the first state that should not be; [`Failure::Broken`] when a point
/// was not met.
pub fn die_at_points(
    run: &Path,
    spawn: Spawn<'_>,
    report: &mut dyn FnMut(Progress),
) -> Result<Summary, Failure> {
    let vfs: Arc<dyn Vfs> = Arc::new(RealFs);
    let mut summary = Summary::default();
    Team::start(spawn, run, 0, KEEP.get() as u64, None)?.wait()?;

    for writer in 0..WRITERS {
        for point in Point::of(writer) {
            summary.kills += 1;
            let attempt = summary.kills;
            let before = law::recover(&vfs, run).map_err(Failure::Broken)?;
            let step = before.last().map_or(0, |save| save.step) + 1;
            let next = Save { step, attempt };

            let team = Team::start(spawn, run, attempt, 1, Some((writer, &point)))?;
            let (saves, dead) = team.wait()?;
            let moment = format!("process {writer} died {}", point.describe());
            if dead != 1 {
                return Err(Failure::Broken(format!("{moment}: {dead} died")));
            }

            summary.saves += saves.len() as u64;
            let mut expect = Expect {
                may: before.clone(),
                at_least: KEEP.get(),
                ..Expect::default()
            };
            expect.must.extend(before.last());
            match saves.is_empty() {
                true => expect.may.insert(next),
                false => expect.must.insert(next),
            };
            let found = law::check(&vfs, run, &expect);
            let checked = found.and_then(|found| law::check_sweep(&vfs, run, &found));
            checked.map_err(|problem| Violation {
                again: "the same point: it does not depend on time".to_owned(),
                moment,
                problem,
            })?;
            report(Progress::Kills(summary.kills));
        }
    }
    Ok(summary)
}
