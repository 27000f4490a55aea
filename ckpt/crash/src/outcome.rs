//! The progress, the results and the violations of a crash test.

use std::fmt;

/// The progress of a crash test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// States after a power cut that have been checked.
    States(u64),
    /// Kills that have been checked.
    Kills(u64),
}

/// What was tested without a violation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Rounds of saves.
    pub rounds: u64,
    /// Operations after which the power was cut.
    pub operations: u64,
    /// States after a power cut that were checked.
    pub states: u64,
    /// Checked states that contained a save that had not returned.
    pub early: u64,
    /// Kills, each of one process or of all.
    pub kills: u64,
    /// Saves that the killed processes had reported.
    pub saves: u64,
}

/// A state that breaks the invariant, and how to reproduce it.
#[derive(Debug)]
pub struct Violation {
    /// The operation and the changes that reached the disk, or the kill.
    pub moment: String,
    /// What is wrong.
    pub problem: String,
    /// How to reproduce it: options of `meshgrad ckpt crash-test`, or a description.
    pub again: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Violation { moment, problem, again } = self;
        write!(f, "{problem}\n  {moment}\n  reproduce with: {again}")
    }
}

impl std::error::Error for Violation {}

/// Why a crash test ended early.
#[derive(Debug)]
#[non_exhaustive]
pub enum Failure {
    /// The invariant was broken.
    Violation(Violation),
    /// The test itself failed: a process could not be started, the disk is full.
    Broken(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Violation(violation) => violation.fmt(f),
            Failure::Broken(problem) => write!(f, "the crash test failed to run: {problem}"),
        }
    }
}

impl std::error::Error for Failure {}

impl From<Violation> for Failure {
    fn from(violation: Violation) -> Failure {
        Failure::Violation(violation)
    }
}

impl From<meshgrad_ckpt::Error> for Failure {
    fn from(error: meshgrad_ckpt::Error) -> Failure {
        Failure::Broken(error.to_string())
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        Failure::Broken(error.to_string())
    }
}
