//! Gradient buffers of parameters. They live as long as the optimizer.

use std::collections::HashMap;

use meshgrad_collectives::check_replicas;
use meshgrad_error::{bail, ensure, error};
use meshgrad_mesh::Sharding;
use meshgrad_runtime::{
    Accumulator, DType, Device, Kind, Shape, ShardedShape, Tensor, UninitTensor, ops,
};

use crate::home::HomeGradients;
use crate::norm::norm_over_ranks;
use crate::ops::global_norm;
use crate::{Param, ParamId, Result};

/// Called with each parameter once its gradient is complete in a backward pass.
type OnReady = Box<dyn FnMut(&Param, &Tensor) -> Result<()> + Send>;

/// Gradient buffers for a list of parameters, in f32 (f64 for f64 parameters).
///
/// Gradients accumulate over backward passes until [`Grads::clear`]. Gradients of parameters that
/// are not in the list are not computed.
///
/// The gradient of a parameter with a [`Home`](crate::Home) is reduced over ranks. It has the rows
/// that this rank keeps, in the shape of [`Home::value`](crate::Home::value). The first
/// [`Grads::get`] or [`Grads::all`] after the backward passes of a step then communicates: all ranks
/// call it.
#[derive(Default)]
pub struct Grads {
    entries: Vec<Entry>,
    /// The buffers of parameters without a home, by device and dtype.
    flat: Vec<Tensor>,
    index: HashMap<ParamId, usize>,
    units: Vec<Unit>,
    /// Whether a pass has run since they were cleared.
    has_passes: bool,
    /// The passes since then.
    passes: usize,
    /// The passes of a step, if they are not announced by stage; 0 and 1 are the same.
    expected_passes: usize,
    /// Whether the last passes of a stage are announced, and not those of all parameters.
    is_next_of_stage: bool,
    /// The unit whose reduction started last.
    in_flight: Option<usize>,
    on_ready: Option<OnReady>,
    ready: Readiness,
}

struct Entry {
    param: Param,
    /// `None` for a parameter with a home to which the passes since the last reduction added
    /// nothing.
    sum: Option<Accumulator>,
    /// Its unit, and its position there.
    unit: Option<(usize, usize)>,
    /// Whether a gradient was reduced.
    is_reduced: bool,
    /// Whether its last pass before the gradients are read is announced by stage.
    is_announced: bool,
}

/// Parameters whose gradients are reduced together.
struct Unit {
    gradients: Box<dyn HomeGradients>,
    /// Its entries.
    entries: Vec<usize>,
    /// The number of entries that are not reported in this pass.
    left: usize,
    /// Whether this pass uses one of them, or is their last.
    is_in_pass: bool,
    /// Whether this pass is the last that is expected for them before the gradients are read.
    is_last_pass: bool,
    /// Whether that pass has run.
    has_run_last: bool,
    /// Whether the reductions are complete, so that they can be read.
    is_finished: bool,
    /// The reduced gradients then.
    parts: Vec<Tensor>,
}

impl Unit {
    fn clear(&mut self) {
        self.gradients.clear();
        self.parts.clear();
        (self.is_last_pass, self.has_run_last, self.is_finished) = (false, false, false);
    }
}

impl Entry {
    fn clear(&mut self) {
        (self.is_reduced, self.is_announced) = (false, false);
        match (&mut self.sum, self.unit) {
            (Some(sum), None) => sum.clear(),
            (sum, _) => *sum = None,
        }
    }

    fn has_gradient(&self) -> bool {
        self.is_reduced || self.sum.as_ref().is_some_and(|sum| !sum.is_empty())
    }

    /// The gradient of a parameter without a home; zeros, placed like the parameter, if nothing was
    /// added.
    fn total(&mut self) -> Result<Tensor> {
        let shape = self.param.sharded_shape();
        let Some(sum) = &mut self.sum else {
            return Err(no_gradient(&self.param));
        };
        if !sum.is_empty() {
            return Ok(sum.total()?.clone());
        }
        let zeros = sum.total()?.clone();
        // The next gradient that is added still determines the sharding.
        sum.clear();
        match zeros.sharding() {
            Some(_) => Ok(zeros),
            None => shape.part(&zeros),
        }
    }
}

