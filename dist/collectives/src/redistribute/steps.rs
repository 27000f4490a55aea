//! The steps of a plan on one rank, for a whole tensor or a chunk of it.

use std::sync::Arc;

use meshgrad_error::bail;
use meshgrad_mesh::{
    Action, Chunks, Group, Redistribution, ReduceOp, Reduction as Partial, Region, Sharding, Step,
};
use meshgrad_runtime::{Kind, Pending, Result, Tensor, ops};

use super::member::Member;
use super::regions::{self, assembled, flattened, padded, part};
use crate::collectives::Collectives;
use crate::communicator::Communicator;
use crate::ticket::Reduction;

/// Runs the steps of plans on a rank.
pub(super) struct Runner {
    member: Arc<Member>,
    /// The only chunk that is redistributed.
    chunk: Option<(Chunks, usize)>,
}

impl Runner {
    pub(super) fn new(member: Arc<Member>) -> Runner {
        Runner { member, chunk: None }
    }

    /// Redistributes one chunk of each tensor.
    pub(super) fn of_chunk(self, chunks: &Chunks, chunk: usize) -> Runner {
        Runner { chunk: Some((chunks.clone(), chunk)), ..self }
    }

    /// The rank's part `x`, without sharding, after all steps.
    pub(super) fn run(&self, plan: &Redistribution, x: &Tensor) -> Result<Tensor> {
        let result = self.run_steps(plan.steps(), x.clone())?;
        self.finished(plan, result)
    }

    /// Starts the first collective of a plan, after the steps before it. Waiting runs those after
    /// it.
    pub(super) fn start(self, plan: Arc<Redistribution>, x: Tensor) -> Result<Pending<Tensor>> {
        let communicates =
            |step: &Step| !matches!(step.action(), Action::Slice | Action::MakePartial(_));
        let Some(first) = plan.steps().iter().position(communicates) else {
            let result = self.run(&plan, &x)?;
            return Ok(Pending::by_host(move || Ok(result)));
        };
        let x = self.run_steps(&plan.steps()[..first], x)?;
        let pending = self.step(&plan.steps()[first], &x)?;
        Ok(Pending::by_host(move || {
            let x = pending.wait()?.local();
            let result = self.run_steps(&plan.steps()[first + 1..], x)?;
            self.finished(&plan, result)
        }))
    }

    /// The result of a plan with its sharding; that of a chunk has none.
    fn finished(&self, plan: &Redistribution, result: Tensor) -> Result<Tensor> {
        match self.chunk {
            None => result.with_sharding(plan.to(), self.member.rank),
            Some(_) => Ok(result),
        }
    }

    /// What `rank` has of the tensor, or of the chunk.
    fn region(&self, sharding: &Sharding, rank: usize) -> Result<Region> {
        let region = regions::region(sharding, rank)?;
        Ok(match &self.chunk {
            None => region,
            Some((chunks, chunk)) => chunks.part(*chunk, &region),
        })
    }

    fn run_steps(&self, steps: &[Step], mut x: Tensor) -> Result<Tensor> {
        for step in steps {
            x = self.step(step, &x)?.wait()?;
        }
        Ok(x)
    }

    /// The rank's part after `step`.
    fn step(&self, step: &Step, x: &Tensor) -> Result<Pending<Tensor>> {
        let rank = self.member.rank;
        let (before, after) = (self.region(step.from(), rank)?, self.region(step.to(), rank)?);
        let Some(group) = step.group(rank) else {
            bail!(Invalid, "redistribute: rank {rank} has no group in the step {step}");
        };
        let local = match step.action() {
            Action::Slice => ops::contiguous(&part(x, &before, &after)?),
            Action::MakePartial(Partial::Sum) if step.dims().is_empty() => {
                match group.index_of(rank) {
                    Some(0) => Ok(x.clone()),
                    _ => Tensor::zeros(x.device(), x.shape(), x.dtype(), Kind::Value),
                }
            }
            Action::MakePartial(Partial::Sum) => padded(x, &before, &after),
            Action::MakePartial(_) => Ok(x.clone()),
            Action::AllGather => return self.all_gather(step, &group, x),
            Action::AllToAll => return self.all_to_all(step, &group, x),
            Action::ReduceScatter(by) => return self.reduce_scatter(step, &group, x, by),
            Action::AllReduce(by) => return self.all_reduce(&group, x, by),
            other => bail!(Invalid, "redistribute: the step {other} is not known"),
        };
        local.map(|x| Pending::by_host(move || Ok(x)))
    }

