//! All errors in settings, with the values, their sources and the remedies.

use std::fmt;

use meshgrad_error::{Error, Kind, error};

use super::source::Source;
use super::text;

/// All errors in settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violations(pub(super) Vec<Error>);

impl Violations {
    /// The violations, at least one.
    pub fn all(&self) -> &[Error] {
        &self.0
    }
}

impl std::error::Error for Violations {}

impl From<Violations> for Error {
    fn from(violations: Violations) -> Error {
        Error::with_details(Kind::Invalid, violations)
    }
}

/// One line per violation.
impl fmt::Display for Violations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [one] => one.fmt(f),
            all => {
                write!(f, "{} errors in the settings:", all.len())?;
                all.iter().try_for_each(|one| write!(f, "\n  - {one}"))
            }
        }
    }
}

/// An unknown key, with a similar key or all keys.
pub(super) fn unknown_key<'a>(
    key: &str,
    location: &Source,
    known: impl IntoIterator<Item = &'a str>,
) -> Error {
    let known: Vec<&str> = known.into_iter().collect();
    error!(Invalid, "unknown key `{key}` ({location}){}", text::nearest(key, &known))
}
