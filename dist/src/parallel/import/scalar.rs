//! Scalar values of configuration files.

use std::fmt;
use std::time::Duration;

use meshgrad_error::error;
use meshgrad_mesh::Size;

use crate::parallel::degree::not_a_degree;
use crate::parallel::{Parallelism, Settings, Source};

/// A value of a configuration file that is neither a list nor a table.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Scalar {
    Nothing,
    Integer(i64),
    Truth(bool),
    Text(String),
    /// Anything else, as written.
    Other(String),
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scalar::Nothing => f.write_str("null"),
            Scalar::Integer(number) => write!(f, "{number}"),
            Scalar::Truth(truth) => write!(f, "{truth}"),
            Scalar::Text(text) | Scalar::Other(text) => f.write_str(text),
        }
    }
}

impl Scalar {
    /// The value as a count.
    pub(super) fn count(&self) -> Option<usize> {
        match self {
            Scalar::Integer(number) => usize::try_from(*number).ok(),
            _ => None,
        }
    }

    fn size(&self) -> Option<Size> {
        match self {
            Scalar::Text(text) if text == "auto" => Some(Size::Auto),
            other => other.count().map(Size::Ranks),
        }
    }

    /// Sets a degree: a number or `auto`.
    pub(super) fn set_degree(&self, settings: &mut Settings, kind: Parallelism, location: Source) {
        match self.size() {
            Some(size) => settings.set(kind, size, location),
            None => settings.add_violation(not_a_degree(kind, self, &location)),
        };
    }

    /// A count; anything else is a violation.
    pub(super) fn count_or_reject(
        &self,
        settings: &mut Settings,
        expected: &str,
        location: &Source,
    ) -> Option<usize> {
        let count = self.count();
        if count.is_none() {
            self.reject(settings, expected, location);
        }
        count
    }

    /// A string; anything else is a violation.
    pub(super) fn text_or_reject(
        &self,
        settings: &mut Settings,
        expected: &str,
        location: &Source,
    ) -> Option<String> {
        match self {
            Scalar::Text(text) => Some(text.clone()),
            _ => {
                self.reject(settings, expected, location);
                None
            }
        }
    }

    /// A number of seconds; anything else is a violation.
    pub(super) fn seconds_or_reject(
        &self,
        settings: &mut Settings,
        location: &Source,
    ) -> Option<Duration> {
        let seconds = self.count_or_reject(settings, "a number of seconds", location)?;
        Some(Duration::from_secs(seconds as u64))
    }

    /// Adds a violation: this value is not what was expected.
    pub(super) fn reject(&self, settings: &mut Settings, expected: &str, location: &Source) {
        settings.add_violation(error!(Invalid, "{location}: `{self}` is not {expected}"));
    }
}
