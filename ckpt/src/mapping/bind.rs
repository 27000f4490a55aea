//! A map, the tensors there are and the tensors that are wanted, put together.

use std::collections::BTreeSet;
use std::sync::Arc;

use hashbrown::hash_map::Entry;
use hashbrown::{HashMap, HashSet};

use super::evaluate::{Evaluated, Tensors, dim_of};
use super::named::Named;
use super::report::{Problem, Report};
use super::solve::{self, Unsolved};
use super::template::{Captures, Kind, Template, Value};
use super::term::{Action, Call, Term};
use super::{Mapping, Rule, TensorSpec};
use crate::graph::{Expr, TensorType, widens};

/// The tensors that a map makes, as they come, each with the line of its rule.
#[derive(Default)]
pub(super) struct Made {
    all: Vec<(Arc<str>, Expr, usize)>,
    /// Finds a name's place; never walked.
    places: HashMap<Arc<str>, usize>,
}

impl Made {
    /// Adds a tensor, or tells the line that made one of this name before.
    fn add(&mut self, name: &str, expr: Expr, line: usize) -> Result<(), usize> {
        let name: Arc<str> = name.into();
        match self.places.entry(name.clone()) {
            Entry::Occupied(known) => Err(self.all[*known.get()].2),
            Entry::Vacant(free) => {
                free.insert(self.all.len());
                self.all.push((name, expr, line));
                Ok(())
            }
        }
    }

    fn has(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, Expr)> {
        self.all.iter().map(|(name, expr, _)| (name, *expr))
    }

    pub(super) fn into_named(self) -> Named {
        let all = self.all.into_iter();
        all.map(|(name, expr, _)| (name, expr)).collect()
    }
}

/// What binding comes to.
pub(super) struct Binding {
    pub(super) tensors: Tensors,
    pub(super) made: Made,
    /// Tensors that were used, of those there are.
    pub(super) used: HashSet<Expr>,
    pub(super) ties: BTreeSet<(String, String)>,
    pub(super) report: Report,
}

/// The dtypes of what is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dtypes {
    /// Converted to what is wanted.
    AsWanted,
    /// What they are.
    AsMade,
}

/// Carries out all rules of `mapping` on `tensors`, for what is wanted, or for all that there is.
pub(super) fn bind(
    mapping: &Mapping,
    tensors: Tensors,
    wanted: Option<&[TensorSpec]>,
    dtypes: Dtypes,
) -> Binding {
    let mut binder = Binder {
        // A wanted tensor too large to exist is found out when nothing makes it.
        wanted: wanted.map(|specs| Tensors::of(specs).0),
        dtypes,
        failed: BTreeSet::new(),
        binding: Binding {
            tensors,
            made: Made::default(),
            used: HashSet::new(),
            ties: BTreeSet::new(),
            report: Report::default(),
        },
    };
    // Catch-alls take what others have left.
    let (others, catch_alls): (Vec<&Rule>, Vec<&Rule>) =
        mapping.rules.iter().partition(|rule| !rule.is_catch_all());
    for rule in others.into_iter().chain(catch_alls) {
        binder.rule(rule);
    }
    binder.left_over(mapping);
    binder.binding
}

struct Binder {
    wanted: Option<Tensors>,
    dtypes: Dtypes,
    /// What rules would have made whose right side is not all there.
    failed: BTreeSet<String>,
    binding: Binding,
}

impl Binder {
    fn rule(&mut self, rule: &Rule) {
        let mut evaluated = Evaluated::default();
        let line = rule.line;
        for captures in self.instances(rule) {
            let tensors = &mut self.binding.tensors;
            let value = tensors.value(&rule.right, &captures, &mut evaluated);
            for name in evaluated.missing.drain(..) {
                self.binding.report.add(Problem::Missing { name, line });
            }
            self.binding.used.extend(evaluated.used.drain(..));
            self.binding.ties.extend(evaluated.ties.drain(..));
            if let Some(error) = evaluated.error.take() {
                let captures = listed(&captures);
                self.binding.report.add(Problem::Impossible {
                    line,
                    captures,
                    error,
                });
            }
            match value {
                Some(value) => self.assign(&rule.left, value, &captures, line),
                None => self.fail(&rule.left, &captures),
            }
        }
    }

