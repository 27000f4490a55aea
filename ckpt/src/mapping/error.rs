//! What is wrong with a map.

use super::template::TemplateError;

/// A map that cannot be read, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {problem}")]
pub struct MapError {
    /// The line, from 1.
    pub line: usize,
    /// The character in the line, from 1.
    pub column: usize,
    /// What is wrong.
    pub problem: MapErrorKind,
}

/// What is wrong with a map.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MapErrorKind {
    /// Something else was expected.
    #[error("{expected} should be here, not {found}")]
    Expected {
        /// What should be here.
        expected: &'static str,
        /// What is here.
        found: String,
    },
    /// Operations inside of operations, too many of them.
    #[error("more than {limit} operations inside of each other: make it in two rules, or two maps")]
    TooDeep {
        /// The most.
        limit: usize,
    },
    /// A quote without its partner in the line.
    #[error("a quoted name must end in the line in which it begins")]
    Quote,
    /// A name that is no template.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// An operation that there is not.
    #[error("there is no operation `{name}`; there are {known}")]
    Operation {
        /// The name.
        name: String,
        /// All names.
        known: String,
    },
    /// An argument that is not there.
    #[error("{op} needs {what}: {usage}")]
    Missing {
        /// The operation.
        op: &'static str,
        /// What is missing.
        what: &'static str,
        /// How it is written.
        usage: &'static str,
    },
    /// An argument too many.
    #[error("{op} takes no {what}: {usage}")]
    TooMany {
        /// The operation.
        op: &'static str,
        /// What is too many.
        what: String,
        /// How it is written.
        usage: &'static str,
    },
    /// An argument that is not what it should be.
    #[error("{what} should be {expected}, not `{}`", found.escape_debug())]
    Value {
        /// The argument.
        what: &'static str,
        /// What it should be.
        expected: &'static str,
        /// What it is.
        found: String,
    },
    /// A capture on one side only.
    #[error(
        "`{{{capture}}}` is on the {side} side only: name it on both, or say `each={capture}` in \
         the operation that goes over it"
    )]
    OneSide {
        /// The capture.
        capture: String,
        /// `left` or `right`.
        side: &'static str,
    },
    /// No name of a side has all captures.
    #[error(
        "no name on the {side} side has all of {}: one of them must say which tensors there are",
        listed(captures)
    )]
    Scattered {
        /// `left` or `right`.
        side: &'static str,
        /// The captures of the rule.
        captures: Vec<String>,
    },
    /// An operation goes over a capture that its operand does not have.
    #[error("each={0}: the operand has no `{{{0}}}` that is a number or a choice")]
    NothingToGoOver(String),
}

fn listed(captures: &[String]) -> String {
    let braced: Vec<String> = captures.iter().map(|it| format!("`{{{it}}}`")).collect();
    braced.join(", ")
}
