//! The units of a model, and how each lives on the ranks.

use std::sync::Arc;

use glob::{MatchOptions, Pattern};
use meshgrad_autograd::{Module, Param, Var};
use meshgrad_collectives::{Communicator, Rank};
use meshgrad_error::{bail, error};
use meshgrad_mesh::{Mesh, Sharding, nearest_name};
use meshgrad_runtime::{DType, Device, Result};

use crate::groups::Groups;
use crate::layout::Layout;
use crate::order::Order;
use crate::partials::Partials;
use crate::strategy::Strategy;
use crate::unit::Unit;
use crate::unit_ranks::UnitRanks;

/// Data parallelism of a model, as one rank applies it: a strategy per unit.
///
/// All ranks of the mesh apply the same strategies to the same units, before the values are set or
/// after.
#[derive(Clone)]
pub struct DataParallel {
    groups: Groups,
    units: Vec<Modules>,
    rest: Modules,
    prefetch: usize,
}

/// Modules that are units.
#[derive(Clone)]
struct Modules {
    pattern: String,
    strategy: Strategy,
    /// The stages of a pipeline that have copies of them; none for those of one stage.
    stages: Vec<usize>,
}

/// A unit before its parameters move.
struct NewUnit<'a> {
    name: String,
    of: &'a Modules,
    params: Vec<Param>,
}

impl DataParallel {
    /// On `mesh`. Parameters that are in no other unit are one unit, with the strategy `rest`.
    pub fn new(rank: &dyn Rank, mesh: &Mesh, rest: Strategy) -> DataParallel {
        DataParallel::with(Groups::new(rank, mesh), rest)
    }

    /// On one stage of a pipeline. The stages are along `axis` of `mesh`; each computes on the
    /// other axes ([`Mesh::at`]), and applies this to its own part of the model. Norms of gradients
    /// are those of all stages.
    ///
    /// # Errors
    /// When `mesh` has no such axis, or does not contain the rank.
    pub fn of_stage(
        rank: &dyn Rank,
        mesh: &Mesh,
        axis: &str,
        rest: Strategy,
    ) -> Result<DataParallel> {
        Ok(DataParallel::with(Groups::of_stage(rank, mesh, axis)?, rest))
    }

    fn with(groups: Groups, rest: Strategy) -> DataParallel {
        DataParallel {
            groups,
            units: Vec::new(),
            rest: Modules { pattern: String::new(), strategy: rest, stages: Vec::new() },
            prefetch: 1,
        }
    }

    /// Makes a unit of each module whose name matches `modules`, such as `model.layers.*`, where
    /// `*` matches one component of the name. A parameter belongs to the innermost of the modules
    /// that it is in; of two patterns that match one module, the later one counts.
    #[must_use]
    pub fn unit(self, modules: &str, strategy: Strategy) -> DataParallel {
        self.tied(modules, strategy, &[])
    }

    /// As [`DataParallel::unit`], for a module that the stages `stages` of a pipeline have copies
    /// of, such as a tied embedding table. The copies have the gradient of one: that of all stages.
    /// They start with equal values, and each rank keeps the same rows as its peers on the other
    /// stages, so they stay equal. They count once, as those of the first of these stages. Several
    /// tied modules have the same order on all their stages.
    #[must_use]
    pub fn tied(mut self, modules: &str, strategy: Strategy, stages: &[usize]) -> DataParallel {
        let mut distinct: Vec<usize> = Vec::new();
        for stage in stages {
            if !distinct.contains(stage) {
                distinct.push(*stage);
            }
        }
        self.units.push(Modules { pattern: modules.to_owned(), strategy, stages: distinct });
        self
    }

    /// The number of units that are gathered ahead of their use; 1 by default. Each holds the
    /// memory of a gathered unit.
    #[must_use]
    pub fn prefetch(self, units: usize) -> DataParallel {
        DataParallel { prefetch: units, ..self }
    }

    /// Moves the parameters of `model` to their homes: those that have values, and the initial
    /// values or loaded ones that are set later. Parameters without a sharding become replicated
    /// over the mesh.
    ///
    /// # Errors
    /// When a home does not fit its parameters or a parameter has one already, before anything
    /// moves; when memory runs out.
    pub fn apply(&self, model: &impl Module) -> Result<()> {
        self.apply_in_order(model, || Ok(Partials::default()))
    }

