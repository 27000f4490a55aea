//! Errors of schedules.

use std::fmt;

use crate::{Action, Named};

/// The most pairs of a stage and a microbatch: far more than any run has, and small enough that a
/// typing error does not exhaust the memory.
pub const MAX_PAIRS: usize = 1 << 20;

/// The most stages, of all ranks together.
pub const MAX_STAGES: usize = 1 << 12;

/// A result with an error of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a schedule.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A number of a shape is 0.
    #[error("the number of {what} is 0: use at least 1")]
    Zero {
        /// Of what.
        what: &'static str,
    },

    /// Fewer stages than ranks.
    #[error("{stages} stages do not fill {ranks} ranks: every rank needs at least one stage")]
    FewStages {
        /// The number of stages.
        stages: usize,
        /// The number of ranks.
        ranks: usize,
    },

    /// More stages than [`MAX_STAGES`], or more pairs of a stage and a microbatch than [`MAX_PAIRS`].
    #[error(
        "{stages} stages x {microbatches} microbatches exceed the limit of {MAX_STAGES} stages and \
         {MAX_PAIRS} pairs of a stage and a microbatch"
    )]
    TooLarge {
        /// The number of stages.
        stages: usize,
        /// The number of microbatches.
        microbatches: usize,
    },

    /// A stage on a rank that does not exist.
    #[error("stage {stage} is on rank {rank}, but the ranks are 0 to {}", .ranks.saturating_sub(1))]
    NoSuchRank {
        /// The stage.
        stage: usize,
        /// Its rank.
        rank: usize,
        /// The number of ranks.
        ranks: usize,
    },

    /// Another number of lists than ranks.
    #[error("{lists} lists of actions for {ranks} ranks: give each rank one")]
    Lists {
        /// The number of lists.
        lists: usize,
        /// The number of ranks.
        ranks: usize,
    },

    /// A name that no schedule has.
    #[error("unknown schedule `{name}` (schedules: {}, auto)", names())]
    UnknownSchedule {
        /// The name.
        name: String,
    },

    /// A schedule does not support the number of stages.
    #[error("{schedule} needs {permitted}, but got {stages} stages on {ranks} ranks; use {remedy}")]
    Stages {
        /// The schedule.
        schedule: Named,
        /// What it needs.
        permitted: &'static str,
        /// The number of stages.
        stages: usize,
        /// The number of ranks.
        ranks: usize,
        /// What to do.
        remedy: String,
    },

    /// A schedule does not support the number of microbatches.
    #[error(
        "{schedule} cannot run {microbatches} microbatches on {ranks} ranks: {rule}; use {}",
        nearest(*.below, *.above)
    )]
    Microbatches {
        /// The schedule.
        schedule: Named,
        /// The number of microbatches.
        microbatches: usize,
        /// The number of ranks.
        ranks: usize,
        /// Which numbers it supports.
        rule: &'static str,
        /// The largest supported number below.
        below: Option<usize>,
        /// The smallest supported number above.
        above: usize,
    },

    /// A cell of a CSV file is not an action.
    #[error("row {row}, cell {cell}: `{text}` {problem}")]
    Cell {
        /// The row, starting at 1; row 1 is rank 0.
        row: usize,
        /// The cell, starting at 1.
        cell: usize,
        /// Its text.
        text: String,
        /// What is wrong, and what is expected.
        problem: String,
    },

    /// A row of a CSV file without actions.
    #[error("row {row} has no actions: every row is a rank, which needs at least one stage")]
    EmptyRow {
        /// The row, starting at 1.
        row: usize,
    },

    /// A stage that no rank runs.
    #[error("no rank runs stage {stage}, but later stages exist")]
    UnusedStage {
        /// The stage.
        stage: usize,
    },

    /// A schedule contains communication, which lowering adds.
    #[error("rank {rank}: {action} is not a computation; leave it out, lowering adds it")]
    NotCompute {
        /// The rank.
        rank: usize,
        /// The action.
        action: Action,
    },

    /// A stage or microbatch that does not exist.
    #[error(
        "rank {rank}: {action} is out of range (stages: 0 to {}, microbatches: 0 to {})",
        .stages - 1, .microbatches - 1
    )]
    OutOfRange {
        /// The rank.
        rank: usize,
        /// The action.
        action: Action,
        /// The number of stages.
        stages: usize,
        /// The number of microbatches.
        microbatches: usize,
    },

    /// An action of a stage that another rank has.
    #[error("rank {rank}: {action} belongs to rank {owner}")]
    WrongRank {
        /// The rank.
        rank: usize,
        /// The action.
        action: Action,
        /// The rank that has the stage.
        owner: usize,
    },

    /// A message between two stages of one rank.
    #[error("rank {rank}: {action} is not needed, because rank {rank} has both stages")]
    LocalMessage {
        /// The rank.
        rank: usize,
        /// The action.
        action: Action,
    },

    /// An action that was already done.
    #[error("rank {rank}: {action} repeats {earlier}; remove one of them")]
    Repeated {
        /// The rank.
        rank: usize,
        /// The action.
        action: Action,
        /// The one before, which does the same work.
        earlier: Action,
    },

    /// An action before another that it needs.
    #[error("rank {rank}: {action} needs {needs} before it")]
    Early {
        /// The rank.
        rank: usize,
        /// The action.
        action: Action,
        /// What it needs.
        needs: Action,
    },

    /// An action that is not there.
    #[error("rank {rank} never runs {action}")]
    Missing {
        /// The rank.
        rank: usize,
        /// The action.
        action: Action,
    },

    /// An overlapped pair that is not a forward and a backward pass.
    #[error(
        "rank {rank}: {action} cannot overlap: a pair is a forward pass, then a backward pass (B or I)"
    )]
    NotAPair {
        /// The rank.
        rank: usize,
        /// The action.
        action: Action,
    },

    /// Ranks that wait for each other.
    #[error("deadlock: {}", waits(.cycle))]
    Deadlock {
        /// The ranks of the circle. Each waits for the next, the last for the first.
        cycle: Vec<Wait>,
    },

    /// A bound on gathered stages that a rank exceeds.
    #[error(
        "{action} needs the parameters of {needed} stages, but at most {resident} may be gathered"
    )]
    FewResident {
        /// The action that needs more.
        action: Action,
        /// The number of its stages.
        needed: usize,
        /// The bound.
        resident: usize,
    },

    /// A duration or size that is not a finite number of at least 0, or a list of the wrong length.
    #[error("{what}: {problem}")]
    Costs {
        /// The field.
        what: &'static str,
        /// What is wrong.
        problem: String,
    },

    /// No schedule fits in the memory cap.
    #[error("no schedule fits in a memory cap of {cap}: the least cap that works is {least}")]
    MemoryCap {
        /// The cap.
        cap: f64,
        /// The smallest that works.
        least: f64,
    },
}

