//! A bound map: every output as an expression of the tensors that are read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use meshgrad_error::{Error, Result, bail, error};

use super::bind::{Binding, Dtypes, bind};
use super::coverage::find_partly_used;
use super::evaluate::Tensors;
use super::named::Named;
use super::report::{AllowedProblems, Problem, ProblemKind, Report};
use super::{Mapping, TensorSpec};
use crate::Dtype;
use crate::graph::{ElementOp, Expr, ExprSet, Graph, Leaf, Loop, widens};
use crate::plan::LoadRequest;

/// A map bound to tensors, or several maps chained.
#[derive(Clone, Debug)]
pub struct Bound {
    stages: Vec<Stage>,
    tensors: Tensors,
    made: Arc<Named>,
    used: ExprSet,
    ties: BTreeSet<(String, String)>,
    report: Report,
    allowed: AllowedProblems,
}

/// One map of a chain.
#[derive(Clone, Debug)]
struct Stage {
    mapping: Mapping,
    made: Arc<Named>,
}

/// A map and its targets.
struct Binds {
    mapping: Mapping,
    /// `None` for everything that can be produced.
    targets: Option<Vec<TensorSpec>>,
}

/// What a reversed map does, besides restoring the tensors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoundTrip {
    /// Pairs of outputs that must be equal, because both are produced from one source.
    pub ties: BTreeSet<(String, String)>,
    /// Tensors that the reversed map produces although the map does not read them.
    pub added: Vec<String>,
}

impl Mapping {
    /// Binds the map to the tensors `sources`. `targets` are the tensors to produce, with dtypes
    /// and shapes; `None` produces everything that can be produced.
    ///
    /// Float dtypes are converted to the target's; a loss of precision is a problem.
    ///
    /// # Errors
    /// A report of all problems that are not in `allowed`.
    pub fn bind(
        &self,
        sources: &[TensorSpec],
        targets: Option<&[TensorSpec]>,
        allowed: &AllowedProblems,
    ) -> Result<Bound, Report> {
        Bound::new(Vec::new(), self, self.binding(sources, targets), allowed)
    }

    /// As [`Mapping::bind`], for `targets` that are a whole model: a source that none of them uses
    /// is [`Problem::Unused`]. [`Mapping::bind`] leaves it to other parts of the model.
    ///
    /// # Errors
    /// As [`Mapping::bind`].
    pub fn bind_whole(
        &self,
        sources: &[TensorSpec],
        targets: &[TensorSpec],
        allowed: &AllowedProblems,
    ) -> Result<Bound, Report> {
        let mut binding = self.binding(sources, Some(targets));
        binding.expect_all_used();
        Bound::new(Vec::new(), self, binding, allowed)
    }

    fn binding(&self, sources: &[TensorSpec], targets: Option<&[TensorSpec]>) -> Binding {
        let (tensors, unreadable) = Tensors::of(sources);
        let mut binding = bind(self, tensors, targets, Dtypes::AsRequested);
        for (name, error) in unreadable {
            binding.report.add(Problem::Unreadable { name, error });
        }
        find_partly_used(&mut binding);
        binding
    }

    /// Binds the reversed map to the tensors of a model, to store all of them. The model need not
    /// have all tensors of the map.
    ///
    /// # Errors
    /// As [`Mapping::bind`].
    pub fn bind_to_store(&self, tensors: &[TensorSpec]) -> Result<Bound, Report> {
        // A rule of two names renames the tensor.
        let allowed = AllowedProblems::of(&[ProblemKind::Unmatched, ProblemKind::Dropped]);
        self.reversed().bind(tensors, None, &allowed)
    }
}

impl Bound {
    fn new(
        mut stages: Vec<Stage>,
        mapping: &Mapping,
        mut binding: Binding,
        allowed: &AllowedProblems,
    ) -> Result<Bound, Report> {
        binding.report.allow(allowed);
        if !binding.report.is_clean() {
            return Err(binding.report);
        }
        let made = Arc::new(binding.made.into_named());
        stages.push(Stage { mapping: mapping.clone(), made: made.clone() });
        Ok(Bound {
            stages,
            tensors: binding.tensors,
            made,
            used: binding.used,
            ties: binding.ties,
            report: binding.report,
            allowed: allowed.clone(),
        })
    }

    /// The expressions.
    pub fn graph(&self) -> &Graph {
        &self.tensors.graph
    }

    /// The outputs, sorted by name.
    pub fn outputs(&self) -> impl Iterator<Item = TensorSpec> {
        specs(&self.tensors.graph, &self.made)
    }

    /// Load requests for all outputs, each as a whole.
    pub fn requests(&self) -> Vec<LoadRequest> {
        let made = self.made.iter();
        let all =
            made.map(|(name, expr)| LoadRequest::all(name.clone(), &self.tensors.graph, expr));
        all.collect()
    }

    /// The expression of an output.
    pub fn expr(&self, name: &str) -> Option<Expr> {
        self.made.get(name)
    }

