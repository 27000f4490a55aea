//! Ranges of the constants of optimizers.

use meshgrad_error::bail;

use crate::Result;

/// A constant outside of its range.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OutOfRange {
    pub(crate) name: &'static str,
    pub(crate) value: f64,
    /// The allowed values.
    pub(crate) allowed: &'static str,
}

/// The constants that are outside of their ranges.
#[derive(Default)]
pub(crate) struct Ranges(pub(crate) Vec<OutOfRange>);

impl Ranges {
    pub(super) fn require(
        mut self,
        name: &'static str,
        value: f64,
        allowed: &'static str,
        holds: bool,
    ) -> Ranges {
        if !holds {
            self.0.push(OutOfRange { name, value, allowed });
        }
        self
    }

    pub(super) fn decay(self, name: &'static str, value: f64) -> Ranges {
        self.require(name, value, "in [0, 1)", (0.0..1.0).contains(&value))
    }

    pub(super) fn not_negative(self, name: &'static str, value: f64) -> Ranges {
        let holds = value.is_finite() && value >= 0.0;
        self.require(name, value, "finite and at least 0", holds)
    }

    pub(super) fn positive(self, name: &'static str, value: f64) -> Ranges {
        let holds = value.is_finite() && value > 0.0;
        self.require(name, value, "finite and above 0", holds)
    }

    pub(super) fn finite(self, name: &'static str, value: f64) -> Ranges {
        self.require(name, value, "finite", value.is_finite())
    }

    /// # Errors
    /// With the first that is outside.
    pub(super) fn check(self, optimizer: &'static str) -> Result<()> {
        let Some(OutOfRange { name, value, allowed }) = self.0.into_iter().next() else {
            return Ok(());
        };
        bail!(Invalid, "{optimizer}: {name} is {value}, but must be {allowed}")
    }
}