fn no_gradient(param: &Param) -> crate::Error {
    error!(
        Invalid,
        "there is no gradient of `{}`: add the parameter to the list that these `Grads` were \
         created with",
        param.name()
    )
}

/// Progress of a backward pass, by parameter.
#[derive(Default)]
struct Readiness {
    /// Remaining uses, by entry.
    left: Vec<u32>,
    /// Entries from this one on have been reported.
    reported: usize,
}

impl Grads {
    /// Buffers for `params`, on the devices of their values. Those of parameters without a home are
    /// consecutive views of one flat buffer per device and dtype, in the order of `params`; of a
    /// sharded parameter, for this rank's part.
    ///
    /// # Errors
    /// When a parameter has no value; when memory runs out.
    pub fn new(params: &[Param]) -> Result<Grads> {
        let mut grads = Grads::default();
        for param in params {
            if grads.index.contains_key(&param.id()) {
                continue; // A tied parameter may be listed twice.
            }
            grads.index.insert(param.id(), grads.entries.len());
            grads.entries.push(Entry {
                param: param.clone(),
                sum: None,
                unit: None,
                is_reduced: false,
                is_announced: false,
            });
        }
        grads.add_flat()?;
        grads.add_units()?;
        Ok(grads)
    }

    /// Adds the buffers of parameters without a home, by device and dtype.
    fn add_flat(&mut self) -> Result<()> {
        let mut kinds: Vec<(Device, DType)> = Vec::new();
        let mut of_kind: Vec<Vec<usize>> = Vec::new();
        for (at, entry) in self.entries.iter().enumerate() {
            if entry.param.home().is_some() {
                continue;
            }
            let kind = (entry.param.value()?.device().clone(), entry.param.gradient_dtype());
            match kinds.iter().position(|other| *other == kind) {
                Some(known) => of_kind[known].push(at),
                None => {
                    kinds.push(kind);
                    of_kind.push(vec![at]);
                }
            }
        }
        for ((device, dtype), entries) in kinds.iter().zip(of_kind) {
            let shapes = entries.iter().map(|at| self.entries[*at].param.sharded_shape());
            let shapes: Vec<ShardedShape> = shapes.collect();
            let elements = shapes.iter().map(|shape| shape.local().elements()).sum();
            let shape = Shape::new(&[elements])?;
            let flat = UninitTensor::with_kind(device, shape, *dtype, Kind::Gradient)?.finish();
            let mut start = 0;
            for (at, shape) in entries.into_iter().zip(shapes) {
                let range = start..start + shape.local().elements();
                start = range.end;
                let view = ops::reshape(&flat.slice(0, range)?, shape.local())?;
                self.entries[at].sum = Some(Accumulator::over(view)?.with_shape(shape)?);
            }
            self.flat.push(flat);
        }
        Ok(())
    }

    fn add_units(&mut self) -> Result<()> {
        let mut units: Vec<(u64, Vec<usize>)> = Vec::new();
        for (at, entry) in self.entries.iter().enumerate() {
            let Some(home) = entry.param.home() else {
                continue;
            };
            let id = home.unit().id();
            match units.iter_mut().find(|(other, _)| *other == id) {
                Some((_, entries)) => entries.push(at),
                None => units.push((id, vec![at])),
            }
        }
        for (_, entries) in units {
            let params = entries.iter().map(|at| &self.entries[*at].param);
            let Some(home) = params.clone().find_map(Param::home) else {
                continue;
            };
            let params: Vec<ParamId> = params.map(Param::id).collect();
            for (position, at) in entries.iter().enumerate() {
                self.entries[*at].unit = Some((self.units.len(), position));
            }
            self.units.push(Unit {
                gradients: home.unit().gradients(&params)?,
                entries,
                left: 0,
                is_in_pass: false,
                is_last_pass: false,
                has_run_last: false,
                is_finished: false,
                parts: Vec::new(),
            });
        }
        Ok(())
    }

    /// The parameters, in the order of the list.
    pub fn params(&self) -> impl Iterator<Item = &Param> {
        self.entries.iter().map(|entry| &entry.param)
    }

    /// The gradient of `param`; zeros if nothing was added.
    ///
    /// # Errors
    /// For a parameter that is not in the list; as [`Grads::all`].
    pub fn get(&mut self, param: &Param) -> Result<Tensor> {
        let at = *self.index.get(&param.id()).ok_or_else(|| no_gradient(param))?;
        self.finish_all()?;
        self.total(at)
    }