    /// The outputs by name as expressions of another graph, in which casts and other operations on
    /// elements have F64 results ([`Graph::unrounded`]).
    ///
    /// # Errors
    /// For too many nested operations.
    pub fn unrounded(&self) -> Result<(Graph, BTreeMap<Arc<str>, Expr>)> {
        let (graph, exprs) = self.tensors.graph.unrounded()?;
        let made = self.made.iter();
        let made = made.map(|(name, expr)| (name.clone(), exprs[expr.index()]));
        Ok((graph, made.collect()))
    }

    /// The tensors that are read, sorted by name.
    pub fn inputs(&self) -> impl Iterator<Item = TensorSpec> {
        let named = self.tensors.named.iter();
        let used = named.filter(|(_, expr)| self.used.contains(*expr));
        used.map(|(name, expr)| spec(name, &self.tensors.graph, expr))
    }

    /// Pairs of sources that must be equal. The first of each pair is used.
    pub fn ties(&self) -> &BTreeSet<(String, String)> {
        &self.ties
    }

    /// Problems that were allowed, and counts of widened and skipped tensors.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Chains another map, whose sources are the outputs of this one.
    ///
    /// # Errors
    /// As [`Mapping::bind`].
    pub fn then(
        &self,
        next: &Mapping,
        targets: Option<&[TensorSpec]>,
        allowed: &AllowedProblems,
    ) -> Result<Bound, Report> {
        let made = named(&self.tensors.graph, &self.made);
        let mut binding = bind(next, made, targets, Dtypes::AsRequested);
        binding.used = self.used.clone();
        binding.ties = self.ties.clone();
        binding.tensors.named = self.tensors.named.clone();
        find_partly_used(&mut binding);
        Bound::new(self.stages.clone(), next, binding, allowed)
    }

    /// The inverse map: from the outputs, it computes the tensors that this map reads. Dtypes are
    /// not converted back.
    ///
    /// Before returning, this checks element by element that a round trip in either direction
    /// changes nothing. Outputs produced from the same source must be equal; they are in
    /// [`Bound::ties`].
    ///
    /// # Errors
    /// When the map has no inverse, a round trip would change a tensor, or a tensor needs too many
    /// copies to be traced.
    pub fn inverse(&self) -> Result<Bound> {
        let read: Vec<TensorSpec> = self.inputs().collect();
        let made: Vec<TensorSpec> = self.outputs().collect();
        let way_back = self.way_back(read.clone());
        let none = AllowedProblems::none();
        let mut back = follow(&way_back, Tensors::of(&made).0, &none).map_err(unsolvable)?;

        let sources = named(&self.tensors.graph, &self.made);
        let there_and_back = follow(&way_back, sources, &none).map_err(unsolvable)?;
        for spec in &read {
            there_and_back.check_elements(&spec.name)?;
        }
        let sources = named(&back.tensors.graph, &back.made);
        let back_and_there = follow(&self.way_there(), sources, &none).map_err(unsolvable)?;
        for name in made.into_iter().map(|spec| spec.name) {
            match back_and_there.origin(&name)? {
                Some(origin) if origin != name => {
                    back.ties.insert((origin, name));
                }
                _ => {}
            }
        }
        Ok(back)
    }

    /// Checks that the reversed map, which knows only the outputs, restores every tensor that this
    /// map reads: name, dtype, shape and each element. In contrast, [`Bound::inverse`] knows the
    /// tensors to restore.
    ///
    /// # Errors
    /// As [`Bound::inverse`]; when tensors are left out, which was allowed.
    pub fn round_trip(&self) -> Result<RoundTrip> {
        let left_out = self.report.allowed.iter().find_map(Problem::left_out);
        if let Some(name) = left_out {
            bail!(Invalid, "`{}` is left out, which was allowed", name.escape_debug());
        }
        let ties = self.inverse()?.ties;
        let mut way_back = self.way_back(Vec::new());
        way_back.iter_mut().for_each(|binds| binds.targets = None);
        let sources = named(&self.tensors.graph, &self.made);
        let back = follow(&way_back, sources, &self.allowed);
        let back =
            back.map_err(|report| error!(Invalid, "the reversed map is refused: {report}"))?;

        let mut read = BTreeSet::new();
        for spec in self.inputs() {
            back.check_type(&spec)?;
            back.check_elements(&spec.name)?;
            read.insert(spec.name);
        }
        let made = back.made.iter().map(|(name, _)| name.to_string());
        let added = made.filter(|name| !read.contains(name)).collect();
        Ok(RoundTrip { ties, added })
    }

    /// Checks that this map, a round trip, keeps the dtype and shape of a tensor.
    fn check_type(&self, spec: &TensorSpec) -> Result<()> {
        let graph = &self.tensors.graph;
        let Some(expr) = self.made.get(&spec.name) else {
            return Ok(()); // reported with the elements
        };
        let (dtype, shape) = (graph.dtype(expr), graph.shape(expr));
        let before = (spec.dtype, &spec.shape[..]);
        if (dtype, shape) == before {
            return Ok(());
        }
        let why =
            format!("it would become {dtype} {shape:?} instead of {} {:?}", before.0, before.1);
        Err(changed(&spec.name, &why))
    }

