//! Evaluating a side of a rule on the source tensors.

use std::sync::Arc;

use meshgrad_error::{Error, Result};

use super::TensorSpec;
use super::captures::{Captures, Value};
use super::computations::{Dequant, Lora, Mean};
use super::declared::check_declared;
use super::named::Named;
use super::template::{Kind, Template};
use super::term::{Action, Call, Term, dim_of};
use crate::graph::{Computation, Expr, Graph, Short};

/// The tensors by name.
#[derive(Clone, Debug, Default)]
pub(super) struct Tensors {
    pub(super) graph: Graph,
    pub(super) named: Arc<Named>,
}

/// The result of evaluating a term, except for its value.
#[derive(Default)]
pub(super) struct Evaluated {
    /// Tensors that were used.
    pub(super) used: Vec<Expr>,
    /// Names without a tensor.
    pub(super) missing: Vec<String>,
    /// Pairs that must be equal. The first of each pair is used.
    pub(super) ties: Vec<(String, String)>,
    pub(super) error: Option<Error>,
    /// The last name that was looked up, and the position after it among the sources.
    name: String,
    next: usize,
}

/// Gaps in numbering are reported one by one, up to this many.
const MAX_GAPS: u64 = 1000;

impl Tensors {
    /// Creates a source per spec. Also returns the invalid specs with their errors.
    pub(super) fn of(specs: &[TensorSpec]) -> (Tensors, Vec<(String, Error)>) {
        let mut graph = Graph::with_room_for(specs.len());
        let mut unreadable = Vec::new();
        for spec in specs {
            if let Err(error) = graph.source(&spec.name, spec.dtype, &spec.shape) {
                unreadable.push((spec.name.clone(), error));
            }
        }
        let named = graph.shared_sources().collect();
        let named = Arc::new(Named::sorted(named));
        (Tensors { graph, named }, unreadable)
    }

    /// The value of a term. If it is `None`, `evaluated` has the reason.
    pub(super) fn value(
        &mut self,
        term: &Term,
        captures: &Captures<'_>,
        evaluated: &mut Evaluated,
    ) -> Option<Expr> {
        let call = match term {
            Term::Name(template) => return self.named_value(template, captures, evaluated),
            Term::Call(call) => call,
        };
        if let Action::First { tied } = call.action {
            return self.first(&call.of, tied, captures, evaluated);
        }
        let operands = self.operands(call, captures, evaluated)?;
        match apply(&mut self.graph, &call.action, &operands) {
            Ok(value) => Some(value),
            Err(error) => {
                evaluated.error.get_or_insert(error);
                None
            }
        }
    }

    fn named_value(
        &self,
        template: &Template,
        captures: &Captures<'_>,
        evaluated: &mut Evaluated,
    ) -> Option<Expr> {
        let Evaluated { name, next, .. } = evaluated;
        if !template.makes_name(captures, name) {
            return None; // unreachable: the parser checks that every capture has a value
        }
        let value = self.named.find(name, next);
        match value {
            Some(value) => evaluated.used.push(value),
            None => evaluated.missing.push(name.clone()),
        }
        value
    }

    /// All operands of an operation; `None` if one is missing, with all reasons in `evaluated`.
    fn operands(
        &mut self,
        call: &Call,
        captures: &Captures<'_>,
        evaluated: &mut Evaluated,
    ) -> Option<Short<Expr>> {
        let (mut operands, mut asked) = (Short::new(), 0);
        let mut add = |operand: Option<Expr>| {
            operands.extend(operand);
            asked += 1;
        };
        match (&call.each, &call.of[..]) {
            (Some(each), [of]) => {
                let values = self.values(each, of, captures, evaluated)?;
                for value in values {
                    let captures = captures.with(each, value);
                    add(self.value(of, &captures, evaluated));
                }
            }
            (_, all) => {
                for of in all {
                    add(self.value(of, captures, evaluated));
                }
            }
        }
        (operands.len() == asked).then_some(operands)
    }

