//! Binding a map to source tensors and requested targets.

use std::collections::BTreeSet;

use super::captures::{Captures, Value};
use super::evaluate::{Evaluated, Tensors};
use super::named::Named;
use super::report::{Problem, Report, SHOWN};
use super::solve::{self, Unsolved};
use super::template::Template;
use super::term::{Action, Call, Term, dim_of};
use super::unmatched;
use super::{Mapping, Rule, TensorSpec};
use crate::graph::{Expr, ExprSet, Graph, TensorType, widens};
use crate::name_list::NameList;

/// The outputs of a map in the order of creation, each with the line of its rule.
#[derive(Default)]
pub(super) struct Outputs {
    names: NameList,
    made: Vec<(Expr, usize)>,
}

impl Outputs {
    /// Adds an output, or returns the line that already produced one of this name.
    fn add(&mut self, name: &str, expr: Expr, line: usize) -> Result<(), usize> {
        let added = self.names.add(name, || name.into());
        added.map_err(|before| self.made[before].1)?;
        self.made.push((expr, line));
        Ok(())
    }

    fn contains(&self, name: &str) -> bool {
        self.names.find(name, &mut 0).is_some()
    }

    pub(super) fn exprs(&self) -> impl Iterator<Item = Expr> {
        self.made.iter().map(|(expr, _)| *expr)
    }

    pub(super) fn into_named(self) -> Named {
        let names = self.names.into_vec().into_iter();
        let exprs = self.made.iter().map(|(expr, _)| *expr);
        Named::sorted(names.zip(exprs).collect())
    }
}

/// The result of binding.
pub(super) struct Binding {
    pub(super) tensors: Tensors,
    pub(super) made: Outputs,
    /// The source tensors that were used.
    pub(super) used: ExprSet,
    pub(super) ties: BTreeSet<(String, String)>,
    pub(super) report: Report,
}

impl Binding {
    /// Reports every source that is not used.
    pub(super) fn expect_all_used(&mut self) {
        let problems = &mut self.report.problems;
        problems.retain(|problem| !matches!(problem, Problem::Unexpected { .. }));
        let unused = self.tensors.named.iter().filter(|(_, expr)| !self.used.contains(*expr));
        problems.extend(unused.map(|(name, _)| Problem::Unused { name: name.to_string() }));
    }
}

/// The dtypes of the outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dtypes {
    /// Converted to the requested dtypes.
    AsRequested,
    /// Not converted.
    Unchanged,
}

/// Applies all rules of `mapping` to `tensors`, for the requested targets or for all sources.
pub(super) fn bind(
    mapping: &Mapping,
    tensors: Tensors,
    targets: Option<&[TensorSpec]>,
    dtypes: Dtypes,
) -> Binding {
    let sources = tensors.named.clone();
    // Targets that are too large for a graph are reported as unmade.
    let targets = targets.map(|specs| Tensors::of(specs).0);
    let names = targets.as_ref().map(|targets| targets.named.clone());
    let targets = targets.zip(names.as_deref());
    let mut binder = Binder {
        sources: &sources,
        targets: targets.map(|(tensors, named)| Targets {
            named,
            tensors,
            made: ExprSet::default(),
            failed: ExprSet::default(),
        }),
        dtypes,
        name: String::new(),
        binding: Binding {
            tensors,
            made: Outputs::default(),
            used: ExprSet::default(),
            ties: BTreeSet::new(),
            report: Report::default(),
        },
    };
    // Catch-alls apply last, to the tensors that no other rule uses.
    let (others, catch_alls): (Vec<&Rule>, Vec<&Rule>) =
        mapping.rules.iter().partition(|rule| !rule.is_catch_all());
    for rule in others.into_iter().chain(catch_alls) {
        binder.rule(rule);
    }
    binder.report_unused(mapping);
    if binder.targets.is_none() {
        binder.report_dropped(mapping);
    }
    binder.binding
}