    /// [`DataParallel::apply`] for a model that other axes of the mesh than those of the strategies
    /// divide too, as in tensor parallelism. Some gradients, such as those of norms under sequence
    /// parallelism, are partial sums along these axes. Parameters with the same partial axes are
    /// adjacent in the buffer of a unit, so that one more collective sums them all.
    ///
    /// Which axes these are follows from `pass`, which computes a loss of the model, a scalar, on a
    /// meta device. It is called at most once, before anything moves.
    ///
    /// # Errors
    /// As [`DataParallel::apply`]; those of `pass` and of backward. Parameters without a sharding
    /// are replicated then.
    pub fn apply_for(
        &self,
        model: &impl Module,
        pass: impl FnOnce(&Device) -> Result<Var>,
    ) -> Result<()> {
        self.apply_in_order(model, || Partials::of(&self.groups, model, pass))
    }

    fn apply_in_order(
        &self,
        model: &impl Module,
        learn: impl FnOnce() -> Result<Partials>,
    ) -> Result<()> {
        let order = Arc::new(Order::new(self.prefetch));
        let params = model.params();
        for modules in &self.units {
            self.groups.check_stages(&modules.pattern, &modules.stages)?;
        }
        let units = self.group(&params)?;
        for unit in &units {
            self.check(unit)?;
        }
        for param in &params {
            self.state_sharding(param)?;
        }
        let partials = match units.iter().all(|unit| self.has_all_axes(&unit.of.strategy)) {
            true => Partials::default(),
            false => learn()?,
        };
        for mut unit in units {
            // On each stage, other gradients may be partial, but a tied unit has one order.
            if unit.of.stages.is_empty() {
                let axes: Vec<&String> = unit.of.strategy.axes().collect();
                unit.params.sort_by_cached_key(|param| partials.beside(&axes, param));
            }
            self.apply_to(&unit, &order)?;
        }
        Ok(())
    }

    /// Whether a strategy is over all axes of the mesh.
    fn has_all_axes(&self, strategy: &Strategy) -> bool {
        let mut axes = self.groups.mesh.axes().iter().map(|axis| axis.name());
        axes.all(|name| strategy.axes().any(|own| own == name))
    }

    /// Replicates a parameter over the mesh, unless it has a sharding.
    fn state_sharding(&self, param: &Param) -> Result<()> {
        if param.sharded_shape().sharding().is_some() {
            return Ok(());
        }
        let replicated = Sharding::replicated(&self.groups.mesh, param.shape())?;
        let value = param.take();
        param.shard(&replicated, self.groups.rank)?;
        match value {
            Some(value) => param.set(&value.with_sharding(&replicated, self.groups.rank)?),
            None => Ok(()),
        }
    }

    fn patterns(&self) -> Result<Vec<(Pattern, &Modules)>> {
        let patterns = self.units.iter().map(|modules| {
            let pattern = Pattern::new(&modules.pattern.replace('.', "/"));
            let pattern = pattern.map_err(|problem| {
                let pattern = &modules.pattern;
                error!(Invalid, "`{pattern}` is not a pattern of module names: {problem}")
            })?;
            Ok((pattern, modules))
        });
        patterns.collect()
    }