    /// What a rule cannot make, because of what was told before.
    fn fail(&mut self, left: &Term, captures: &Captures) {
        let wanted = self.wanted.iter();
        for (template, _) in left.names() {
            let names = wanted
                .clone()
                .flat_map(|it| it.matching(template, captures));
            self.failed.extend(names.map(|(name, _)| name.to_owned()));
        }
    }

    /// What the captures of a rule stand for: as the wanted names say, or else those that are there.
    fn instances(&self, rule: &Rule) -> Vec<Captures> {
        let free = rule.left.free_captures();
        let (side, tensors) = match &self.wanted {
            Some(wanted) => (&rule.left, wanted),
            None => (&rule.right, &self.binding.tensors),
        };
        let is_catch_all = rule.is_catch_all();
        let taken = |name: &str| match &self.wanted {
            Some(_) => self.binding.made.has(name),
            None => {
                let expr = tensors.named.get(name);
                expr.is_some_and(|expr| self.binding.used.contains(&expr))
            }
        };
        let names = side.names();
        let says_all = |template: &Template| {
            let own: BTreeSet<&str> = template.captures().collect();
            free.is_subset(&own)
        };
        let mut instances = Vec::new();
        let nothing = Captures::new();
        for (template, _) in names.iter().filter(|(template, _)| says_all(template)) {
            for (name, mut captures) in tensors.matching(template, &nothing) {
                if !(is_catch_all && taken(name)) {
                    captures.retain(|capture| free.contains(capture));
                    instances.push(captures);
                }
            }
        }
        if names.is_empty() {
            instances.push(nothing);
        }
        instances.sort_unstable();
        instances.dedup();
        instances
    }

    /// Gives the names of a term what they are when the whole of it is `value`.
    fn assign(&mut self, term: &Term, value: Expr, captures: &Captures, line: usize) {
        match term {
            Term::Name(template) => {
                if let Ok(name) = template.fill(captures) {
                    self.output(name, value, line);
                }
            }
            Term::Call(call) => {
                if let Err(unsolved) = self.solve(call, value, captures, line) {
                    self.fail(term, captures);
                    let op = call.action.name();
                    let problem = match unsolved {
                        Unsolved::Because(message) => Problem::Unsolvable { line, op, message },
                        Unsolved::Graph(error) => Problem::Impossible {
                            line,
                            captures: listed(captures),
                            error,
                        },
                    };
                    self.binding.report.add(problem);
                }
            }
        }
    }

    fn solve(
        &mut self,
        call: &Call,
        value: Expr,
        captures: &Captures,
        line: usize,
    ) -> Result<(), Unsolved> {
        let operands = self.operands(call, value, captures)?;
        let types = self.wanted_types(&operands);
        let (graph, count) = (&mut self.binding.tensors.graph, operands.len());
        let parts = solve::operands(graph, &call.action, value, count, types.as_deref())?;
        for ((term, captures), part) in operands.iter().zip(parts) {
            self.assign(term, part, captures, line);
        }
        Ok(())
    }