    /// The first term whose tensors all exist.
    fn first(
        &mut self,
        of: &[Term],
        tied: bool,
        captures: &Captures<'_>,
        evaluated: &mut Evaluated,
    ) -> Option<Expr> {
        let sources: Vec<&Term> = of.iter().filter(|it| self.has(it, captures)).collect();
        let chosen = sources.first().copied().or(of.first())?;
        let value = self.value(chosen, captures, evaluated);
        if tied {
            let name = |term: &Term| match term {
                Term::Name(template) => template.fill(captures).ok(),
                Term::Call(_) => None,
            };
            let mut names = sources.into_iter().filter_map(name);
            if let Some(chosen) = names.next() {
                for other in names {
                    evaluated.used.extend(self.named.get(&other));
                    evaluated.ties.push((chosen.clone(), other));
                }
            }
        }
        value
    }

    /// Whether all names of a term exist.
    fn has(&self, term: &Term, captures: &Captures<'_>) -> bool {
        let mut names = term.names().into_iter();
        let has = |it: &Template| self.named.matching(it, captures).next().is_some();
        names.all(|(template, _)| has(template))
    }

    /// The values of a capture in order: all choices, or the numbers from 0 to the largest in a
    /// name.
    fn values<'t>(
        &self,
        each: &str,
        of: &'t Term,
        captures: &Captures<'_>,
        evaluated: &mut Evaluated,
    ) -> Option<Vec<Value<'t>>> {
        let names = of.names();
        let with = |kind: fn(&Kind) -> bool| {
            names.iter().filter(move |(template, _)| {
                let mut captures = template.kinds_of_captures();
                captures.any(|(name, it)| name == each && kind(it))
            })
        };
        for (template, _) in with(|kind| matches!(kind, Kind::Choice(_))) {
            if let Some(choices) = template.choices(each) {
                return Some(choices.iter().map(|it| Value::Text(it)).collect());
            }
        }
        let mut numbers = Vec::new();
        for (template, _) in with(|kind| *kind == Kind::Number) {
            let found = self.named.matching(template, captures);
            numbers.extend(found.filter_map(|(_, found)| match found.get(each) {
                Some(Value::Number(number)) => Some(number),
                _ => None,
            }));
        }
        numbers.sort_unstable();
        numbers.dedup();
        let count = numbers.last().map_or(1, |last| last.saturating_add(1));
        let gaps = (0..count).filter(|number| numbers.binary_search(number).is_err());
        if count - numbers.len() as u64 > MAX_GAPS {
            let template = names.first()?.0;
            for gap in gaps.take(MAX_GAPS as usize) {
                let captures = captures.with(each, Value::Number(gap));
                evaluated.missing.extend(template.fill(&captures).ok());
            }
            return None;
        }
        Some((0..count).map(Value::Number).collect())
    }
}

/// Applies an operation.
pub(super) fn apply(graph: &mut Graph, action: &Action, of: &[Expr]) -> Result<Expr> {
    check_declared(graph, action, of)?;
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
        Action::Slice { dim: at, start, end, step } => {
            let count = end.saturating_sub(*start).div_ceil(*step);
            graph.slice(of[0], dim(at), (*start, count, *step))
        }
        Action::Select { dim: at, index } => graph.select(of[0], dim(at), *index),
        Action::Chunk { dim: at, index, count } => {
            let rows = graph.unflatten(of[0], dim(at), *count)?;
            graph.select(rows, dim(at), *index)
        }
        Action::Unflatten { dim: at, rows } => graph.unflatten(of[0], dim(at), *rows),
        Action::Flatten { dim: at, .. } => graph.flatten(of[0], dim(at)),
        Action::Unsqueeze { dim: at } => graph.unsqueeze(of[0], new_dim(at)),
        Action::Squeeze { dim: at } => graph.squeeze(of[0], dim(at)),
        Action::Pad { dim: at, to, value, .. } => graph.pad(of[0], dim(at), *to, value.0),
        Action::Fill { value, dtype, shape } => graph.fill(*dtype, value.0, shape),
        Action::Cast(to) => graph.cast(of[0], *to),
        Action::Scale(by) => graph.scale(of[0], by.0),
        Action::Add(what) => graph.add_number(of[0], what.0),
        Action::First { .. } | Action::Rename => Ok(of[0]),
        Action::Mean => graph.compute(of, &Computation::new(Mean)),
        Action::Lora { scale } => graph.compute(of, &Computation::new(Lora { scale: scale.0 })),
        Action::Dequant { block, dtype } => {
            let how = Dequant { block: block.clone(), dtype: *dtype };
            graph.compute(of, &Computation::new(how))
        }
    }
}
