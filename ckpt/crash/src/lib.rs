//! Crash tests: a checkpoint must survive a power cut or a killed process at any moment.
//!
//! ```text
//! power cuts (no disk)                            kills (a real disk)
//!   a SimFs records every state of a round of       four processes save and remove in a loop
//!   saves, a kill, a recovery and removals          SIGKILL one of them, or all, at random times
//!   for each state and many sets of unsynced        then what is found must equal what was saved,
//!   changes: cut the power, recover, compare        and nothing that was reported may be lost
//! ```
//!
//! Killing processes alone proves little, because what they wrote stays in the page cache. Cutting
//! the power of a simulated disk proves little about the operating system. Hence both.
//!
//! The invariant: a recovery finds the old checkpoint or the new one, bit for bit. A commit that
//! has returned is found. There are never fewer checkpoints than the number to keep.
//!
//! - [`SimFs`]: a file system in memory that can produce every state a power cut may leave.
//! - [`FaultFs`]: wraps a file system and injects faults into chosen operations.
//! - [`run`], [`cut_power`], [`kill_at_random`], [`die_at_points`]: the tests themselves.

mod deaths;
mod fault_fs;
#[cfg(test)]
mod faults;
mod invariant;
mod kills;
mod outcome;
mod point;
mod process;
mod process_group;
mod rounds;
mod rule;
mod script;
mod sim_fs;
mod splitmix;

use std::path::PathBuf;

pub use deaths::die_at_points;
pub use fault_fs::FaultFs;
pub use kills::kill_at_random;
pub use outcome::{Failure, Progress, Summary, Violation};
pub use point::Point;
pub use process::{Job, run_job};
pub use process_group::Spawn;
pub use rounds::{Round, STATES_PER_OPERATION, Wrap, cut_power};
pub use rule::{Fault, Op, Rule};
pub use sim_fs::{Recorded, SimFs, Survivors};
pub use splitmix::SplitMix64;

/// How much to test.
#[derive(Debug, Clone)]
pub struct CrashTest {
    /// An empty folder on the disk under test, for the processes that are killed.
    pub folder: PathBuf,
    /// The number of states after a power cut to check.
    pub states: u64,
    /// The number of kills, each of one real process or of all.
    pub kills: u64,
    /// Seed of all random choices.
    pub seed: u64,
}

/// Runs the power cuts and then the kills. `spawn` returns a command that calls [`run_job`] with
/// the job's argument in a new process, usually this program with a hidden subcommand.
///
/// # Errors
/// [`Failure::Violation`] for the first state that breaks the invariant.
pub fn run(
    test: &CrashTest,
    spawn: Spawn<'_>,
    report: &mut dyn FnMut(Progress),
) -> Result<Summary, Failure> {
    let cut = cut_power(test.states, test.seed, report)?;
    let killed = kill_at_random(&test.folder, test.kills, test.seed, spawn, report)?;
    Ok(Summary { kills: killed.kills, saves: killed.saves, ..cut })
}
