//! Points of the commit protocol at which a process dies: before or after one operation.

use std::process;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::invariant::SHARED_FILES;
use crate::rule::{Fault, Op, Rule};

/// Exit code of a process that died at its point.
pub(crate) const DEAD: i32 = 9;

/// Before or after one operation of the protocol.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point {
    op: Op,
    /// Substring of the path.
    part: String,
    nth: u64,
    is_after: bool,
}

/// The coordinator's tested operations in order. Each has its kind, a substring of its path, and
/// the number of the match, from 0.
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
    // The sync of the staging folder with its manifest, after the syncs for its other files.
    (Op::SyncDir, ".tmp-", 2),
    (Op::RenameNoReplace, "step-", 0),
    // The parent: after publishing, before and after the old checkpoints are renamed.
    (Op::SyncDir, "", 3),
    (Op::SyncDir, "", 4),
    (Op::RenameNoReplace, ".trash-", 0),
    (Op::SyncDir, "", 5),
    (Op::Unlink, ".trash-", 2),
];

impl Point {
    /// The points that a process passes; process 0 is the coordinator.
    pub(crate) fn of(writer: u64) -> Vec<Point> {
        let steps: Vec<(Op, &str, u64)> = match writer {
            0 => COORDINATOR.to_vec(),
            _ => [Op::OpenToWrite, Op::Write, Op::SyncData]
                .into_iter()
                .flat_map(|op| SHARED_FILES.map(|file| (op, file, 0)))
                .collect(),
        };
        let both = steps.into_iter().flat_map(|(op, part, nth)| {
            [false, true].map(|is_after| Point { op, part: part.to_owned(), nth, is_after })
        });
        both.collect()
    }

    /// A rule that ends the process at this point.
    pub(crate) fn rule(&self) -> Rule {
        let die = Arc::new(die);
        let fault = match self.is_after {
            true => Fault::After(die),
            false => Fault::Before(die),
        };
        Rule::new(fault).op(self.op).path(&self.part).nth(self.nth)
    }

    pub(crate) fn describe(&self) -> String {
        let moment = if self.is_after { "after" } else { "before" };
        format!("{moment} {:?} {} of `{}`", self.op, self.nth, self.part)
    }
}

/// Ends the process without any cleanup, as a kill does.
fn die() {
    process::exit(DEAD);
}
