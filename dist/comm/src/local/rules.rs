//! The settings of a world: its clock, limits and links.

use std::time::Duration;

use meshgrad_collectives::Clock;

use super::links::Links;

pub(super) struct Rules {
    pub(super) clock: Clock,
    /// The threads of each rank.
    pub(super) threads: usize,
    /// The time limit of a collective whose group does not set one.
    pub(super) deadline: Duration,
    pub(super) grace: Option<Duration>,
    /// Whether each collective waits for all members before the call returns.
    pub(super) is_strict: bool,
    pub(super) links: Option<Links>,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules {
            clock: Clock::real(),
            threads: 1,
            deadline: Duration::MAX,
            grace: None,
            is_strict: false,
            links: None,
        }
    }
}

impl Rules {
    /// How long a collective waits after its time `limit` for ranks that are only late.
    pub(super) fn grace(&self, limit: Duration) -> Duration {
        self.grace.unwrap_or(limit / 10)
    }
}
