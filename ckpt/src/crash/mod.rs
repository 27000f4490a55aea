//! The drill: does a checkpoint survive whatever moment the power fails or the process dies?
//!
//! ```text
//! rounds (no disk)                                kills (a real disk)
//!   play saves, a kill, a recovery and removals     four processes save and remove in a loop
//!   on a SimFs that keeps every state               SIGKILL one of them, or all, at random times
//!   for each state, for many sets of what           then: what is found is bit-equal to what was
//!   was not synced: cut the power, recover,         saved, and nothing that was reported is lost
//!   compare with what may be there
//! ```
//!
//! Killing processes alone proves little: what they wrote stays in the system's cache. Cutting the
//! power of a simulated disk proves little about the system. So both.
//!
//! The law: a recovery finds the old checkpoint or the new, bit for bit, and never anything else; a
//! commit that returned is found; and never fewer are left than were to be kept.

#[cfg(test)]
mod faults;
mod kills;
mod law;
mod points;
mod process;
mod rounds;
mod script;

use std::fmt;
use std::path::PathBuf;

use crate::Error;
pub use kills::{Spawn, kill_at_random};
pub use points::{Point, die_at_points};
pub use process::{Job, work};
pub use rounds::{Round, STATES_EACH, Wrap, cut_power};

/// How much to try.
#[derive(Debug, Clone)]
pub struct Drill {
    /// An empty folder, on the disk that matters, for what is killed.
    pub folder: PathBuf,
    /// States after a power cut.
    pub states: u64,
    /// Kills of real processes.
    pub kills: u64,
    /// Choices follow from it.
    pub seed: u64,
}

/// How far a drill is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// So many states were checked.
    States(u64),
    /// So many kills were checked.
    Kills(u64),
}

/// What was tried, all without a violation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Rounds of saves that were played.
    pub rounds: u64,
    /// Operations after which the power was cut.
    pub operations: u64,
    /// States after a power cut that were checked.
    pub states: u64,
    /// Of these, states that held a save which had not returned.
    pub early: u64,
    /// Processes that were killed.
    pub kills: u64,
    /// Saves that the killed processes had reported.
    pub saves: u64,
}

/// What should not be, and how to see it again.
#[derive(Debug)]
pub struct Violation {
    /// When: the operation, and what of it reached the disk; or which kill.
    pub moment: String,
    /// What is wrong.
    pub problem: String,
    /// How to see it again: options of `meshgrad ckpt crash-test`, or words.
    pub again: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Violation {
            moment,
            problem,
            again,
        } = self;
        write!(f, "{problem}\n  {moment}\n  again with: {again}")
    }
}

impl std::error::Error for Violation {}

/// Why a drill ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The protocol broke its law.
    #[error(transparent)]
    Violation(#[from] Violation),
    /// The drill itself could not go on: a process that could not be started, a full disk.
    #[error("the drill could not go on: {0}")]
    Broken(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Broken(error.to_string())
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        Failure::Broken(error.to_string())
    }
}

/// Cuts the power and kills processes as often as the drill says. `spawn` gives a command that runs
/// [`work`] with the job's argument in a new process: mostly this program with a hidden subcommand.
///
/// # Errors
/// [`Failure::Violation`] for the first state that should not be.
pub fn run(
    drill: &Drill,
    spawn: Spawn<'_>,
    report: &mut dyn FnMut(Progress),
) -> Result<Summary, Failure> {
    let cut = cut_power(drill.states, drill.seed, report)?;
    let killed = kill_at_random(&drill.folder, drill.kills, drill.seed, spawn, report)?;
    Ok(Summary {
        kills: killed.kills,
        saves: killed.saves,
        ..cut
    })
}
