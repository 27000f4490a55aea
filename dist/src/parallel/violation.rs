//! What can be wrong with settings: each names the values, where they came from, and the way out.

use std::fmt;

use super::source::Source;

/// One thing that is wrong with settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// A file or text that cannot be read at all.
    #[error("{place}: {problem}")]
    Unreadable {
        /// Where it is.
        place: Source,
        /// What is wrong, and the way out.
        problem: String,
    },

    /// A key that means nothing.
    #[error("`{key}` ({place}) is no setting{}", suggestion(.nearest))]
    UnknownKey {
        /// The key.
        key: String,
        /// Where it is.
        place: Source,
        /// A key that is near.
        nearest: Option<String>,
    },

    /// A degree that is no number.
    #[error("{name} is `{text}` ({place}): a degree is a whole number of at least 1, or `auto`")]
    NotADegree {
        /// The degree.
        name: String,
        /// What was given for it.
        text: String,
        /// Where it is.
        place: Source,
    },

    /// A setting of another library that means nothing here.
    #[error("{what} ({place}) is not supported: {fix}")]
    Unsupported {
        /// The setting and its value.
        what: String,
        /// Where it is.
        place: Source,
        /// The way out.
        fix: String,
    },

    /// A value that was set twice, differently.
    #[error("{name} is {first} ({first_source}) and {second} ({second_source}): set it once")]
    Conflict {
        /// What was set.
        name: String,
        /// One value.
        first: String,
        /// Where it came from.
        first_source: Source,
        /// The other value.
        second: String,
        /// Where that came from.
        second_source: Source,
    },
}

fn suggestion(nearest: &Option<String>) -> String {
    match nearest {
        Some(name) => format!("; did you mean `{name}`?"),
        None => "; take it out".to_owned(),
    }
}

/// All that is wrong with settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violations(pub(super) Vec<Violation>);

impl Violations {
    /// Each of them; there is at least one.
    pub fn all(&self) -> &[Violation] {
        &self.0
    }
}

impl std::error::Error for Violations {}

/// One line each.
impl fmt::Display for Violations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.iter().map(Violation::to_string).collect();
        match lines.as_slice() {
            [line] => f.write_str(line),
            lines => {
                write!(f, "{} things are wrong:", lines.len())?;
                lines.iter().try_for_each(|line| write!(f, "\n  - {line}"))
            }
        }
    }
}
