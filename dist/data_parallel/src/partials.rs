//! The axes along which gradients are partial sums, learnt from a pass without data.

use std::collections::HashMap;

use meshgrad_autograd::{Grads, Module, Param, ParamId, Tape, Values, Var};
use meshgrad_collectives::{Rank, Redistributor};
use meshgrad_comm::Plan;
use meshgrad_mesh::{Reduction, Sharding};
use meshgrad_runtime::{Device, Error, Result};

use crate::groups::Groups;

/// By parameter, the axes along which the ranks have parts of the sum.
#[derive(Default)]
pub(crate) struct Partials(HashMap<ParamId, Vec<String>>);

impl Partials {
    /// Those of the gradients of the loss that `pass` computes on a meta device.
    pub(crate) fn of(
        groups: &Groups,
        model: &impl Module,
        pass: impl FnOnce(&Device) -> Result<Var>,
    ) -> Result<Partials> {
        let values = Values::take(model);
        let partials = Partials::without_values(groups, model, pass);
        values.restore();
        partials
    }

    fn without_values(
        groups: &Groups,
        model: &impl Module,
        pass: impl FnOnce(&Device) -> Result<Var>,
    ) -> Result<Partials> {
        let mut partials = Partials::default();
        // The device models a CPU, so that a model which fits only divided does not run out of memory.
        Plan::new(groups.world_size)?.trace(groups.rank, |rank| {
            Redistributor::new(rank).run_on(&groups.mesh, || {
                model.materialize(rank.device(), 0)?;
                let mut grads = Grads::new(&model.trained())?;
                let (loss, tape) = Tape::record(|| pass(rank.device()))?;
                tape.backward(&loss, &mut grads)?;
                for (param, gradient) in grads.all()? {
                    let axes = gradient.sharding().map(sum_axes);
                    partials.0.insert(param.id(), axes.unwrap_or_default());
                }
                Ok::<_, Error>(())
            })
        })?;
        Ok(partials)
    }

    /// Those of `param` besides `home`'s; none if they were not learnt.
    pub(crate) fn beside(&self, home: &[&String], param: &Param) -> Vec<String> {
        let axes = self.0.get(&param.id()).into_iter().flatten();
        axes.filter(|axis| !home.contains(axis)).cloned().collect()
    }
}

/// The axes along which a tensor is a partial sum.
pub(crate) fn sum_axes(sharding: &Sharding) -> Vec<String> {
    let partials = sharding.partials().into_iter();
    let sums = partials.filter(|(_, reduction)| *reduction == Reduction::Sum);
    sums.map(|(axis, _)| axis.to_owned()).collect()
}