    fn total(&mut self, at: usize) -> Result<Tensor> {
        let entry = &mut self.entries[at];
        match entry.unit {
            Some((unit, position)) => Ok(self.units[unit].parts[position].clone()),
            None => entry.total(),
        }
    }

    /// Every parameter with its gradient, in the order of the list.
    ///
    /// # Errors
    /// When no op of the passes used a parameter that is not optional; while the storage is in use;
    /// errors of the communication.
    pub fn all(&mut self) -> Result<Vec<(Param, Tensor)>> {
        let gradients = self.gradients()?;
        Ok(self.params().cloned().zip(gradients).collect())
    }

    /// Every gradient, in the order of the parameters.
    ///
    /// # Errors
    /// As [`Grads::all`].
    pub fn gradients(&mut self) -> Result<Vec<Tensor>> {
        self.finish_all()?;
        (0..self.entries.len()).map(|at| self.total(at)).collect()
    }

    /// Takes the gradients of `params`, the parameters of a stage of a model, after a backward pass of
    /// that stage, and clears them. Other stages may be in the middle of their passes. The tensors
    /// keep their values until the stage's next pass.
    ///
    /// # Errors
    /// For a parameter that is not in the list, or whose unit has parameters of another stage; as
    /// [`Grads::all`].
    pub fn take(&mut self, params: &[Param]) -> Result<Vec<Tensor>> {
        let at = |param: &Param| self.index.get(&param.id()).copied();
        let entries = params.iter().map(|param| at(param).ok_or_else(|| no_gradient(param)));
        let entries: Vec<usize> = entries.collect::<Result<_>>()?;
        let mut units: Vec<usize> =
            entries.iter().filter_map(|at| Some(self.entries[*at].unit?.0)).collect();
        units.sort_unstable();
        units.dedup();
        let of_units = units.iter().flat_map(|unit| &self.units[*unit].entries);
        if let Some(other) = of_units.clone().find(|at| !entries.contains(at)) {
            bail!(
                Invalid,
                "take: `{}` is in the unit of a parameter of another stage; make units of parts of \
                 one stage",
                self.entries[*other].param.name()
            );
        }
        self.finish(&entries, &units)?;
        let totals = entries.iter().map(|at| self.total(*at)).collect::<Result<_>>()?;
        entries.iter().for_each(|at| self.entries[*at].clear());
        units.iter().for_each(|at| self.units[*at].clear());
        self.has_passes = self.entries.iter().any(Entry::has_gradient);
        Ok(totals)
    }

    /// The L2 norm of all gradients. Each element of a parameter counts once, and all ranks that
    /// share in parameters with homes call this. An f32 scalar without a sharding.
    ///
    /// # Errors
    /// When there is no gradient, or when some parameters have homes and others do not; errors of
    /// the communication.
    pub fn norm(&mut self) -> Result<Tensor> {
        let gradients = self.all()?;
        if self.units.is_empty() {
            let is_whole = |(_, gradient): &(Param, Tensor)| {
                gradient.sharding().is_none_or(Sharding::is_replicated)
            };
            let flat: Vec<&Tensor> = match gradients.iter().all(is_whole) {
                true => self.flat.iter().collect(),
                false => gradients.iter().map(|(_, gradient)| gradient).collect(),
            };
            return Ok(global_norm(&flat)?.local());
        }
        norm_over_ranks(&gradients)
    }

    /// Clears all gradients. This costs nothing: the next gradient overwrites the buffer.
    pub fn clear(&mut self) {
        self.entries.iter_mut().for_each(Entry::clear);
        for unit in &mut self.units {
            unit.gradients.end_pass(); // it may have failed
            unit.clear();
        }
        (self.has_passes, self.passes, self.is_next_of_stage) = (false, 0, false);
        self.in_flight = None;
    }

    /// The buffers, on any device. Between steps they hold nothing that is needed.
    pub fn buffers(&self) -> Vec<Tensor> {
        let of_units = self.units.iter().flat_map(|unit| unit.gradients.buffers());
        self.flat.iter().cloned().chain(of_units).collect()
    }