struct Binder<'b> {
    /// The source tensors.
    sources: &'b Named,
    targets: Option<Targets<'b>>,
    dtypes: Dtypes,
    /// The last output name.
    name: String,
    binding: Binding,
}

/// The requested targets.
struct Targets<'b> {
    named: &'b Named,
    tensors: Tensors,
    made: ExprSet,
    /// Targets of rules whose right side is incomplete.
    failed: ExprSet,
}

impl<'b> Binder<'b> {
    fn rule(&mut self, rule: &'b Rule) {
        let mut evaluated = Evaluated::default();
        let line = rule.line;
        let instances = self.instances(rule);
        if instances.is_empty() && self.targets.is_none() {
            let problem = unmatched::problem(rule, self.sources);
            self.binding.report.problems.extend(problem);
        }
        for captures in instances {
            let tensors = &mut self.binding.tensors;
            let value = tensors.value(&rule.right, &captures, &mut evaluated);
            for name in evaluated.missing.drain(..) {
                // Messages show only a few problems, and the search is slow among many names.
                let is_shown = self.binding.report.problems.len() < SHOWN;
                let near = is_shown.then(|| unmatched::similar(&name, self.sources));
                let near = near.flatten();
                let problem = Problem::Missing { name, line, near };
                self.binding.report.add(problem);
            }
            self.binding.used.extend(evaluated.used.drain(..));
            self.binding.ties.extend(evaluated.ties.drain(..));
            if let Some(error) = evaluated.error.take() {
                let captures = listed(&captures);
                self.binding.report.add(Problem::Impossible { line, captures, error });
            }
            match value {
                Some(value) => self.assign(&rule.left, value, &captures, line),
                None => self.fail(&rule.left, &captures),
            }
        }
    }

    /// Marks the targets of a rule that cannot produce them because of a reported problem.
    fn fail(&mut self, left: &Term, captures: &Captures<'_>) {
        let Some(targets) = &mut self.targets else {
            return;
        };
        for (template, _) in left.names() {
            let matching = targets.named.matching(template, captures);
            targets.failed.extend(matching.map(|(expr, _)| expr));
        }
    }