    fn all_gather(&self, step: &Step, group: &Group, x: &Tensor) -> Result<Pending<Tensor>> {
        let parts = members(group, |rank| self.region(step.from(), rank))?;
        let after = self.region(step.to(), self.member.rank)?;
        let flat = ops::reshape(x, &[x.elements()])?;
        let gathered = self.communicator(group)?.all_gather_rows(&flat, &counts(&parts))?;
        Ok(then(gathered, move |all| assembled(&all, &parts, &after)))
    }

    fn all_to_all(&self, step: &Step, group: &Group, x: &Tensor) -> Result<Pending<Tensor>> {
        let rank = self.member.rank;
        let (before, after) = (self.region(step.from(), rank)?, self.region(step.to(), rank)?);
        let sent = members(group, |to| Ok(before.intersection(&self.region(step.to(), to)?)))?;
        let received =
            members(group, |from| Ok(self.region(step.from(), from)?.intersection(&after)))?;
        let flat = flattened(x, &before, &sent)?;
        let communicator = self.communicator(group)?;
        let exchanged = communicator.all_to_all_rows(&flat, &counts(&sent), &counts(&received))?;
        Ok(then(exchanged, move |all| assembled(&all, &received, &after)))
    }

    fn reduce_scatter(
        &self,
        step: &Step,
        group: &Group,
        x: &Tensor,
        by: ReduceOp,
    ) -> Result<Pending<Tensor>> {
        let rank = self.member.rank;
        let (before, after) = (self.region(step.from(), rank)?, self.region(step.to(), rank)?);
        let parts = members(group, |rank| self.region(step.to(), rank))?;
        let (reduction, scale) = reduction(by, group);
        let flat = flattened(x, &before, &parts)?;
        let communicator = self.communicator(group)?;
        let reduced = communicator.reduce_scatter_rows(&flat, &counts(&parts), reduction)?;
        Ok(then(reduced, move |own| {
            let own = assembled(&own, std::slice::from_ref(&after), &after)?;
            scaled(own, scale)
        }))
    }

    fn all_reduce(&self, group: &Group, x: &Tensor, by: ReduceOp) -> Result<Pending<Tensor>> {
        let (reduction, scale) = reduction(by, group);
        let reduced = self.communicator(group)?.all_reduce(x, reduction)?;
        Ok(then(reduced, move |reduced| scaled(reduced, scale)))
    }

    fn communicator(&self, group: &Group) -> Result<Arc<dyn Communicator>> {
        self.member.communicator(group)
    }
}

/// The result of `f` on the rank's thread, after the work.
fn then(
    pending: Pending<Tensor>,
    f: impl FnOnce(Tensor) -> Result<Tensor> + Send + 'static,
) -> Pending<Tensor> {
    Pending::by_host(move || f(pending.wait()?))
}

fn counts(regions: &[Region]) -> Vec<usize> {
    regions.iter().map(Region::elements).collect()
}

/// The region of each member.
fn members(group: &Group, of: impl Fn(usize) -> Result<Region>) -> Result<Vec<Region>> {
    group.ranks().iter().map(|rank| of(*rank)).collect()
}

/// The collective's reduction, and the factor of its result.
fn reduction(by: ReduceOp, group: &Group) -> (Reduction, f64) {
    match by.reduction {
        Partial::Max => (Reduction::Max, 1.0),
        _ if by.divisor == group.len() => (Reduction::Mean, 1.0),
        _ => (Reduction::Sum, 1.0 / by.divisor as f64),
    }
}

fn scaled(x: Tensor, factor: f64) -> Result<Tensor> {
    match factor == 1.0 {
        true => Ok(x),
        false => ops::affine(&x, factor, 0.0),
    }
}
