//! Deaths at fixed points of the protocol: before and after each operation of each process.

use std::path::Path;
use std::sync::Arc;

use meshgrad_ckpt::vfs::{RealFs, Vfs};

use crate::invariant::{self, Expect, Save};
use crate::outcome::{Failure, Progress, Summary, Violation};
use crate::point::Point;
use crate::process::KEEP;
use crate::process_group::{ProcessGroup, Spawn};
use crate::script::WRITERS;

/// Runs groups of processes that save into `run`, an empty folder. In each group one process dies
/// at one of its points, until every point of every process has been tested.
///
/// # Errors
/// [`Failure::Violation`] for the first state that breaks the invariant; [`Failure::Broken`] when a
/// process did not reach its point.
pub fn die_at_points(
    run: &Path,
    spawn: Spawn<'_>,
    report: &mut dyn FnMut(Progress),
) -> Result<Summary, Failure> {
    let vfs: Arc<dyn Vfs> = Arc::new(RealFs);
    let mut summary = Summary::default();
    ProcessGroup::start(spawn, run, 0, KEEP.get() as u64, None)?.wait()?;

    for writer in 0..WRITERS {
        for point in Point::of(writer) {
            summary.kills += 1;
            let attempt = summary.kills;
            let before = invariant::recover(&vfs, run).map_err(Failure::Broken)?;
            let step = before.last().map_or(0, |save| save.step) + 1;
            let next = Save { step, attempt };

            let group = ProcessGroup::start(spawn, run, attempt, 1, Some((writer, &point)))?;
            let (saves, dead) = group.wait()?;
            let moment = format!("process {writer} died {}", point.describe());
            if dead != 1 {
                return Err(Failure::Broken(format!("{moment}: {dead} processes died")));
            }

            summary.saves += saves.len() as u64;
            let mut expect =
                Expect { may: before.clone(), at_least: KEEP.get(), ..Expect::default() };
            expect.must.extend(before.last());
            match saves.is_empty() {
                true => expect.may.insert(next),
                false => expect.must.insert(next),
            };
            let found = invariant::check(&vfs, run, &expect);
            let checked = found.and_then(|found| invariant::check_sweep(&vfs, run, &found));
            checked.map_err(|problem| Violation {
                again: "the same point; the result does not depend on timing".to_owned(),
                moment,
                problem,
            })?;
            report(Progress::Kills(summary.kills));
        }
    }
    Ok(summary)
}
