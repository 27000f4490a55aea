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
use crate::meshes::Meshes;
use crate::order::Order;
use crate::partials::Partials;
use crate::strategy::{Strategy, names};
use crate::unit::Unit;
use crate::unit_ranks::{Flat, MeshRanks, UnitRanks};

/// Data parallelism of a model, as one rank applies it: a strategy per unit.
///
/// All ranks of the mesh apply the same strategies to the same units, before the values are set or
/// after.
#[derive(Clone)]
pub struct DataParallel {
    meshes: Meshes,
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
            meshes: Meshes::new(groups),
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

    /// Parameters whose sharding is on `mesh`, such as experts, have their rows divided over its axes
    /// `shard` and copied over its axes `replicate`; the rest of their unit's strategy is theirs too.
    /// The mesh has the same ranks as that of the model; on a stage of a pipeline, those of the stage.
    #[must_use]
    pub fn mesh<S: AsRef<str>, R: AsRef<str>>(
        mut self,
        mesh: &Mesh,
        shard: impl AsRef<[S]>,
        replicate: impl AsRef<[R]>,
    ) -> DataParallel {
        self.meshes.add(mesh, names(shard), names(replicate));
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
        self.apply_in_order(model, || Partials::of(&self.meshes.main, model, pass))
    }

    fn apply_in_order(
        &self,
        model: &impl Module,
        learn: impl FnOnce() -> Result<Partials>,
    ) -> Result<()> {
        let order = Arc::new(Order::new(self.prefetch));
        let params = model.params();
        for modules in &self.units {
            self.meshes.main.check_stages(&modules.pattern, &modules.stages)?;
        }
        self.meshes.check()?;
        let units = self.group(&params)?;
        for unit in &units {
            self.check(unit)?;
        }
        for param in &params {
            self.state_sharding(param)?;
        }
        let partials = match self.have_all_axes(&units)? {
            true => Partials::default(),
            false => learn()?,
        };
        for mut unit in units {
            // On each stage, other gradients may be partial, but a tied unit has one order.
            if unit.of.stages.is_empty() {
                let others = |param| {
                    let (_, strategy) = self.meshes.of(param, &unit.of.strategy)?;
                    Ok(partials.beside(&strategy.axes().collect::<Vec<_>>(), param))
                };
                let others: Result<Vec<Vec<String>>> = unit.params.iter().map(others).collect();
                let mut params: Vec<_> = others?.into_iter().zip(unit.params).collect();
                params.sort_by(|(a, _), (b, _)| a.cmp(b));
                unit.params = params.into_iter().map(|(_, param)| param).collect();
            }
            self.apply_to(&unit, &order)?;
        }
        Ok(())
    }

    /// Whether each parameter is divided or copied over all axes of its mesh.
    fn have_all_axes(&self, units: &[NewUnit<'_>]) -> Result<bool> {
        for unit in units {
            for param in &unit.params {
                let (groups, strategy) = self.meshes.of(param, &unit.of.strategy)?;
                let mut axes = groups.mesh.axes().iter().map(|axis| axis.name());
                if !axes.all(|name| strategy.axes().any(|own| own == name)) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Replicates a parameter over the mesh, unless it has a sharding.
    fn state_sharding(&self, param: &Param) -> Result<()> {
        if param.sharded_shape().sharding().is_some() {
            return Ok(());
        }
        let replicated = Sharding::replicated(&self.meshes.main.mesh, param.shape())?;
        let value = param.take();
        param.shard(&replicated, self.meshes.main.rank)?;
        match value {
            Some(value) => param.set(&value.with_sharding(&replicated, self.meshes.main.rank)?),
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
        let (patterns, stage) = (self.patterns()?, self.meshes.main.stage());
        // Stages without a copy of a tied module have no parameters of that name.
        let is_elsewhere = |stages: &[usize]| !stages.is_empty() && !stages.contains(&stage);
        let is_stage = self.meshes.main.is_stage();
        let used = patterns.iter().map(|(_, of)| is_stage || is_elsewhere(&of.stages));
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
            self.meshes.main.mesh.axis(axis)?;
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
            let (_, strategy) = self.meshes.of(param, &of.strategy)?;
            let used = sharding_axes(sharding);
            if let Some(axis) = strategy.axes().find(|axis| used.contains(axis)) {
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
        let (main, Modules { strategy, stages, .. }) = (&self.meshes.main, unit.of);
        let first_stage = stages.first().copied();
        let is_counted = first_stage.is_none_or(|first| first == main.stage());
        let tied = first_stage.map(|_| main.across(stages)).transpose()?;

        let classes = classes(&unit.params);
        let mut flats = Vec::with_capacity(classes.len());
        for class in &classes {
            let (groups, strategy) = self.meshes.of(class.params[0], strategy)?;
            let shard = groups.along(&strategy.shard)?;
            let (members, index) = (shard.size(), shard.index());
            let layout = Layout::new(&class.params, strategy.whole_matrices, members, index);
            let (groups, stages) = (groups.clone(), tied.clone());
            let ranks = Arc::new(MeshRanks { strategy, shard, stages, groups });
            flats.push(Flat { layout, ranks });
        }
        let is_first = flats.iter().zip(&classes).map(|(Flat { ranks, .. }, class)| {
            let divided: Vec<&String> = class.axes.iter().chain(&ranks.strategy.shard).collect();
            is_counted && ranks.groups.is_first_beside(&divided)
        });
        let is_first: Vec<bool> = is_first.collect();
        let of = UnitRanks { strategy: strategy.clone(), flats, all: main.clone() };
        let unit = Unit::new(of, order)?;
        for (flat, (class, is_first_copy)) in classes.iter().zip(is_first).enumerate() {
            for (at, param) in class.params.iter().enumerate() {
                param.set_home(Arc::new(unit.home_of(flat, at, is_first_copy)?))?;
            }
        }
        Ok(())
    }
}

/// Parameters of one dtype that the same axes of one mesh shard. The ranks that have equal shards of a
/// parameter sum its gradients, so they divide it equally; other parameters are divided on their
/// own.
struct Class<'a> {
    mesh: Option<Mesh>,
    axes: Vec<String>,
    dtype: DType,
    params: Vec<&'a Param>,
}

fn classes(params: &[Param]) -> Vec<Class<'_>> {
    let mut classes: Vec<Class<'_>> = Vec::new();
    for param in params {
        let (shape, dtype) = (param.sharded_shape(), param.spec().dtype);
        let mesh = shape.sharding().map(|sharding| sharding.mesh().clone());
        let axes = shape.sharding().map(sharding_axes).unwrap_or_default();
        let same = |class: &&mut Class<'_>| {
            class.mesh == mesh && class.axes == axes && class.dtype == dtype
        };
        match classes.iter_mut().find(same) {
            Some(class) => class.params.push(param),
            None => classes.push(Class { mesh, axes, dtype, params: vec![param] }),
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
