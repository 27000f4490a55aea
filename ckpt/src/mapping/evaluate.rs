//! A side of a rule, made of the tensors there are.

use std::sync::Arc;

use super::TensorSpec;
use super::computations::{Dequant, Lora, Mean};
use super::named::Named;
use super::template::{Captures, Kind, Template, Value};
use super::term::{Action, Call, Term};
use crate::graph::{Computation, Expr, Graph, GraphError};

/// The tensors that names stand for.
#[derive(Clone, Debug, Default)]
pub(super) struct Tensors {
    pub(super) graph: Graph,
    pub(super) named: Named,
}

/// What evaluating a term comes to, beside its value.
#[derive(Default)]
pub(super) struct Evaluated {
    /// Tensors that were used.
    pub(super) used: Vec<Expr>,
    /// Names that are not there.
    pub(super) missing: Vec<String>,
    /// Pairs that must be equal, the first of which is used.
    pub(super) ties: Vec<(String, String)>,
    pub(super) error: Option<GraphError>,
}

/// Gaps among numbers are reported one by one, up to this many.
const MOST_GAPS: u64 = 1000;

impl Tensors {
    /// Tensors to be read; and those that are none, each with why not.
    pub(super) fn of(specs: &[TensorSpec]) -> (Tensors, Vec<(String, GraphError)>) {
        let (mut graph, mut named) = (Graph::new(), Vec::with_capacity(specs.len()));
        let mut unreadable = Vec::new();
        for spec in specs {
            match graph.source(&spec.name, spec.dtype, &spec.shape) {
                Ok(expr) => named.push((spec.name.as_str().into(), expr)),
                Err(error) => unreadable.push((spec.name.clone(), error)),
            }
        }
        let named = named.into_iter().collect();
        (Tensors { graph, named }, unreadable)
    }

    /// The names that a template matches and that agree with `captures`.
    pub(super) fn matching<'t>(
        &'t self,
        template: &'t Template,
        captures: &'t Captures,
    ) -> impl Iterator<Item = (&'t str, Captures)> {
        let prefix = template.prefix(captures);
        self.named
            .beginning_with(&prefix)
            .filter_map(move |(name, _)| {
                let found = template.matches(name)?;
                let agrees = |(capture, value): (&str, &Value)| {
                    captures.get(capture).is_none_or(|known| known == value)
                };
                let agree = found.iter().all(agrees);
                agree.then_some((name, found))
            })
    }

    /// The value of a term; `None` with the reason in `evaluated`.
    pub(super) fn value(
        &mut self,
        term: &Term,
        captures: &Captures,
        evaluated: &mut Evaluated,
    ) -> Option<Expr> {
        match term {
            Term::Name(template) => {
                let name = template.fill(captures).ok()?;
                match self.named.get(&name) {
                    Some(value) => {
                        evaluated.used.push(value);
                        Some(value)
                    }
                    None => {
                        evaluated.missing.push(name);
                        None
                    }
                }
            }
            Term::Call(call) => self.call(call, captures, evaluated),
        }
    }

    fn call(
        &mut self,
        call: &Call,
        captures: &Captures,
        evaluated: &mut Evaluated,
    ) -> Option<Expr> {
        if let Action::First { tied } = call.action {
            return self.first(&call.of, tied, captures, evaluated);
        }
        let mut operands = Vec::new();
        match (&call.each, &call.of[..]) {
            (Some(each), [of]) => {
                for value in self.values(each, of, captures, evaluated)? {
                    let captures = captures.clone().with(each, value);
                    operands.push(self.value(of, &captures, evaluated));
                }
            }
            _ => {
                for of in &call.of {
                    operands.push(self.value(of, captures, evaluated));
                }
            }
        }
        let operands: Vec<Expr> = operands.into_iter().collect::<Option<_>>()?;
        match apply(&mut self.graph, &call.action, &operands) {
            Ok(value) => Some(value),
            Err(error) => {
                evaluated.error.get_or_insert(error);
                None
            }
        }
    }

    /// The first term whose tensors are all there.
    fn first(
        &mut self,
        of: &[Term],
        tied: bool,
        captures: &Captures,
        evaluated: &mut Evaluated,
    ) -> Option<Expr> {
        let there: Vec<&Term> = of.iter().filter(|it| self.has(it, captures)).collect();
        let chosen = there.first().copied().or(of.first())?;
        let value = self.value(chosen, captures, evaluated);
        if tied {
            let name = |term: &Term| match term {
                Term::Name(template) => template.fill(captures).ok(),
                Term::Call(_) => None,
            };
            let mut names = there.into_iter().filter_map(name);
            if let Some(chosen) = names.next() {
                for other in names {
                    evaluated.used.extend(self.named.get(&other));
                    evaluated.ties.push((chosen.clone(), other));
                }
            }
        }
        value
    }

    /// Whether all names of a term are there.
    fn has(&self, term: &Term, captures: &Captures) -> bool {
        term.names()
            .into_iter()
            .all(|(template, _)| self.matching(template, captures).next().is_some())
    }

    /// What a capture stands for, one after the other: all choices, or the numbers from 0 to the
    /// greatest that a name has.
    fn values(
        &self,
        each: &Arc<str>,
        of: &Term,
        captures: &Captures,
        evaluated: &mut Evaluated,
    ) -> Option<Vec<Value>> {
        let names = of.names();
        let with = |kind: fn(&Kind) -> bool| {
            names.iter().filter(move |(template, _)| {
                let mut captures = template.kinds_of_captures();
                captures.any(|(name, it)| name == &**each && kind(it))
            })
        };
        for (template, _) in with(|kind| matches!(kind, Kind::Choice(_))) {
            if let Some(choices) = template.choices(each) {
                return Some(choices.iter().cloned().map(Value::Text).collect());
            }
        }
        let mut numbers = Vec::new();
        for (template, _) in with(|kind| *kind == Kind::Number) {
            let found = self.matching(template, captures);
            numbers.extend(found.filter_map(|(_, found)| match found.get(each) {
                Some(Value::Number(number)) => Some(*number),
                _ => None,
            }));
        }
        numbers.sort_unstable();
        numbers.dedup();
        let count = numbers.last().map_or(1, |last| last.saturating_add(1));
        let gaps = (0..count).filter(|number| numbers.binary_search(number).is_err());
        if count - numbers.len() as u64 > MOST_GAPS {
            let template = names.first()?.0;
            for gap in gaps.take(MOST_GAPS as usize) {
                let captures = captures.clone().with(each, Value::Number(gap));
                evaluated.missing.extend(template.fill(&captures).ok());
            }
            return None;
        }
        Some((0..count).map(Value::Number).collect())
    }
}

