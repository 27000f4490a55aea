//! Mismatches between a map, the source tensors and the requested targets. All of them are reported
//! together, before any data is read.

use std::collections::BTreeSet;
use std::fmt;

use meshgrad_error::{Error, Result, error};

use super::template::Template;
use crate::Dtype;
use crate::graph::TensorType;

/// The result of binding a map.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// All problems, in the order of the map.
    pub problems: Vec<Problem>,
    /// Problems that were allowed.
    pub allowed: Vec<Problem>,
    /// Tensors that are converted to a wider float type.
    pub widened: usize,
    /// Outputs that were not requested, such as layers of other pipeline stages, and sources that
    /// only these would use.
    pub skipped: usize,
}

/// The most problems of a kind that a report lists.
pub(super) const SHOWN: usize = 10;

/// A mismatch.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Problem {
    /// A source of a target is missing.
    Missing {
        /// Its name.
        name: String,
        /// The line of the map that needs it.
        line: usize,
        /// A similar name that exists.
        near: Option<String>,
    },
    /// A target that no rule produces.
    Unmade {
        /// Its name.
        name: String,
    },
    /// A source that no rule uses.
    Unexpected {
        /// Its name.
        name: String,
    },
    /// A source that no target of a whole model uses.
    Unused {
        /// Its name.
        name: String,
    },
    /// A source that is only partly used.
    PartlyUsed {
        /// Its name.
        name: String,
        /// Elements that are used.
        used: u64,
        /// Elements that it has.
        elements: u64,
    },
    /// An output has a different shape, or another kind of dtype, than its target.
    Mismatched {
        /// Its name.
        name: String,
        /// The type that the map produces.
        actual: TensorType,
        /// The type that the request asks for.
        expected: TensorType,
        /// The line of the map that produces it.
        line: usize,
    },
    /// A conversion that loses precision.
    Narrowed {
        /// The output.
        name: String,
        /// Its dtype before the conversion.
        from: Dtype,
        /// Its dtype after it.
        to: Dtype,
    },
    /// Two rules produce the same tensor.
    MadeTwice {
        /// Its name.
        name: String,
        /// The line of one rule.
        line: usize,
        /// The line of the other.
        before: usize,
    },
    /// A rule that matches no source, and is not optional.
    Unmatched {
        /// Its first name.
        name: String,
        /// The line of the map.
        line: usize,
        /// The way out.
        hint: String,
    },
    /// A source that the map copies to another name, while a rule that keeps all other names skips
    /// it.
    Dropped {
        /// Its name.
        name: String,
        /// The output.
        output: String,
        /// The line of the map.
        line: usize,
    },
    /// A source that cannot be read.
    Unreadable {
        /// Its name.
        name: String,
        /// The reason.
        error: Error,
    },
    /// A rule cannot be applied to the source tensors.
    Impossible {
        /// The line of the map.
        line: usize,
        /// The values of the captures, as in `l=3`.
        captures: String,
        /// The reason.
        error: Error,
    },
    /// A rule cannot be solved for the names on its left side.
    Unsolvable {
        /// The line of the map.
        line: usize,
        /// The operation on the left side.
        op: &'static str,
        /// The reason, and the remedy.
        message: String,
    },
}

/// Problems to ignore: kinds of problems, for names that match a template.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AllowedProblems(Vec<(ProblemKind, Template)>);

/// The kinds of problems that can be allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProblemKind {
    /// [`Problem::Unmade`]: the load does not write the target.
    Unmade,
    /// [`Problem::Unexpected`] and [`Problem::Unused`].
    Unexpected,
    /// [`Problem::PartlyUsed`].
    PartlyUsed,
    /// [`Problem::Narrowed`].
    Narrowed,
    /// [`Problem::Unmatched`]: the rule does nothing.
    Unmatched,
    /// [`Problem::Dropped`]: the copy is a renaming.
    Dropped,
}

impl ProblemKind {
    const ALL: [(&'static str, ProblemKind); 6] = [
        ("unmade", ProblemKind::Unmade),
        ("unexpected", ProblemKind::Unexpected),
        ("partly-used", ProblemKind::PartlyUsed),
        ("narrowed", ProblemKind::Narrowed),
        ("unmatched", ProblemKind::Unmatched),
        ("dropped", ProblemKind::Dropped),
    ];
}

impl AllowedProblems {
    /// Allows no problem.
    pub fn none() -> AllowedProblems {
        AllowedProblems::default()
    }

    /// Allows these kinds of problems, for all names.
    pub(super) fn of(kinds: &[ProblemKind]) -> AllowedProblems {
        let all = |kind: &ProblemKind| (*kind, Template::whole("all"));
        AllowedProblems(kinds.iter().map(all).collect())
    }

    /// Also allows a kind of problem, for names that match a template, as in
    /// `unexpected:{r:path}.inv_freq`, or for all names, as in `narrowed`.
    ///
    /// # Errors
    /// For an unknown kind, and an invalid template.
    pub fn and(mut self, text: &str) -> Result<AllowedProblems> {
        let bad = || {
            error!(
                Invalid,
                "`{}` cannot be allowed: write KIND or KIND:TEMPLATE, as in \
                 unexpected:{{r:path}}.inv_freq; kinds are unmade, unexpected, partly-used, \
                 narrowed, unmatched and dropped",
                text.escape_debug()
            )
        };
        let (kind, template) = text.split_once(':').unwrap_or((text, "{all:path}"));
        let (_, kind) = *ProblemKind::ALL.iter().find(|(name, _)| *name == kind).ok_or_else(bad)?;
        let template = Template::parse(template, &Default::default()).map_err(|_| bad())?;
        self.0.push((kind, template));
        Ok(self)
    }

