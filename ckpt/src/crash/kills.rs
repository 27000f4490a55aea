//! Kills of real processes at random moments.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::law;
use super::points::Point;
use super::process::{Job, Role};
use super::script::WRITERS;
use super::{Failure, Progress, Summary, Violation};
use crate::splitmix::SplitMix64;
use crate::vfs::{RealFs, Vfs};

/// Makes the command of a new process that does a job.
pub type Spawn<'a> = &'a dyn Fn(&Job) -> Command;

/// The longest time between the first save of a team and its end, in microseconds.
const MAX_WAIT: u64 = 15_000;

/// Kills processes that save into `run`, an empty folder, as often as `kills` says, and looks at
/// what is there after each.
///
/// # Errors
/// [`Failure::Violation`] for the first state that should not be.
pub fn kill_at_random(
    run: &Path,
    kills: u64,
    seed: u64,
    spawn: Spawn<'_>,
    report: &mut dyn FnMut(Progress),
) -> Result<Summary, Failure> {
    let vfs: Arc<dyn Vfs> = Arc::new(RealFs);
    let mut draws = SplitMix64::new(seed);
    let mut summary = Summary::default();
    let mut reported: BTreeMap<u64, u64> = BTreeMap::new();

    for kill in 1..=kills {
        let mut team = Team::start(spawn, run, kill, u64::MAX, None)?;
        let first = team.next_save().ok_or_else(|| {
            Failure::Broken("the coordinator ended by itself before it had saved".to_owned())
        })?;
        thread::sleep(Duration::from_micros(draws.below(MAX_WAIT)));
        let victim = draws.below(WRITERS + 1);
        let later = team.end(victim)?;

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

/// `reported`: the attempt of each step that was said to be saved.
fn check(
    vfs: &Arc<dyn Vfs>,
    run: &Path,
    reported: &BTreeMap<u64, u64>,
    sweep: bool,
) -> Result<(), String> {
    let found = law::recover(vfs, run)?;
    let newest = found.last().map_or(0, |save| save.step);
    let last = reported.last_key_value().map_or(0, |(step, _)| *step);
    if newest < last {
        return Err(format!(
            "step {last} was reported as saved, {newest} is the newest"
        ));
    }
    for save in &found {
        if reported
            .get(&save.step)
            .is_some_and(|attempt| *attempt != save.attempt)
        {
            return Err(format!("{save:?} is not the attempt that was reported"));
        }
    }
    if sweep {
        law::check_sweep(vfs, run, &found)?;
    }
    Ok(())
}

/// A coordinator and its writers. What lives is killed when it is dropped.
pub(super) struct Team {
    /// The coordinator first.
    processes: Vec<Child>,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Team {
    /// Starts the processes; `die_at` names the one that dies and where.
    pub(super) fn start(
        spawn: Spawn<'_>,
        run: &Path,
        attempt: u64,
        saves: u64,
        die_at: Option<(u64, &Point)>,
    ) -> Result<Team, Failure> {
        let job = |writer, role| Job {
            run: run.to_owned(),
            attempt,
            role,
            die_at: die_at
                .filter(|(who, _)| *who == writer)
                .map(|(_, point)| point.clone()),
        };
        let start = |job: &Job| {
            let mut command = spawn(job);
            command
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::null());
            command.spawn()
        };

        let mut coordinator = start(&job(0, Role::Coordinator { saves }))?;
        let out = coordinator.stdout.take();
        let out = out.ok_or_else(|| Failure::Broken("no standard output".to_owned()))?;
        let mut team = Team {
            processes: vec![coordinator],
            lines: BufReader::new(out).lines(),
        };

        let port = team.next("port ").ok_or_else(|| {
            Failure::Broken("the coordinator ended before it had a port".to_owned())
        })? as u16;
        for writer in 1..WRITERS {
            let process = start(&job(writer, Role::Writer { writer, port }))?;
            team.processes.push(process);
        }
        Ok(team)
    }

    /// The number after the next line that begins so; `None` when the coordinator is gone.
    fn next(&mut self, begin: &str) -> Option<u64> {
        let mut lines = self.lines.by_ref().map_while(Result::ok);
        lines.find_map(|line| line.strip_prefix(begin)?.parse().ok())
    }

    /// Waits for the next save; `None` when the coordinator is gone.
    pub(super) fn next_save(&mut self) -> Option<u64> {
        self.next("saved ")
    }

    /// Kills one, or all: number [`WRITERS`]. The coordinator ends by itself when a writer is gone.
    /// Gives the saves that were reported meanwhile.
    fn end(mut self, victim: u64) -> Result<Vec<u64>, Failure> {
        match self.processes.get_mut(victim as usize) {
            Some(process) => process.kill()?,
            None => self.processes.iter_mut().try_for_each(Child::kill)?,
        }
        Ok(self.wait()?.0)
    }

    /// Waits until all have ended: the saves that were reported, and how many died at their point.
    pub(super) fn wait(mut self) -> Result<(Vec<u64>, usize), Failure> {
        let saves = std::iter::from_fn(|| self.next_save()).collect();
        let mut dead = 0;
        for process in &mut self.processes {
            let status = process.wait()?;
            dead += usize::from(status.code() == Some(super::points::DEAD));
        }
        Ok((saves, dead))
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        for process in &mut self.processes {
            // An error: it has ended.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