    /// Checks that this map, a round trip, keeps every element of the tensor `name`.
    fn check_elements(&self, name: &str) -> Result<()> {
        let why = match self.origin(name)? {
            Some(origin) if origin == *name => return Ok(()),
            Some(origin) => format!("it would become `{}`", origin.escape_debug()),
            None => "it is lost".to_owned(),
        };
        Err(changed(name, &why))
    }

    /// The maps in order, each with its outputs as targets.
    fn way_there(&self) -> Vec<Binds> {
        let stages = self.stages.iter();
        let binds = stages.map(|stage| Binds {
            mapping: stage.mapping.clone(),
            targets: Some(specs(&self.tensors.graph, &stage.made).collect()),
        });
        binds.collect()
    }

    /// The maps in reverse order and direction; the last one produces `read`.
    fn way_back(&self, read: Vec<TensorSpec>) -> Vec<Binds> {
        let mut targets = Some(read);
        let mut back = Vec::new();
        for sources in self.way_there() {
            let mapping = sources.mapping.reversed();
            let targets = std::mem::replace(&mut targets, sources.targets);
            back.push(Binds { mapping, targets });
        }
        back.reverse();
        back
    }

    /// The source of an output that is unchanged except for exact conversions; `None` if there is
    /// no such output.
    fn origin(&self, name: &str) -> Result<Option<String>> {
        match self.made.get(name) {
            Some(expr) => origin(&self.tensors.graph, name, expr).map(Some),
            None => Ok(None),
        }
    }
}

/// Chains maps. Outputs are not converted to the dtypes of the targets.
fn follow(way: &[Binds], tensors: Tensors, allowed: &AllowedProblems) -> Result<Bound, Report> {
    let mut bound: Option<Bound> = None;
    for Binds { mapping, targets } in way {
        let sources = match &bound {
            Some(bound) => named(&bound.tensors.graph, &bound.made),
            None => tensors.clone(),
        };
        let mut binding = bind(mapping, sources, targets.as_deref(), Dtypes::Unchanged);
        let mut before = Vec::new();
        if let Some(bound) = bound {
            binding.used = bound.used;
            binding.ties.extend(bound.ties);
            binding.tensors.named = bound.tensors.named;
            before = bound.stages;
        }
        bound = Some(Bound::new(before, mapping, binding, allowed)?);
    }
    match bound {
        Some(bound) => Ok(bound),
        None => Err(Report::default()), // a bound map has at least one stage
    }
}

/// The outputs by name.
fn named(graph: &Graph, made: &Arc<Named>) -> Tensors {
    Tensors { graph: graph.clone(), named: made.clone() }
}

fn specs(graph: &Graph, named: &Named) -> impl Iterator<Item = TensorSpec> {
    named.iter().map(|(name, expr)| spec(name, graph, expr))
}

fn spec(name: &str, graph: &Graph, expr: Expr) -> TensorSpec {
    TensorSpec::new(name, graph.dtype(expr), graph.shape(expr))
}

/// The first of these operations that may change a value.
fn inexact(mut dtype: Dtype, steps: &[ElementOp]) -> Option<&ElementOp> {
    steps.iter().find(|step| match step {
        ElementOp::Cast(to) => !widens(std::mem::replace(&mut dtype, *to), *to),
        ElementOp::Scale(_) | ElementOp::Add(_) => true,
    })
}

/// The error for equations that cannot be solved for the sources.
fn unsolvable(report: Report) -> Error {
    error!(Invalid, "the map has no inverse: {report}")
}

/// The error for a tensor that a round trip changes.
fn changed(name: &str, why: &str) -> Error {
    error!(Invalid, "a round trip would change `{}`: {why}", name.escape_debug())
}

/// The source that an expression equals, except for exact conversions.
fn origin(graph: &Graph, name: &str, expr: Expr) -> Result<String> {
    let changed = |why: &str| changed(name, why);
    let mut origin = None;
    for copy in graph.copies_of_all(expr)? {
        let Leaf::Source(source) = copy.from else {
            let what = graph.leaf_name(copy.from);
            return Err(changed(&format!("{what} would produce some of its elements")));
        };
        if let Some(step) = inexact(graph.source_dtype(source), &copy.steps) {
            return Err(changed(&format!("{} changes its values", step.name())));
        }
        let moved = |it: &Loop| it.source_stride != it.destination_stride;
        if copy.source_offset != copy.destination_offset || copy.loops.iter().any(moved) {
            return Err(changed("its elements would move"));
        }
        match origin {
            Some(first) if first != source => {
                let (a, b) = (graph.name(first), graph.name(source));
                return Err(changed(&format!("it would be assembled from `{a}` and `{b}`")));
            }
            _ => origin = Some(source),
        }
    }
    match origin {
        Some(source) => Ok(graph.name(source).to_owned()),
        None => Ok(name.to_owned()), // there are no elements that could differ
    }
}