    fn covers(&self, problem: &Problem) -> bool {
        let Some((kind, name)) = problem.kind() else {
            return false;
        };
        let matching = |(allowed, template): &(ProblemKind, Template)| {
            *allowed == kind && template.matches(name).is_some()
        };
        self.0.iter().any(matching)
    }
}

impl Problem {
    /// Its kind and the name of its tensor; `None` if it cannot be allowed.
    fn kind(&self) -> Option<(ProblemKind, &str)> {
        match self {
            Problem::Unmade { name } => Some((ProblemKind::Unmade, name)),
            Problem::Unexpected { name } | Problem::Unused { name } => {
                Some((ProblemKind::Unexpected, name))
            }
            Problem::PartlyUsed { name, .. } => Some((ProblemKind::PartlyUsed, name)),
            Problem::Narrowed { name, .. } => Some((ProblemKind::Narrowed, name)),
            Problem::Unmatched { name, .. } => Some((ProblemKind::Unmatched, name)),
            Problem::Dropped { name, .. } => Some((ProblemKind::Dropped, name)),
            _ => None,
        }
    }
}

impl Problem {
    /// The tensor that is not used, or only partly.
    pub(super) fn left_out(&self) -> Option<&str> {
        match self {
            Problem::Unexpected { name }
            | Problem::Unused { name }
            | Problem::PartlyUsed { name, .. } => Some(name),
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

    /// Moves allowed problems to the list of allowed ones.
    pub(super) fn allow(&mut self, allowed: &AllowedProblems) {
        let problems = std::mem::take(&mut self.problems);
        let (accepted, left) = problems.into_iter().partition(|it| allowed.covers(it));
        self.problems = left;
        self.allowed = accepted;
    }

    /// The kinds of problems that [`AllowedProblems::and`] accepts, each once.
    pub fn allowable(&self) -> Vec<&'static str> {
        let kinds = ProblemKind::ALL.iter().filter(|(_, kind)| {
            let mut problems = self.problems.iter().filter_map(Problem::kind);
            problems.any(|(of, _)| of == *kind)
        });
        kinds.map(|(name, _)| *name).collect()
    }

    /// Whether there are no problems.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Missing { name, line, near } => {
                let name = name.escape_debug();
                write!(f, "missing: `{name}`, required by line {line} of the map")?;
                match near {
                    Some(near) => write!(f, "; did you mean `{}`?", near.escape_debug()),
                    None => Ok(()),
                }
            }
            Problem::Unmade { name } => write!(
                f,
                "unmade: `{}` is requested, but no rule produces it from the available tensors",
                name.escape_debug()
            ),
            Problem::Unexpected { name } => {
                write!(f, "unexpected: no rule uses `{}`", name.escape_debug())
            }
            Problem::Unused { name } => {
                write!(f, "unexpected: the model does not use `{}`", name.escape_debug())
            }
            Problem::PartlyUsed { name, used, elements } => {
                write!(f, "partly used: {used} of {elements} elements of `{}`", name.escape_debug())
            }
            Problem::Mismatched { name, actual, expected, line } => write!(
                f,
                "mismatched: `{}` should be {} {:?}, but line {line} of the map produces {} {:?}",
                name.escape_debug(),
                expected.0,
                expected.1,
                actual.0,
                actual.1
            ),
            Problem::Narrowed { name, from, to } => {
                write!(f, "narrowed: `{}` from {from} to {to} loses precision", name.escape_debug())
            }
            Problem::MadeTwice { name, line, before } => write!(
                f,
                "made twice: lines {} and {} of the map both produce `{}`",
                before.min(line),
                before.max(line),
                name.escape_debug()
            ),
            Problem::Unmatched { name, line, hint } => write!(
                f,
                "unmatched: line {line} of the map: no tensor matches `{}`; {hint}",
                name.escape_debug()
            ),
            Problem::Dropped { name, output, line } => {
                let (name, output) = (name.escape_debug(), output.escape_debug());
                write!(
                    f,
                    "dropped: `{name}` is written as `{output}` by line {line} of the map and under no \
                     other name; to keep both, add `{name} = {name}`; to rename it, write `{output} = \
                     rename({name})`"
                )
            }
            Problem::Unreadable { name, error } => {
                write!(f, "unreadable: `{}`: {error}", name.escape_debug())
            }
            Problem::Impossible { line, captures, error } => {
                let space = if captures.is_empty() { "" } else { " with " };
                write!(f, "impossible: line {line} of the map{space}{captures}: {error}")
            }
            Problem::Unsolvable { line, op, message } => {
                write!(f, "unsolvable: line {line} of the map: {op} on the left side: {message}")
            }
        }
    }
}

impl fmt::Display for Report {
    /// The problems, one per line, at most ten of a kind.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.problems.len();
        write!(f, "{count} problem{}", if count == 1 { "" } else { "s" })?;

        let kind = |problem: &Problem| {
            let text = problem.to_string();
            text.split(':').next().unwrap_or_default().to_owned()
        };
        let kinds: BTreeSet<String> = self.problems.iter().map(kind).collect();
        for of_kind in kinds {
            let alike: Vec<&Problem> =
                self.problems.iter().filter(|it| kind(it) == of_kind).collect();
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
