//! What does not fit between a map, the tensors there are and the tensors wanted: everything at
//! once, before any data is read.

use std::collections::BTreeSet;
use std::fmt;

use super::template::Template;
use crate::Dtype;
use crate::graph::{GraphError, TensorType};

/// What binding a map found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Everything that stands in the way, in the order of the map.
    pub problems: Vec<Problem>,
    /// What would have stood in the way, had it not been waived.
    pub allowed: Vec<Problem>,
    /// Tensors that are converted to a wider float type.
    pub widened: usize,
    /// Tensors that the map speaks of and nobody wants, such as other stages' layers.
    pub skipped: usize,
}

/// One thing that does not fit.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Problem {
    /// A tensor that a wanted one is made of is not there.
    Missing {
        /// Its name.
        name: String,
        /// The line of the map that needs it.
        line: usize,
    },
    /// A wanted tensor that no rule makes.
    Unmade {
        /// Its name.
        name: String,
    },
    /// A tensor that is there and used by nothing.
    Unexpected {
        /// Its name.
        name: String,
    },
    /// A tensor some of whose elements are used by nothing.
    PartlyUsed {
        /// Its name.
        name: String,
        /// Elements that are used.
        used: u64,
        /// Elements that it has.
        elements: u64,
    },
    /// A tensor is made with another shape, or of another kind, than is wanted.
    Mismatched {
        /// Its name.
        name: String,
        /// The type that the map produces.
        actual: TensorType,
        /// The type that the request asks for.
        expected: TensorType,
        /// The line of the map that makes it.
        line: usize,
    },
    /// A conversion that loses digits.
    Narrowed {
        /// The tensor that is made.
        name: String,
        /// Its dtype before.
        from: Dtype,
        /// Its dtype after.
        to: Dtype,
    },
    /// Two rules make one tensor.
    MadeTwice {
        /// Its name.
        name: String,
        /// The line that makes it.
        line: usize,
        /// The line that made it before.
        before: usize,
    },
    /// A tensor that is there and cannot be read.
    Unreadable {
        /// Its name.
        name: String,
        /// Why not.
        error: GraphError,
    },
    /// A rule cannot be carried out with the tensors there are.
    Impossible {
        /// The line of the map.
        line: usize,
        /// What the captures stand for, as `l=3`.
        captures: String,
        /// Why not.
        error: GraphError,
    },
    /// A rule cannot be solved for the names on its left side.
    Unsolvable {
        /// The line of the map.
        line: usize,
        /// The operation on the left side.
        op: &'static str,
        /// Why not, and what to write.
        message: String,
    },
}

/// Which problems do not count: kinds of them, for names that match a template.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AllowedProblems(Vec<(ProblemKind, Template)>);

/// The kinds of problems that can be waived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProblemKind {
    /// [`Problem::Unmade`]: stays as it was.
    Unmade,
    /// [`Problem::Unexpected`].
    Unexpected,
    /// [`Problem::PartlyUsed`].
    PartlyUsed,
    /// [`Problem::Narrowed`].
    Narrowed,
}

impl ProblemKind {
    const ALL: [(&'static str, ProblemKind); 4] = [
        ("unmade", ProblemKind::Unmade),
        ("unexpected", ProblemKind::Unexpected),
        ("partly-used", ProblemKind::PartlyUsed),
        ("narrowed", ProblemKind::Narrowed),
    ];
}

/// A text is no waiver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{}` is no waiver: write KIND or KIND:TEMPLATE, as in unexpected:{{r:path}}.inv_freq; kinds \
     are unmade, unexpected, partly-used and narrowed", .0.escape_debug()
)]
pub struct InvalidAllowance(pub String);

impl AllowedProblems {
    /// Nothing is waived.
    pub fn none() -> AllowedProblems {
        AllowedProblems::default()
    }

    /// Waives a kind of problem for names that match, as in `unexpected:{r:path}.inv_freq`; for
    /// all names without a template, as in `narrowed`.
    ///
    /// # Errors
    /// [`InvalidAllowance`].
    pub fn and(mut self, text: &str) -> Result<AllowedProblems, InvalidAllowance> {
        let bad = || InvalidAllowance(text.to_owned());
        let (kind, template) = text.split_once(':').unwrap_or((text, "{all:path}"));
        let (_, kind) = *ProblemKind::ALL
            .iter()
            .find(|(name, _)| *name == kind)
            .ok_or_else(bad)?;
        let template = Template::parse(template, &Default::default()).map_err(|_| bad())?;
        self.0.push((kind, template));
        Ok(self)
    }