    /// The values of a rule's captures: from the requested names, or else from the source names.
    fn instances(&self, rule: &'b Rule) -> Vec<Captures<'b>> {
        let free = rule.left.free_captures();
        let (side, named, taken) = match &self.targets {
            Some(targets) => (&rule.left, targets.named, &targets.made),
            None => (&rule.right, self.sources, &self.binding.used),
        };
        let is_catch_all = rule.is_catch_all();
        let names = side.names();
        let says_all = |template: &Template| {
            let own: BTreeSet<&str> = template.captures().collect();
            free.is_subset(&own)
        };
        let (mut instances, nothing) = (Vec::new(), Captures::new());
        if names.is_empty() {
            instances.push(Captures::new());
        }
        for (template, _) in names.into_iter().filter(|(template, _)| says_all(template)) {
            // Names that differ only in the other captures are adjacent, so one of them is enough.
            let mut others = template.captures().skip_while(|it| free.contains(it));
            let alike = others.clone().count() > 0 && others.all(|it| !free.contains(it));
            let mut matching = named.matching(template, &nothing);
            while let Some((expr, mut captures)) = matching.next() {
                if is_catch_all && taken.contains(expr) {
                    continue;
                }
                captures.retain(|capture| free.contains(capture));
                if alike && !is_catch_all {
                    matching.skip_like(&captures);
                }
                instances.push(captures);
            }
        }
        if !instances.is_sorted_by(|a, b| a < b) {
            instances.sort_unstable();
            instances.dedup();
        }
        instances
    }

    /// Assigns expressions to the names of a term, given that the term equals `value`.
    fn assign(&mut self, term: &Term, value: Expr, captures: &Captures<'_>, line: usize) {
        match term {
            Term::Name(template) => {
                // Always true: the parser checks that every capture has a value.
                if template.makes_name(captures, &mut self.name) {
                    self.output(value, line);
                }
            }
            Term::Call(call) => {
                if let Err(unsolved) = self.solve(call, value, captures, line) {
                    self.fail(term, captures);
                    let op = call.action.name();
                    let problem = match unsolved {
                        Unsolved::Because(message) => Problem::Unsolvable { line, op, message },
                        Unsolved::Graph(error) => {
                            Problem::Impossible { line, captures: listed(captures), error }
                        }
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
        captures: &Captures<'_>,
        line: usize,
    ) -> Result<(), Unsolved> {
        let operands = self.operands(call, value, captures)?;
        let types = self.target_types(&operands);
        let (graph, count) = (&mut self.binding.tensors.graph, operands.len());
        let parts = solve::operands(graph, &call.action, value, count, types.as_deref())?;
        for ((term, captures), part) in operands.iter().zip(parts) {
            self.assign(term, part, captures, line);
        }
        Ok(())
    }

    /// The operands of an operation on the left side, each with its captures.
    fn operands<'t, 'n: 't>(
        &self,
        call: &'t Call,
        value: Expr,
        captures: &Captures<'n>,
    ) -> Result<Vec<(&'t Term, Captures<'t>)>, Unsolved> {
        let (Some(each), [of]) = (&call.each, &call.of[..]) else {
            let operands = call.of.iter().map(|of| (of, captures.iter().collect()));
            return Ok(operands.collect());
        };
        let values = self.values(each, of, call, value, captures)?;
        let with = |value| (of, captures.with(each, value));
        Ok(values.into_iter().map(with).collect())
    }

    /// The values that an operation on the left side iterates over.
    fn values<'t>(
        &self,
        each: &str,
        of: &'t Term,
        call: &Call,
        value: Expr,
        captures: &Captures<'_>,
    ) -> Result<Vec<Value<'t>>, Unsolved> {
        let names = of.names();
        if let Some(choices) = names.iter().find_map(|(it, _)| it.choices(each)) {
            return Ok(choices.iter().map(|it| Value::Text(it)).collect());
        }
        let shape = self.binding.tensors.graph.shape(value);
        if let Action::Stack { dim } = call.action {
            let dim = dim_of(dim, shape.len());
            let count = shape.get(dim).copied().unwrap_or(0);
            return Ok((0..count).map(Value::Number).collect());
        }
        let mut last = None;
        for (template, _) in &names {
            let targets = self.targets.iter();
            let matching = targets.flat_map(|it| it.named.matching(template, captures));
            for (_, found) in matching {
                if let Some(Value::Number(number)) = found.get(each) {
                    last = last.max(Some(number));
                }
            }
        }
        let last = last.filter(|last| *last < shape.iter().copied().max().unwrap_or(0));
        let last = last.ok_or_else(|| {
            Unsolved::Because(format!("the number of `{{{each}}}` is unknown: specify the targets"))
        })?;
        Ok((0..=last).map(Value::Number).collect())
    }

    /// The types of terms on the left side, if all their names are targets.
    fn target_types(&mut self, terms: &[(&Term, Captures<'_>)]) -> Option<Vec<TensorType>> {
        let targets = &mut self.targets.as_mut()?.tensors;
        let mut types = Vec::with_capacity(terms.len());
        for (term, captures) in terms {
            let value = targets.value(term, captures, &mut Evaluated::default())?;
            types.push(targets.graph.tensor_type(value));
        }
        Some(types)
    }

    /// Adds an output with the name in `self.name`.
    fn output(&mut self, value: Expr, line: usize) {
        let Binding { tensors, made, report, .. } = &mut self.binding;
        let mut expr = value;
        if let Some(targets) = &mut self.targets {
            let Some(spec) = targets.named.get(&self.name) else {
                report.skipped += 1;
                return;
            };
            match convert_to_target(&mut tensors.graph, value, targets, spec, self.dtypes) {
                Ok(converted) => expr = converted,
                Err((actual, expected)) => {
                    targets.failed.insert(spec);
                    report.add(Problem::Mismatched {
                        name: self.name.clone(),
                        actual,
                        expected,
                        line,
                    });
                    return;
                }
            }
            let [from, to] = [value, expr].map(|it| tensors.graph.dtype(it));
            if widens(from, to) {
                report.widened += 1;
            } else if from != to {
                let name = self.name.clone();
                report.add(Problem::Narrowed { name, from, to });
            }
            targets.made.insert(spec);
        }
        if let Err(before) = made.add(&self.name, expr, line) {
            let name = self.name.clone();
            report.add(Problem::MadeTwice { name, line, before });
        }
    }

    /// Reports targets that were not produced, and sources that were not used.
    fn report_unused(&mut self, mapping: &Mapping) {
        let Binding { used, report, .. } = &mut self.binding;
        if let Some(targets) = &self.targets {
            for (name, expr) in targets.named.iter() {
                if !targets.made.contains(expr) && !targets.failed.contains(expr) {
                    let name = name.to_string();
                    report.problems.push(Problem::Unmade { name });
                }
            }
        }
        let rules = mapping.rules.iter();
        let right = rules.flat_map(|rule| rule.right.names());
        let right: Vec<&Template> = right.map(|(template, _)| template).collect();
        let spoken_of = |name: &str| right.iter().any(|it| it.matches(name).is_some());
        let unused = self.sources.iter().filter(|(_, it)| !used.contains(*it));
        for (name, _) in unused {
            match self.targets.is_some() && spoken_of(name) {
                true => report.skipped += 1,
                false => report.problems.push(Problem::Unexpected { name: name.to_string() }),
            }
        }
    }
}

impl Binder<'_> {
    /// Reports sources that a rule of two plain names copies and a rule that keeps all other names
    /// therefore skips. The first rule may be meant as a copy or as a renaming.
    fn report_dropped(&mut self, mapping: &Mapping) {
        let keeps = mapping.rules.iter().filter(|it| it.is_catch_all() && it.left == it.right);
        let kept: Vec<&Term> = keeps.map(|rule| &rule.right).collect();
        for rule in &mapping.rules {
            let (Some(output), Some(name)) = (rule.left.literal(), rule.right.literal()) else {
                continue;
            };
            let is_kept = |term: &&Term| match term {
                Term::Name(template) => template.matches(&name).is_some(),
                Term::Call(_) => false,
            };
            let dropped = kept.iter().any(is_kept) && !self.binding.made.contains(&name);
            if dropped && self.sources.get(&name).is_some() {
                let line = rule.line;
                let problem = Problem::Dropped { name, output, line };
                self.binding.report.problems.push(problem);
            }
        }
    }
}

/// Converts a tensor to the target's type; `Err` with the actual and the expected type if that is
/// impossible.
fn convert_to_target(
    graph: &mut Graph,
    value: Expr,
    targets: &Targets<'_>,
    spec: Expr,
    dtypes: Dtypes,
) -> Result<Expr, (TensorType, TensorType)> {
    let targets = &targets.tensors.graph;
    let dtype = match dtypes {
        Dtypes::Unchanged => graph.dtype(value),
        Dtypes::AsRequested => targets.dtype(spec),
    };
    let cast = match graph.shape(value) == targets.shape(spec) {
        true => graph.cast(value, dtype).ok(),
        false => None,
    };
    let targets = || (dtype, targets.shape(spec).to_vec());
    cast.ok_or_else(|| (graph.tensor_type(value), targets()))
}

impl Rule {
    /// Whether the rule applies only to tensors that no other rule uses.
    pub(super) fn is_catch_all(&self) -> bool {
        let names = self.right.names();
        names.iter().any(|(template, _)| template.has_path())
    }
}

/// Formats captures for messages.
fn listed(captures: &Captures<'_>) -> String {
    let pairs: Vec<String> =
        captures.iter().map(|(name, value)| format!("{name}={value}")).collect();
    pairs.join(", ")
}