    /// The operands of an operation on the left side, each with what its captures stand for.
    fn operands<'t>(
        &self,
        call: &'t Call,
        value: Expr,
        captures: &Captures,
    ) -> Result<Vec<(&'t Term, Captures)>, Unsolved> {
        let (Some(each), [of]) = (&call.each, &call.of[..]) else {
            let operands = call.of.iter().map(|of| (of, captures.clone()));
            return Ok(operands.collect());
        };
        let values = self.values(each, of, call, value, captures)?;
        let with = |value| (of, captures.clone().with(each, value));
        Ok(values.into_iter().map(with).collect())
    }

    /// What an operation on the left side goes over.
    fn values(
        &self,
        each: &Arc<str>,
        of: &Term,
        call: &Call,
        value: Expr,
        captures: &Captures,
    ) -> Result<Vec<Value>, Unsolved> {
        let names = of.names();
        if let Some(choices) = names.iter().find_map(|(it, _)| it.choices(each)) {
            return Ok(choices.iter().cloned().map(Value::Text).collect());
        }
        let shape = self.binding.tensors.graph.shape(value);
        if let Action::Stack { dim } = call.action {
            let dim = dim_of(dim, shape.len());
            let count = shape.get(dim).copied().unwrap_or(0);
            return Ok((0..count).map(Value::Number).collect());
        }
        let mut last = None;
        for (template, _) in &names {
            let wanted = self
                .wanted
                .iter()
                .flat_map(|it| it.matching(template, captures));
            for (_, found) in wanted {
                if let Some(Value::Number(number)) = found.get(each) {
                    last = last.max(Some(*number));
                }
            }
        }
        let last = last.filter(|last| *last < shape.iter().copied().max().unwrap_or(0));
        let last = last.ok_or_else(|| {
            Unsolved::Because(format!(
                "how many `{{{each}}}` there are is not known: say what is wanted"
            ))
        })?;
        Ok((0..=last).map(Value::Number).collect())
    }

    /// The types of terms on the left side, where all their names are wanted.
    fn wanted_types(&mut self, terms: &[(&Term, Captures)]) -> Option<Vec<TensorType>> {
        let wanted = self.wanted.as_mut()?;
        let mut types = Vec::with_capacity(terms.len());
        for (term, captures) in terms {
            let value = wanted.value(term, captures, &mut Evaluated::default())?;
            types.push(wanted.graph.tensor_type(value));
        }
        Some(types)
    }

    /// A tensor is made.
    fn output(&mut self, name: String, value: Expr, line: usize) {
        let Binding {
            tensors,
            made,
            report,
            ..
        } = &mut self.binding;
        let mut expr = value;
        if let Some(wanted) = &self.wanted {
            let Some(spec) = wanted.named.get(&name) else {
                report.unwanted += 1;
                return;
            };
            let before = tensors.graph.tensor_type(value);
            let mut wanted = wanted.graph.tensor_type(spec);
            if self.dtypes == Dtypes::AsMade {
                wanted.0 = before.0;
            }
            let cast = match before.1 == wanted.1 {
                true => tensors.graph.cast(value, wanted.0).ok(),
                false => None,
            };
            let Some(cast) = cast else {
                self.failed.insert(name.clone());
                report.add(Problem::Mismatched {
                    name,
                    made: before,
                    wanted,
                    line,
                });
                return;
            };
            expr = cast;
            let (from, to) = (before.0, wanted.0);
            if widens(from, to) {
                report.widened += 1;
            } else if from != to {
                let name = name.clone();
                report.add(Problem::Narrowed { name, from, to });
            }
        }
        if let Err(before) = made.add(&name, expr, line) {
            report.add(Problem::MadeTwice { name, line, before });
        }
    }

    /// What is wanted and not made, and what is there and not used.
    fn left_over(&mut self, mapping: &Mapping) {
        let Binding {
            tensors,
            made,
            used,
            report,
            ..
        } = &mut self.binding;
        if let Some(wanted) = &self.wanted {
            for (name, _) in wanted.named.iter() {
                if !made.has(name) && !self.failed.contains(&**name) {
                    let name = name.to_string();
                    report.add(Problem::Unmade { name });
                }
            }
        }
        let right: Vec<&Template> = mapping
            .rules
            .iter()
            .flat_map(|rule| rule.right.names())
            .map(|(template, _)| template)
            .collect();
        let spoken_of = |name: &str| right.iter().any(|it| it.matches(name).is_some());
        let unused = tensors.named.iter().filter(|(_, it)| !used.contains(it));
        for (name, _) in unused {
            match self.wanted.is_some() && spoken_of(name) {
                true => report.unwanted += 1,
                false => report.add(Problem::Unexpected {
                    name: name.to_string(),
                }),
            }
        }
    }
}

impl Rule {
    /// Whether it is for whatever other rules have left.
    fn is_catch_all(&self) -> bool {
        let names = self.right.names();
        let mut kinds = names.iter().flat_map(|(it, _)| it.kinds_of_captures());
        kinds.any(|(_, kind)| *kind == Kind::Path)
    }
}

/// Captures as messages show them.
fn listed(captures: &Captures) -> String {
    let pairs: Vec<String> = captures
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    pairs.join(", ")
}