    /// The units with their parameters, in the order of their first ones.
    fn group<'a>(&'a self, params: &[Param]) -> Result<Vec<NewUnit<'a>>> {
        let (patterns, stage) = (self.patterns()?, self.groups.stage());
        // Stages without a copy of a tied module have no parameters of that name.
        let is_elsewhere = |stages: &[usize]| !stages.is_empty() && !stages.contains(&stage);
        let used = patterns.iter().map(|(_, of)| is_elsewhere(&of.stages));
        let mut used: Vec<bool> = used.collect();
        let mut units: Vec<NewUnit<'_>> = Vec::new();
        for param in params {
            let found = modules_of(param.name()).find_map(|module| {
                let path = module.replace('.', "/");
                let matches =
                    |(pattern, _): &(Pattern, &Modules)| pattern.matches_with(&path, EACH);
                let at = patterns.iter().rposition(matches)?;
                Some((module, at))
            });
            let (name, of) = match found {
                Some((module, at)) => {
                    used[at] = true;
                    (module, patterns[at].1)
                }
                None => ("", &self.rest),
            };
            match units.iter_mut().find(|unit| unit.name == name) {
                Some(unit) => unit.params.push(param.clone()),
                None => {
                    units.push(NewUnit { name: name.to_owned(), of, params: vec![param.clone()] })
                }
            }
        }
        if let Some(unused) = used.iter().position(|used| !used) {
            let pattern = &self.units[unused].pattern;
            let modules = params.iter().flat_map(|param| modules_of(param.name()));
            let hint = match nearest_name(pattern, modules) {
                Some(name) => format!("; did you mean `{name}`?"),
                None => String::new(),
            };
            bail!(Invalid, "no parameter is in a module named `{pattern}`{hint}");
        }
        Ok(units)
    }

    /// Checks a home against the parameters of its unit.
    fn check(&self, unit: &NewUnit<'_>) -> Result<()> {
        let NewUnit { name, of, params } = unit;
        let axes: Vec<&String> = of.strategy.axes().collect();
        for (at, axis) in axes.iter().enumerate() {
            self.groups.mesh.axis(axis)?;
            if axes[..at].contains(axis) {
                bail!(
                    Invalid,
                    "axis `{axis}` is named twice by the home of unit `{name}`; name it in `shard` \
                     or in `replicate`"
                );
            }
        }
        for param in params {
            if param.home().is_some() {
                bail!(Invalid, "`{}` has a home already: give homes to a model once", param.name());
            }
            let shape = param.sharded_shape();
            let Some(sharding) = shape.sharding() else {
                continue;
            };
            if *sharding.mesh() != self.groups.mesh {
                bail!(
                    Invalid,
                    "`{}` is on mesh {}, and its home on mesh {}; use one mesh for both",
                    param.name(),
                    sharding.mesh(),
                    self.groups.mesh
                );
            }
            let used = sharding_axes(sharding);
            if let Some(axis) = axes.iter().find(|axis| used.contains(axis)) {
                bail!(
                    Invalid,
                    "axis `{axis}` shards `{}` ({sharding}), so the home of unit `{name}` cannot \
                     divide or copy its rows over it; leave the axis out of the home, or out of \
                     the plan",
                    param.name()
                );
            }
        }
        Ok(())
    }

    fn apply_to(&self, unit: &NewUnit<'_>, order: &Arc<Order>) -> Result<()> {
        let (groups, Modules { strategy, stages, .. }) = (self.groups.clone(), unit.of);
        let shard = groups.along(&strategy.shard)?;
        let first_stage = stages.first().copied();
        let is_counted = first_stage.is_none_or(|first| first == groups.stage());
        let stages = first_stage.map(|_| groups.across(stages)).transpose()?;

        let classes = classes(&unit.params);
        let layout = |class: &Class<'_>| {
            let whole_matrices = strategy.whole_matrices;
            Layout::new(&class.params, whole_matrices, shard.size(), shard.index())
        };
        let layouts = classes.iter().map(layout).collect();
        let of = UnitRanks { strategy: strategy.clone(), layouts, shard, stages, groups };
        let unit = Unit::new(of, order)?;
        for (layout, class) in classes.iter().enumerate() {
            let divided: Vec<&String> = class.axes.iter().chain(&strategy.shard).collect();
            let is_first_copy = is_counted && self.groups.is_first_beside(&divided);
            for (at, param) in class.params.iter().enumerate() {
                param.set_home(Arc::new(unit.home_of(layout, at, is_first_copy)?))?;
            }
        }
        Ok(())
    }
}

/// Parameters of one dtype that the same axes shard. The ranks that have equal shards of a
/// parameter sum its gradients, so they divide it equally; other parameters are divided on their
/// own.
struct Class<'a> {
    axes: Vec<String>,
    dtype: DType,
    params: Vec<&'a Param>,
}

fn classes(params: &[Param]) -> Vec<Class<'_>> {
    let mut classes: Vec<Class<'_>> = Vec::new();
    for param in params {
        let axes = param.sharded_shape().sharding().map(sharding_axes);
        let (axes, dtype) = (axes.unwrap_or_default(), param.spec().dtype);
        let same = |class: &&mut Class<'_>| class.axes == axes && class.dtype == dtype;
        match classes.iter_mut().find(same) {
            Some(class) => class.params.push(param),
            None => classes.push(Class { axes, dtype, params: vec![param] }),
        }
    }
    classes
}

/// `*` matches one component.
const EACH: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: false,
};

/// The modules that a parameter is in, the innermost first, and its own name before them.
fn modules_of(name: &str) -> impl Iterator<Item = &str> {
    let ends = name.rmatch_indices('.').map(|(at, _)| at);
    [name.len()].into_iter().chain(ends).map(|end| &name[..end])
}

/// The axes that shard a dim.
fn sharding_axes(sharding: &Sharding) -> Vec<String> {
    let placements = sharding.placements().into_iter();
    let sharding = placements.filter(|(_, at)| at.dim().is_some());
    sharding.map(|(axis, _)| axis.to_owned()).collect()
}