/// A dim that may be counted from the last.
pub(super) fn dim_of(dim: i64, rank: usize) -> usize {
    match dim {
        0.. => dim as usize,
        // Out of range in either direction is refused by the graph as a dim that is not there.
        _ => (rank as i64 + dim).try_into().unwrap_or(usize::MAX - 1),
    }
}

/// Carries an operation out.
pub(super) fn apply(graph: &mut Graph, action: &Action, of: &[Expr]) -> Result<Expr, GraphError> {
    let rank = of.first().map_or(0, |first| graph.shape(*first).len());
    let dim = |dim: &i64| dim_of(*dim, rank);
    let new_dim = |dim: &i64| dim_of(*dim, rank + 1);
    match action {
        Action::Concat { dim: at, .. } => graph.concat(of, dim(at)),
        Action::Stack { dim: at } => graph.stack(of, new_dim(at)),
        Action::Interleave { dim: at } => {
            let stacked = graph.stack(of, dim(at).saturating_add(1))?;
            graph.flatten(stacked, dim(at))
        }
        Action::Permute(dims) => graph.permute(of[0], dims),
        Action::Transpose(a, b) => graph.transpose(of[0], dim(a), dim(b)),
        Action::Slice {
            dim: at,
            start,
            end,
            step,
        } => {
            let count = end.saturating_sub(*start).div_ceil(*step);
            graph.slice(of[0], dim(at), (*start, count, *step))
        }
        Action::Select { dim: at, index } => graph.select(of[0], dim(at), *index),
        Action::Chunk {
            dim: at,
            index,
            count,
        } => {
            let rows = graph.unflatten(of[0], dim(at), *count)?;
            graph.select(rows, dim(at), *index)
        }
        Action::Unflatten { dim: at, rows } => graph.unflatten(of[0], dim(at), *rows),
        Action::Flatten { dim: at, .. } => graph.flatten(of[0], dim(at)),
        Action::Unsqueeze { dim: at } => graph.unsqueeze(of[0], new_dim(at)),
        Action::Squeeze { dim: at } => graph.squeeze(of[0], dim(at)),
        Action::Pad {
            dim: at, to, value, ..
        } => graph.pad(of[0], dim(at), *to, value.0),
        Action::Fill {
            value,
            dtype,
            shape,
        } => graph.fill(*dtype, value.0, shape),
        Action::Cast(to) => graph.cast(of[0], *to),
        Action::Scale(by) => graph.scale(of[0], by.0),
        Action::Add(what) => graph.add_number(of[0], what.0),
        Action::First { .. } => Ok(of[0]),
        Action::Mean => graph.compute(of, &Computation::new(Mean)),
        Action::Lora { scale } => graph.compute(of, &Computation::new(Lora { scale: scale.0 })),
        Action::Dequant { block, dtype } => {
            let how = Dequant {
                block: block.clone(),
                dtype: *dtype,
            };
            graph.compute(of, &Computation::new(how))
        }
    }
}
