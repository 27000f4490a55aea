//! Ranks that wait for each other.

use std::fmt;

use meshgrad_error::{Result, bail};

use crate::Action;

/// A rank that waits for another one.
pub(crate) struct Wait {
    pub(crate) rank: usize,
    /// The action at which it waits.
    pub(crate) action: Action,
    /// The action for which it waits.
    pub(crate) needs: Action,
    /// The rank that should run it.
    pub(crate) peer: usize,
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Wait { rank, action, needs, peer } = self;
        write!(f, "rank {rank} waits at {action} for {needs} of rank {peer}")
    }
}

/// The longest circle that a message spells out.
const MAX_WAITS: usize = 8;

/// Fails with the circle of waiting ranks that the first of `waits` leads to. At most one entry per
/// rank.
pub(crate) fn check_progress(waits: &[Wait]) -> Result<()> {
    let mut cycle: Vec<&Wait> = Vec::new();
    let mut next = waits.first();
    while let Some(wait) = next {
        if let Some(start) = cycle.iter().position(|it| it.rank == wait.rank) {
            cycle.drain(..start);
            break;
        }
        cycle.push(wait);
        next = waits.iter().find(|it| it.rank == wait.peer);
    }
    if cycle.is_empty() {
        return Ok(());
    }
    let shown = cycle.iter().take(MAX_WAITS).map(|it| it.to_string());
    let mut text = shown.collect::<Vec<_>>().join("; ");
    if cycle.len() > MAX_WAITS {
        text += &format!("; and {} more ranks", cycle.len() - MAX_WAITS);
    }
    bail!(Stuck, "deadlock: {text}")
}
