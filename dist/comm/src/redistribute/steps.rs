//! The steps of a plan on one rank.

use meshgrad_mesh::{Action, Group, ReduceOp, Reduction as Partial, Step};
use meshgrad_runtime::{Error, Kind, Result, Tensor, ops};

use super::Redistributor;
use super::boxes::{Region, assembled, elements, flattened, intersection, part, region};
use crate::collectives::Collectives;
use crate::ticket::Reduction;

impl Redistributor {
    /// The rank's part after `step`.
    pub(super) fn run(&self, step: &Step, x: &Tensor) -> Result<Tensor> {
        let rank = self.rank;
        let group = step.group(rank).ok_or_else(|| Error::Argument {
            op: "redistribute",
            problem: format!("rank {rank} is not in the mesh {}", step.from().mesh()),
        })?;
        let (before, after) = (region(step.from(), rank), region(step.to(), rank));
        match step.action() {
            Action::Slice => ops::contiguous(&part(x, &before, &after)?),
            Action::MakePartial(Partial::Sum) if step.dims().is_empty() => {
                match group.index_of(rank) {
                    Some(0) => Ok(x.clone()),
                    _ => Tensor::zeros(x.device(), x.shape(), x.dtype(), Kind::Value),
                }
            }
            Action::MakePartial(Partial::Sum) => padded(x, &before, &after),
            Action::MakePartial(_) => Ok(x.clone()),
            Action::AllGather => self.all_gather(step, &group, x),
            Action::AllToAll => self.all_to_all(step, &group, x),
            Action::ReduceScatter(by) => self.reduce_scatter(step, &group, x, by),
            Action::AllReduce(by) => self.all_reduce(&group, x, by),
            other => Err(Error::Argument {
                op: "redistribute",
                problem: format!("the step {other} is not known"),
            }),
        }
    }

    fn all_gather(&self, step: &Step, group: &Group, x: &Tensor) -> Result<Tensor> {
        let parts = regions(group, |rank| region(step.from(), rank));
        let counts: Vec<usize> = parts.iter().map(|part| elements(part)).collect();
        let flat = ops::reshape(x, &[x.elements()])?;
        let all = self.communicator(group)?.all_gather_rows(&flat, &counts)?;
        assembled(&all.wait()?, &parts, &region(step.to(), self.rank))
    }

    fn all_to_all(&self, step: &Step, group: &Group, x: &Tensor) -> Result<Tensor> {
        let rank = self.rank;
        let (before, after) = (region(step.from(), rank), region(step.to(), rank));
        let sent = regions(group, |to| intersection(&before, &region(step.to(), to)));
        let received = regions(group, |from| {
            intersection(&region(step.from(), from), &after)
        });
        let counts = |regions: &[Region]| -> Vec<usize> {
            regions.iter().map(|region| elements(region)).collect()
        };
        let flat = flattened(x, &before, &sent)?;
        let communicator = self.communicator(group)?;
        let exchanged = communicator.all_to_all_rows(&flat, &counts(&sent), &counts(&received))?;
        assembled(&exchanged.wait()?, &received, &after)
    }

    fn reduce_scatter(
        &self,
        step: &Step,
        group: &Group,
        x: &Tensor,
        by: ReduceOp,
    ) -> Result<Tensor> {
        let rank = self.rank;
        let (before, after) = (region(step.from(), rank), region(step.to(), rank));
        let parts = regions(group, |rank| region(step.to(), rank));
        let counts: Vec<usize> = parts.iter().map(|part| elements(part)).collect();
        let (reduction, scale) = reduction(by, group);
        let flat = flattened(x, &before, &parts)?;
        let communicator = self.communicator(group)?;
        let reduced = communicator.reduce_scatter_rows(&flat, &counts, reduction)?;
        let own = assembled(&reduced.wait()?, std::slice::from_ref(&after), &after)?;
        scaled(own, scale)
    }

    fn all_reduce(&self, group: &Group, x: &Tensor, by: ReduceOp) -> Result<Tensor> {
        let (reduction, scale) = reduction(by, group);
        let reduced = self.communicator(group)?.all_reduce(x, reduction)?.wait()?;
        scaled(reduced, scale)
    }
}

fn regions(group: &Group, of: impl Fn(usize) -> Region) -> Vec<Region> {
    group.ranks().iter().map(|rank| of(*rank)).collect()
}

/// `x`, of the region `inner`, with zeros in the rest of `outer`.
fn padded(x: &Tensor, inner: &Region, outer: &Region) -> Result<Tensor> {
    let mut padded = x.clone();
    for (dim, (inner, outer)) in inner.iter().zip(outer).enumerate() {
        if inner != outer {
            // An empty range may be anywhere.
            let start = inner.start.clamp(outer.start, outer.end) - outer.start;
            let shape = padded.shape().with(dim, outer.len());
            padded = ops::slice_grad(&padded, &shape, dim, start..start + inner.len())?;
        }
    }
    Ok(padded)
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
