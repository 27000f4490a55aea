//! The processes of a launch: waiting for them, and stopping them.
//!
//! A process is reaped only after its process group was signalled for the last time. Until then its
//! id, which is also the id of the group, cannot be reused.

use std::io;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::ends::Ends;
use super::guard::Guard;

/// How long the other ranks may take to report why they fail before they are asked to end.
const REPORT: Duration = Duration::from_secs(1);
/// How long they may take to end, such as to save a checkpoint, before they are killed.
const END: Duration = Duration::from_secs(30);
/// The pause between checks of the flag that stops them.
const LOOK: Duration = Duration::from_millis(20);

/// How the processes ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All ranks succeeded.
    Success,
    /// The first rank that failed, and its exit code: 128 plus the signal's number if it was
    /// killed.
    Failed {
        /// The rank.
        rank: usize,
        /// The code.
        code: u8,
    },
    /// They were stopped from outside.
    Stopped,
}

/// The processes, in rank order. They are killed when dropped, with what they started.
pub(super) struct Children {
    ranks: Vec<Rank>,
    ends: Ends,
    guard: Option<Guard>,
}

struct Rank {
    process: Child,
    /// The exit code; `None` while it runs.
    code: Option<u8>,
}

impl Rank {
    fn is_running(&self) -> bool {
        self.code.is_none()
    }
}

/// Waits until a process ends, and does not reap it. Returns its exit code: 128 plus the signal's
/// number if it was killed.
fn wait_for(process: &Child) -> io::Result<u8> {
    let pid = pid(process).ok_or(Errno::CHILD)?;
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    let status = retry_on_intr(|| waitid(WaitId::Pid(pid), options))?.ok_or(Errno::CHILD)?;
    let killed = || Some(128 + status.terminating_signal()?);
    let code = status.exit_status().or_else(killed);
    Ok(u8::try_from(code.unwrap_or(1)).unwrap_or(1))
}

impl Children {
    pub(super) fn new() -> io::Result<Children> {
        Ok(Children { ranks: Vec::new(), ends: Ends::new()?, guard: Some(Guard::start()?) })
    }

    pub(super) fn push(&mut self, process: Child) -> io::Result<()> {
        let pid = pid(&process).ok_or(Errno::CHILD)?;
        if let Some(guard) = &mut self.guard {
            guard.add(process.id())?;
        }
        self.ranks.push(Rank { process, code: None });
        self.ends.push(pid)
    }

    pub(super) fn processes(&mut self) -> impl Iterator<Item = &mut Child> {
        self.ranks.iter_mut().map(|rank| &mut rank.process)
    }

    /// Waits until all processes have ended. When one fails or `stop` is set, the others are
    /// stopped. `failed_first` returns the rank that the others name as the first that failed.
    pub(super) fn wait(
        &mut self,
        stop: &AtomicBool,
        failed_first: impl FnOnce() -> Option<usize>,
    ) -> io::Result<Ended> {
        let mut outcome = Ended::Success;
        let mut signals =
            [(Duration::ZERO, Signal::TERM), (END, Signal::KILL)].into_iter().peekable();
        let mut since: Option<Instant> = None;
        while self.ranks.iter().any(Rank::is_running) {
            let mut failed = None;
            for rank in self.ends.next(LOOK)? {
                let ended = self.ended(rank)?;
                failed = failed.or(ended);
            }
            if outcome == Ended::Success {
                outcome = match failed {
                    Some(failed) => failed,
                    None if stop.load(Ordering::Relaxed) => Ended::Stopped,
                    None => Ended::Success,
                };
            }
            let grace = match outcome {
                Ended::Success => continue,
                Ended::Failed { .. } => REPORT,
                Ended::Stopped => Duration::ZERO,
            };
            let waited = since.get_or_insert_with(Instant::now).elapsed();
            if let Some((_, signal)) = signals.next_if(|(after, _)| waited >= grace + *after) {
                let running = self.ranks.iter().filter(|rank| rank.is_running());
                running.for_each(|rank| signal_group(&rank.process, signal));
            }
        }
        if let Ended::Failed { .. } = outcome
            && let Some(rank) = failed_first()
            && let Some(code @ 1..) = self.ranks.get(rank).and_then(|rank| rank.code)
        {
            outcome = Ended::Failed { rank, code };
        }
        Ok(outcome)
    }

    /// Records that a rank ended. If it failed, what it started is stopped.
    fn ended(&mut self, rank: usize) -> io::Result<Option<Ended>> {
        let ended = &mut self.ranks[rank];
        let code = wait_for(&ended.process)?;
        ended.code = Some(code);
        if code == 0 {
            return Ok(None);
        }
        signal_group(&ended.process, Signal::TERM);
        Ok(Some(Ended::Failed { rank, code }))
    }

    /// Kills the processes that run, stops what the others started, and reaps them.
    pub(super) fn reap(&mut self) {
        // It must not signal processes that have been reaped.
        self.guard = None;
        for rank in &self.ranks {
            let signal = match rank.is_running() {
                true => Signal::KILL,
                false => Signal::TERM,
            };
            signal_group(&rank.process, signal);
        }
        for mut rank in self.ranks.drain(..) {
            let _ = rank.process.wait(); // it has ended or was killed
        }
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        self.reap();
    }
}

fn pid(process: &Child) -> Option<Pid> {
    Pid::from_raw(i32::try_from(process.id()).ok()?)
}

fn signal_group(process: &Child, signal: Signal) {
    // A group that has ended needs no signal.
    let _ = pid(process).map(|pid| kill_process_group(pid, signal));
}
