//! Errors in the text of a map.

use super::template::TemplateError;

/// A map that cannot be parsed, and the position of the error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {problem}")]
pub struct MapError {
    /// The line, from 1.
    pub line: usize,
    /// The character in the line, from 1.
    pub column: usize,
    /// The problem.
    pub problem: MapErrorKind,
}

/// The problem of a map.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MapErrorKind {
    /// A syntax error.
    #[error("expected {expected}, found {found}")]
    Expected {
        /// The expected element.
        expected: &'static str,
        /// The text found.
        found: String,
    },
    /// Too many nested operations.
    #[error("more than {limit} nested operations: split the rule in two, or the map")]
    TooDeep {
        /// The maximum.
        limit: usize,
    },
    /// An unterminated quote.
    #[error("a quoted name must end on the line on which it starts")]
    Quote,
    /// A name that is not a template.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// An unknown operation.
    #[error("unknown operation `{name}`; the operations are {known}")]
    Operation {
        /// The name.
        name: String,
        /// All operations.
        known: String,
    },
    /// A missing argument.
    #[error("{op} needs {what}: {usage}")]
    Missing {
        /// The operation.
        op: &'static str,
        /// The argument.
        what: &'static str,
        /// The operation's syntax.
        usage: &'static str,
    },
    /// An excess argument.
    #[error("{op} takes no {what}: {usage}")]
    TooMany {
        /// The operation.
        op: &'static str,
        /// The argument.
        what: String,
        /// The operation's syntax.
        usage: &'static str,
    },
    /// An invalid argument.
    #[error("{what} must be {expected}, not `{}`", found.escape_debug())]
    Value {
        /// The argument.
        what: &'static str,
        /// What it must be.
        expected: &'static str,
        /// Its text.
        found: String,
    },
    /// A capture on one side only.
    #[error(
        "`{{{capture}}}` is only on the {side} side: use it on both, or write `each={capture}` in \
         the operation that iterates over it"
    )]
    OneSide {
        /// The capture.
        capture: String,
        /// `left` or `right`.
        side: &'static str,
    },
    /// No name on a side has all captures.
    #[error(
        "no name on the {side} side has all of {}: one name must determine the tensors",
        listed(captures)
    )]
    Scattered {
        /// `left` or `right`.
        side: &'static str,
        /// The captures of the rule.
        captures: Vec<String>,
    },
    /// An operation iterates over a capture that its operand lacks.
    #[error("each={0}: the operand has no capture `{{{0}}}` that is a number or a choice")]
    NothingToGoOver(String),
}

fn listed(captures: &[String]) -> String {
    let braced: Vec<String> = captures.iter().map(|it| format!("`{{{it}}}`")).collect();
    braced.join(", ")
}
