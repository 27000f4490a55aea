//! Kills of real processes at random times.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use meshgrad_ckpt::vfs::{RealFs, Vfs};

use crate::invariant;
use crate::outcome::{Failure, Progress, Summary, Violation};
use crate::process_group::{ProcessGroup, Spawn};
use crate::script::WRITERS;
use crate::splitmix::SplitMix64;

/// The longest time between the first save of a group and its kill, in microseconds.
const MAX_WAIT: u64 = 15_000;

/// Starts processes that save into `run`, an empty folder, and kills one or all of them, `kills`
/// times. Checks the folder after each kill.
///
/// # Errors
/// [`Failure::Violation`] for the first state that breaks the invariant.
pub fn kill_at_random(
    run: &Path,
    kills: u64,
    seed: u64,
    spawn: Spawn<'_>,
    report: &mut dyn FnMut(Progress),
) -> Result<Summary, Failure> {
    let vfs: Arc<dyn Vfs> = Arc::new(RealFs);
    let mut random = SplitMix64::new(seed);
    let mut summary = Summary::default();
    let mut reported: BTreeMap<u64, u64> = BTreeMap::new();

    for kill in 1..=kills {
        let mut group = ProcessGroup::start(spawn, run, kill, u64::MAX, None)?;
        let first = group.next_save().ok_or_else(|| {
            Failure::Broken("the coordinator exited before its first save".to_owned())
        })?;
        thread::sleep(Duration::from_micros(random.below(MAX_WAIT)));
        let victim = random.below(WRITERS + 1);
        let later = group.kill(victim)?;

        summary.kills += 1;
        for step in [first].into_iter().chain(later) {
            summary.saves += 1;
            reported.insert(step, kill);
        }
        let problem = check(&vfs, run, &reported, kill.is_multiple_of(2));
        problem.map_err(|problem| Violation {
            again: format!("--states 0 --kills {kill} --seed {seed}, perhaps more than once"),
            moment: format!("after kill {kill}, of {}", victim_name(victim)),
            problem,
        })?;
        report(Progress::Kills(kill));
    }
    Ok(summary)
}

fn victim_name(victim: u64) -> String {
    match victim {
        0 => "the coordinator".to_owned(),
        WRITERS => "all processes".to_owned(),
        writer => format!("writer {writer}"),
    }
}

/// Checks what a recovery finds. `reported` maps each step that was reported as saved to its
/// attempt.
fn check(
    vfs: &Arc<dyn Vfs>,
    run: &Path,
    reported: &BTreeMap<u64, u64>,
    sweep: bool,
) -> Result<(), String> {
    let found = invariant::recover(vfs, run)?;
    let newest = found.last().map_or(0, |save| save.step);
    let last = reported.last_key_value().map_or(0, |(step, _)| *step);
    if newest < last {
        return Err(format!("step {last} was reported as saved, but the newest step is {newest}"));
    }
    for save in &found {
        if reported.get(&save.step).is_some_and(|attempt| *attempt != save.attempt) {
            return Err(format!("{save:?} is not the attempt that was reported"));
        }
    }
    if sweep {
        invariant::check_sweep(vfs, run, &found)?;
    }
    Ok(())
}