/// A rank that waits for another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// The rank.
    pub rank: usize,
    /// The action at which it waits.
    pub action: Action,
    /// The action for which it waits.
    pub needs: Action,
    /// The rank that should run it.
    pub peer: usize,
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Wait { rank, action, needs, peer } = self;
        write!(f, "rank {rank} waits at {action} for {needs} of rank {peer}")
    }
}

/// The circle of waiting ranks that the first of `waits` leads to. At most one entry per rank.
pub(crate) fn deadlock(waits: &[Wait]) -> Error {
    let next = |wait: &Wait| waits.iter().find(|it| it.rank == wait.peer);
    let mut path: Vec<&Wait> = Vec::new();
    let mut wait = waits.first();
    while let Some(current) = wait {
        if let Some(start) = path.iter().position(|it| it.rank == current.rank) {
            path.drain(..start);
            break;
        }
        path.push(current);
        wait = next(current);
    }
    let cycle = path.into_iter().cloned().collect();
    Error::Deadlock { cycle }
}

/// The longest circle that a message spells out.
const MAX_WAITS: usize = 8;

fn waits(cycle: &[Wait]) -> String {
    let shown = cycle.iter().take(MAX_WAITS).map(Wait::to_string);
    let mut text = shown.collect::<Vec<_>>().join("; ");
    if cycle.len() > MAX_WAITS {
        text += &format!("; and {} more ranks", cycle.len() - MAX_WAITS);
    }
    text
}

fn nearest(below: Option<usize>, above: usize) -> String {
    match below {
        Some(below) => format!("{below} or {above}"),
        None => above.to_string(),
    }
}

fn names() -> String {
    Named::ALL.map(Named::name).join(", ")
}
