//! A coordinator process and its writer processes.

use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::outcome::Failure;
use crate::point::{self, Point};
use crate::process::{Job, Role};
use crate::script::WRITERS;

/// Returns the command of a new process that runs a job.
pub type Spawn<'a> = &'a dyn Fn(&Job) -> Command;

/// A coordinator and its writers. Dropping the group kills the processes that are left.
pub(crate) struct ProcessGroup {
    /// The coordinator is the first.
    processes: Vec<Child>,
    lines: Lines<BufReader<ChildStdout>>,
}

impl ProcessGroup {
    /// Starts the processes. `die_at` selects a process and the point where it dies.
    pub(crate) fn start(
        spawn: Spawn<'_>,
        run: &Path,
        attempt: u64,
        saves: u64,
        die_at: Option<(u64, &Point)>,
    ) -> Result<ProcessGroup, Failure> {
        let job = |writer, role| Job {
            run: run.to_owned(),
            attempt,
            role,
            die_at: die_at
                .filter(|(process, _)| *process == writer)
                .map(|(_, point)| point.clone()),
        };
        let start = |job: &Job| {
            let mut command = spawn(job);
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
            command.spawn()
        };

        let mut coordinator = start(&job(0, Role::Coordinator { saves }))?;
        let out = coordinator.stdout.take();
        let out = out.ok_or_else(|| Failure::Broken("no standard output".to_owned()))?;
        let mut group =
            ProcessGroup { processes: vec![coordinator], lines: BufReader::new(out).lines() };

        let port = group.next("port ").ok_or_else(|| {
            Failure::Broken("the coordinator exited before it printed its port".to_owned())
        })? as u16;
        for writer in 1..WRITERS {
            let process = start(&job(writer, Role::Writer { writer, port }))?;
            group.processes.push(process);
        }
        Ok(group)
    }

    /// The number in the next line that starts with `prefix`; `None` when the coordinator has
    /// exited.
    fn next(&mut self, prefix: &str) -> Option<u64> {
        let mut lines = self.lines.by_ref().map_while(Result::ok);
        lines.find_map(|line| line.strip_prefix(prefix)?.parse().ok())
    }

    /// Waits for the next save; `None` when the coordinator has exited.
    pub(crate) fn next_save(&mut self) -> Option<u64> {
        self.next("saved ")
    }

    /// Kills one process, or all for victim [`WRITERS`]. The coordinator exits by itself when a
    /// writer has exited. Returns the saves that were reported in the meantime.
    pub(crate) fn kill(mut self, victim: u64) -> Result<Vec<u64>, Failure> {
        match self.processes.get_mut(victim as usize) {
            Some(process) => process.kill()?,
            None => self.processes.iter_mut().try_for_each(Child::kill)?,
        }
        Ok(self.wait()?.0)
    }

    /// Waits for all processes. Returns the reported saves and how many died at their point.
    pub(crate) fn wait(mut self) -> Result<(Vec<u64>, usize), Failure> {
        let saves = std::iter::from_fn(|| self.next_save()).collect();
        let mut dead = 0;
        for process in &mut self.processes {
            let status = process.wait()?;
            dead += usize::from(status.code() == Some(point::DEAD));
        }
        Ok((saves, dead))
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        for process in &mut self.processes {
            // An error means that it has exited.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
