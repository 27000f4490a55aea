//! Goals and whether they were met.

use serde_json::{Value, json};

/// A measured number and its limit.
pub(super) struct Goal {
    id: &'static str,
    what: String,
    /// `None` without clean samples.
    measured: Option<f64>,
    limit: f64,
    is_least: bool,
    is_hard: bool,
}

impl Goal {
    pub(super) fn at_least(
        id: &'static str,
        what: &str,
        measured: impl Into<Option<f64>>,
        limit: f64,
    ) -> Goal {
        Goal {
            id,
            what: what.to_owned(),
            measured: measured.into(),
            limit,
            is_least: true,
            is_hard: false,
        }
    }

    pub(super) fn at_most(
        id: &'static str,
        what: &str,
        measured: impl Into<Option<f64>>,
        limit: f64,
    ) -> Goal {
        Goal { is_least: false, ..Goal::at_least(id, what, measured, limit) }
    }

    /// Marks a goal that does not depend on the clock: missing it is a failure.
    pub(super) fn hard(self) -> Goal {
        Goal { is_hard: true, ..self }
    }

    fn is_met(&self) -> Option<bool> {
        self.measured.map(|measured| match self.is_least {
            true => measured >= self.limit,
            false => measured <= self.limit,
        })
    }

    /// Whether a hard goal was missed.
    pub(super) fn is_failure(&self) -> bool {
        self.is_hard && self.is_met() != Some(true)
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "id": self.id,
            "what": self.what,
            "measured": self.measured.map(|it| (it * 1e4).round() / 1e4),
            "goal": format!("{} {}", if self.is_least { "at least" } else { "at most" }, self.limit),
            "met": self.is_met(),
            "hard": self.is_hard,
        })
    }

    pub(super) fn row(&self) -> String {
        let sign = if self.is_least { ">=" } else { "<=" };
        let measured = self.measured.map_or("-".to_owned(), |it| format!("{it:.3}"));
        let met = match self.is_met() {
            Some(true) => "met",
            Some(false) => "missed",
            None => "not measured",
        };
        let (id, what, limit) = (self.id, &self.what, self.limit);
        format!("| {id} | {what} | {sign} {limit} | {measured} | {met} |")
    }
}