    /// Sets how many backward passes add to the gradients of a step, until it is set again; 1 by default.
    /// The reductions over ranks of [`Home`](crate::Home)s start in the last one, beside the rest of it.
    ///
    /// Another number of passes gives the same gradients, up to rounding: each further pass is reduced by
    /// itself, and what no pass has reduced is reduced when the gradients are read.
    pub fn expect_passes(&mut self, passes: usize) {
        self.expected_passes = passes;
    }

    /// Announces for which parameters the next backward pass is the last: it is that of a stage of a
    /// model, and `params` are those of the stage, or none. Other stages have later passes. A unit is
    /// reduced after the last pass of all its parameters.
    pub fn last_pass_of<'p>(&mut self, params: impl IntoIterator<Item = &'p Param>) {
        self.is_next_of_stage = true;
        for param in params {
            if let Some(at) = self.index.get(&param.id()) {
                self.entries[*at].is_announced = true;
            }
        }
    }

    fn finish_all(&mut self) -> Result<()> {
        let entries: Vec<usize> = (0..self.entries.len()).collect();
        let units: Vec<usize> = (0..self.units.len()).collect();
        self.finish(&entries, &units)
    }

    /// Completes the reductions of `units`, which have `entries`, over ranks.
    fn finish(&mut self, entries: &[usize], units: &[usize]) -> Result<()> {
        if !units.is_empty() && units.iter().all(|at| self.units[*at].is_finished) {
            return Ok(());
        }
        if self.has_passes {
            self.check_used(entries)?;
        }
        for at in units.iter().rev() {
            let unit = &mut self.units[*at];
            unit.is_last_pass = true;
            let waits = self.has_passes && !unit.has_run_last;
            let has_sum = unit.entries.iter().any(|at| self.entries[*at].sum.is_some());
            // Also without a sum, since another rank may have one.
            if has_sum || waits && !unit.gradients.reduces_each_pass() {
                self.reduce(*at)?;
            }
        }
        for at in units.iter().rev() {
            let unit = &mut self.units[*at];
            (unit.parts, unit.is_finished) = (unit.gradients.finish()?, true);
        }
        self.in_flight = self.in_flight.filter(|at| !units.contains(at));
        Ok(())
    }

    /// Checks that every one of `entries` that is not optional has a gradient.
    fn check_used(&self, entries: &[usize]) -> Result<()> {
        let entries = entries.iter().map(|at| &self.entries[*at]);
        let untouched = entries.filter(|entry| !entry.has_gradient());
        let untouched = untouched.filter(|entry| !entry.param.spec().optional);
        let names = untouched.map(|entry| format!("`{}`", entry.param.name()));
        let names: Vec<String> = names.collect();
        ensure!(
            names.is_empty(),
            Invalid,
            "no op used {}: remove the parameter, freeze it by leaving it out of `Grads`, or \
             declare it optional",
            names.join(", ")
        );
        Ok(())
    }

    /// Starts the reduction of a unit, and continues that of the unit before.
    fn reduce(&mut self, unit: usize) -> Result<()> {
        if let Some(before) = self.in_flight.replace(unit) {
            self.units[before].gradients.advance()?;
        }
        let unit = &mut self.units[unit];
        let mut whole = Vec::with_capacity(unit.entries.len());
        for at in &unit.entries {
            let entry = &mut self.entries[*at];
            let sum = entry.sum.take().filter(|sum| !sum.is_empty());
            entry.is_reduced |= sum.is_some();
            whole.push(sum.map(|sum| sum.buffer().clone()));
        }
        unit.gradients.reduce(whole, unit.is_last_pass)
    }

    /// In later backward passes, calls `callback` with each parameter that has no home, once its
    /// gradient is complete. Parameters are always reported in the reverse order of the list passed to
    /// [`Grads::new`], so that all ranks use the same order.
    pub fn on_ready(
        &mut self,
        callback: impl FnMut(&Param, &Tensor) -> Result<()> + Send + 'static,
    ) {
        self.on_ready = Some(Box::new(callback));
    }

    pub(crate) fn holds(&self, param: &Param) -> bool {
        self.index.contains_key(&param.id())
    }

    /// The buffer of `param`, for an op to write; `None` if it is not in the list.
    pub(crate) fn sum(&mut self, param: &Param) -> Result<Option<&mut Accumulator>> {
        let Some(at) = self.index.get(&param.id()) else {
            return Ok(None);
        };
        let entry = &mut self.entries[*at];
        if let (None, Some((unit, position))) = (&entry.sum, entry.unit) {
            let buffer = self.units[unit].gradients.buffer(position)?;
            let sum = Accumulator::over(buffer)?.with_shape(param.sharded_shape())?;
            entry.sum = Some(sum);
        }
        Ok(entry.sum.as_mut())
    }

    /// Starts a backward pass in which the parameters are used `uses` times.
    pub(crate) fn begin(&mut self, uses: &HashMap<ParamId, u32>) -> Result<()> {
        let is_used = |at: &usize| uses.contains_key(&self.entries[*at].param.id());
        let is_announced = |at: &usize| self.entries[*at].is_announced;
        self.passes += 1;
        let is_of_stage = std::mem::take(&mut self.is_next_of_stage);
        for unit in &mut self.units {
            unit.left = unit.entries.len();
            unit.is_last_pass = match is_of_stage {
                true => !unit.has_run_last && unit.entries.iter().all(is_announced),
                false => self.passes >= self.expected_passes,
            };
            // Another rank may use what this one does not, so all reduce it in the last pass.
            unit.is_in_pass = unit.is_last_pass || unit.entries.iter().any(is_used);
        }
        ensure!(
            !self.units.iter().any(|unit| unit.is_in_pass && unit.is_finished),
            Invalid,
            "the gradients of these `Grads` have been read: call `clear` before the next backward pass"
        );
        self.has_passes = true;
        for param in self.entries.iter().map(|entry| &entry.param) {
            if let Some(value) = param.whole_value() {
                check_replicas(|| format!("`{}`", param.name()), &value)?;
            }
        }
        let of = |entry: &Entry| uses.get(&entry.param.id()).copied().unwrap_or(0);
        self.ready =
            Readiness { left: self.entries.iter().map(of).collect(), reported: self.entries.len() };
        Ok(())
    }

    /// Counts `times` uses of a parameter as done.
    pub(crate) fn used(&mut self, param: ParamId, times: u32) -> Result<()> {
        if self.on_ready.is_none() && self.units.is_empty() {
            return Ok(());
        }
        if let Some(left) = self.index.get(&param).and_then(|at| self.ready.left.get_mut(*at)) {
            *left = left.saturating_sub(times);
        }
        self.report(false)
    }

    /// Ends a backward pass: reports the remaining parameters.
    pub(crate) fn end(&mut self) -> Result<()> {
        self.report(true)?;
        for unit in &mut self.units {
            unit.gradients.end_pass();
            unit.has_run_last |= unit.is_in_pass && unit.is_last_pass;
        }
        Ok(())
    }

    /// Reports parameters with complete gradients, from the last of the list to the first. In
    /// strict mode, the gradients are compared before.
    fn report(&mut self, all: bool) -> Result<()> {
        while let Some(next) = self.ready.reported.checked_sub(1) {
            let entry = &mut self.entries[next];
            // Nothing waits for parameters of another stage.
            if entry.unit.is_some_and(|(unit, _)| !self.units[unit].is_in_pass) {
                self.ready.reported = next;
                continue;
            }
            let sum = entry.sum.as_mut().filter(|sum| !sum.is_empty());
            // A parameter that no op uses is reported at the end.
            if !all && (self.ready.left[next] > 0 || sum.is_none()) {
                break;
            }
            self.ready.reported = next;
            if let Some(sum) = sum {
                let name = || format!("the gradient of `{}`", entry.param.name());
                check_replicas(name, sum.total()?)?;
            }
            if let Some((unit, _)) = entry.unit {
                self.reported(unit)?;
            } else if let Some(callback) = &mut self.on_ready {
                let total = entry.total()?;
                callback(&entry.param, &total)?;
            }
        }
        Ok(())
    }

    /// Counts a gradient of a unit as complete in this pass.
    fn reported(&mut self, unit: usize) -> Result<()> {
        let of = &mut self.units[unit];
        of.left = of.left.saturating_sub(1);
        let is_due = of.is_last_pass || of.gradients.reduces_each_pass();
        match of.left == 0 && is_due {
            true => self.reduce(unit),
            false => Ok(()),
        }
    }
}