    fn covers(&self, problem: &Problem) -> bool {
        let Some((kind, name)) = problem.kind() else {
            return false;
        };
        let matching = |(waived, template): &(ProblemKind, Template)| {
            *waived == kind && template.matches(name).is_some()
        };
        self.0.iter().any(matching)
    }
}

impl Problem {
    /// What it is called in a waiver, and the name it is about; `None` if it cannot be waived.
    fn kind(&self) -> Option<(ProblemKind, &str)> {
        match self {
            Problem::Unmade { name } => Some((ProblemKind::Unmade, name)),
            Problem::Unexpected { name } => Some((ProblemKind::Unexpected, name)),
            Problem::PartlyUsed { name, .. } => Some((ProblemKind::PartlyUsed, name)),
            Problem::Narrowed { name, .. } => Some((ProblemKind::Narrowed, name)),
            _ => None,
        }
    }
}

impl Report {
    pub(super) fn add(&mut self, problem: Problem) {
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    /// Moves what is waived out of the way.
    pub(super) fn allow(&mut self, allowed: &AllowedProblems) {
        let problems = std::mem::take(&mut self.problems);
        let (accepted, left) = problems.into_iter().partition(|it| allowed.covers(it));
        self.problems = left;
        self.allowed = accepted;
    }

    /// Whether nothing stands in the way.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Missing { name, line } => write!(
                f,
                "missing: `{}`, needed by line {line} of the map",
                name.escape_debug()
            ),
            Problem::Unmade { name } => write!(
                f,
                "unmade: `{}` is wanted, and no rule makes it of what is there",
                name.escape_debug()
            ),
            Problem::Unexpected { name } => write!(
                f,
                "unexpected: `{}` is there, and no rule uses it",
                name.escape_debug()
            ),
            Problem::PartlyUsed {
                name,
                used,
                elements,
            } => write!(
                f,
                "partly used: {used} of {elements} elements of `{}`",
                name.escape_debug()
            ),
            Problem::Mismatched {
                name,
                actual,
                expected,
                line,
            } => write!(
                f,
                "mismatched: `{}` should be {} {:?}, but line {line} of the map makes {} {:?}",
                name.escape_debug(),
                expected.0,
                expected.1,
                actual.0,
                actual.1
            ),
            Problem::Narrowed { name, from, to } => write!(
                f,
                "narrowed: `{}` from {from} to {to} loses digits",
                name.escape_debug()
            ),
            Problem::MadeTwice { name, line, before } => write!(
                f,
                "made twice: `{}` by lines {before} and {line} of the map",
                name.escape_debug()
            ),
            Problem::Unreadable { name, error } => {
                write!(f, "unreadable: `{}`: {error}", name.escape_debug())
            }
            Problem::Impossible {
                line,
                captures,
                error,
            } => {
                let space = if captures.is_empty() { "" } else { " with " };
                write!(
                    f,
                    "impossible: line {line} of the map{space}{captures}: {error}"
                )
            }
            Problem::Unsolvable { line, op, message } => {
                write!(
                    f,
                    "unsolvable: line {line} of the map: {op} on the left side: {message}"
                )
            }
        }
    }
}

impl fmt::Display for Report {
    /// The problems, a line each, at most ten of a kind.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 10;
        let count = self.problems.len();
        write!(f, "{count} problem{}", if count == 1 { "" } else { "s" })?;

        let kind = |problem: &Problem| {
            let text = problem.to_string();
            text.split(':').next().unwrap_or_default().to_owned()
        };
        let kinds: BTreeSet<String> = self.problems.iter().map(kind).collect();
        for of_kind in kinds {
            let alike: Vec<&Problem> = self
                .problems
                .iter()
                .filter(|it| kind(it) == of_kind)
                .collect();
            for problem in alike.iter().take(SHOWN) {
                write!(f, "\n  {problem}")?;
            }
            if alike.len() > SHOWN {
                write!(f, "\n  {of_kind}: {} more", alike.len() - SHOWN)?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Report {}
