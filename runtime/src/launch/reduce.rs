//! Launches of sums and extremes over any dims.

use meshgrad_error::error;
use meshgrad_kernels::reduce::{Extents, Reduce, ReduceArguments};
use meshgrad_kernels::{Dtype, reduce_op::ReduceOp};

use super::copies::contiguous_copy;
use crate::core::shape::MAX_DIMS;
use crate::launch::{Operand, Plan, PlanError, float};
use crate::{Call, DType, Layout, Result, Tensor, UninitTensor};

/// The family's name in errors of kernels.
const FAMILY: &str = "reduce";

/// How elements are merged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    pub(crate) merge: ReduceOp,
    /// Factor of the results, before rounding.
    pub(crate) scale: f32,
}

/// y = x merged over the dims `reduced`, in passes. Each intermediate result is in a workspace,
/// which is freed when the next pass has been launched.
pub(crate) fn reduce(
    call: &Call,
    x: &Tensor,
    reduced: &[usize],
    how: How,
    y: &UninitTensor,
) -> Result<()> {
    let x = match in_memory_order(x.layout(), reduced) {
        Some(_) => x.clone(),
        None => contiguous_copy(x)?,
    };
    call.launch(|gpu| {
        let runs = in_memory_order(x.layout(), reduced).unwrap_or_default();
        let mut from = (gpu.ptr(&x)?, Operand::of(&x));
        let mut held: Option<UninitTensor> = None;
        for step in passes(runs) {
            let workspace = match step.last {
                true => None,
                false => Some(call.workspace(step.results(), DType::F32)?),
            };
            let to = workspace.as_ref().unwrap_or(y);
            let scale = if step.last { how.scale } else { 1.0 };
            let plan = gpu.planned(step.plan(how.merge, &from.1, to.dtype()))?;
            let arguments = ReduceArguments::new(from.0, gpu.uninit_ptr(to)?, step.extents, scale);
            gpu.run(&plan, &arguments)?;
            from = (arguments.y.written(), Operand::uninit(to));
            held = workspace.or(held);
        }
        Ok(())
    })
}

/// Neighboring dims that are all reduced, or all kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Run {
    extent: u64,
    reduced: bool,
}

/// Runs, outermost first.
type Runs = Vec<Run>;

/// The runs of a dense tensor in memory order; `None` if it has gaps or repeated elements, or if
/// the kept dims are in a different order than in the result.
fn in_memory_order(layout: &Layout, reduced: &[usize]) -> Option<Runs> {
    let (shape, strides) = (layout.shape(), layout.strides());
    let run = |dim: usize| Run { extent: shape[dim] as u64, reduced: reduced.contains(&dim) };
    if shape.elements() == 0 {
        return Some(merged((0..shape.len()).map(run)));
    }

    let mut order = [0; MAX_DIMS];
    let order = &mut order[..shape.len()];
    order.iter_mut().enumerate().for_each(|(at, dim)| *dim = at);
    order.sort_by_key(|dim| std::cmp::Reverse(strides[*dim]));

    let mut inner = 1;
    let mut outermost_kept = usize::MAX;
    for &dim in order.iter().rev().filter(|dim| shape[**dim] != 1) {
        let kept = !reduced.contains(&dim);
        if strides[dim] != inner || (kept && dim > outermost_kept) {
            return None;
        }
        inner *= shape[dim] as isize;
        if kept {
            outermost_kept = dim;
        }
    }
    Some(merged(order.iter().map(|dim| run(*dim))))
}

/// Merges neighboring runs of one kind, and drops extents of 1.
fn merged(runs: impl Iterator<Item = Run>) -> Runs {
    let mut merged = Runs::with_capacity(MAX_DIMS);
    for run in runs.filter(|run| run.extent != 1) {
        match merged.last_mut() {
            Some(last) if last.reduced == run.reduced => last.extent *= run.extent,
            _ => merged.push(run),
        }
    }
    merged
}

/// One kernel launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pass {
    extents: Extents,
    last: bool,
}

impl Pass {
    /// The number of results.
    fn results(&self) -> usize {
        (self.extents.outer * self.extents.chunks() * self.extents.inner) as usize
    }

    fn plan(&self, merge: ReduceOp, x: &Operand, to: DType) -> Result<Plan<Reduce>, PlanError> {
        if let Some((what, value, most)) = self.extents.too_large() {
            let refused = error!(Unsupported, "{FAMILY}: {what} = {value} is not in 0..={most}");
            return Err(refused.into());
        }
        let (from, to): (Dtype, Dtype) = (float(x.dtype)?, float(to)?);
        let variant = Reduce::new(merge, from, to, self.extents, x.is_aligned());
        Ok(Plan::new(variant.launch(self.extents), variant))
    }
}

/// The passes that reduce all runs: the largest run first, so that later passes have less to do.
fn passes(runs: Runs) -> Vec<Pass> {
    let mut runs = runs;
    let mut passes = Vec::new();
    let product = |runs: &[Run]| runs.iter().map(|run| run.extent).product();
    loop {
        let reduced = runs.iter().enumerate().filter(|(_, run)| run.reduced);
        let Some((at, run)) = reduced.max_by_key(|(_, run)| run.extent) else {
            break;
        };
        let extents = Extents {
            outer: product(&runs[..at]),
            reduced: run.extent,
            inner: product(&runs[at + 1..]),
        };
        let chunks = extents.chunks();
        match chunks {
            1 => drop(runs.remove(at)),
            _ => runs[at].extent = chunks,
        }
        let last = !runs.iter().any(|run| run.reduced);
        passes.push(Pass { extents, last });
    }
    if passes.is_empty() {
        // Nothing is reduced: a copy.
        let extents = Extents { outer: 1, reduced: 1, inner: product(&runs) };
        passes.push(Pass { extents, last: true });
    }
    passes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shape;

    fn layout(shape: &[usize]) -> Layout {
        Layout::contiguous(Shape::new(shape).unwrap(), 0)
    }

    fn run(extent: u64, reduced: bool) -> Run {
        Run { extent, reduced }
    }

    fn extents(shape: &[usize], reduced: &[usize]) -> Vec<[u64; 3]> {
        let runs = in_memory_order(&layout(shape), reduced).unwrap();
        let passes = passes(runs);
        assert!(passes.split_last().unwrap().1.iter().all(|pass| !pass.last));
        let extents = |pass: &Pass| {
            let Extents { outer, reduced, inner } = pass.extents;
            [outer, reduced, inner]
        };
        passes.iter().map(extents).collect()
    }

    #[test]
    fn neighboring_dims_are_one_pass() {
        assert_eq!(extents(&[2, 3, 4, 5], &[2, 3]), [[6, 20, 1]]);
        assert_eq!(extents(&[2, 3, 4, 5], &[0, 1]), [[1, 6, 20]]);
        assert_eq!(extents(&[2, 3, 4, 5], &[1]), [[2, 3, 20]]);
        assert_eq!(extents(&[2, 3, 1, 5], &[0, 2]), [[1, 2, 15]]);
        assert_eq!(extents(&[2, 3], &[]), [[1, 1, 6]]);
        assert_eq!(extents(&[], &[]), [[1, 1, 1]]);
        assert_eq!(extents(&[2, 0], &[1]), [[2, 0, 1]]);
    }

    /// The larger run is reduced first. A long run is reduced in chunks, which another pass merges.
    #[test]
    fn several_runs_and_long_runs_need_several_passes() {
        assert_eq!(extents(&[2, 3, 5], &[0, 2]), [[6, 5, 1], [1, 2, 3]]);
        assert_eq!(extents(&[7, 3, 5], &[0, 2]), [[1, 7, 15], [3, 5, 1]]);
        let chunked = extents(&[1 << 20], &[0]);
        assert_eq!(chunked, [[1, 1 << 20, 1], [1, 128, 1]]);
        let columns = extents(&[4096, 64], &[0]);
        assert_eq!(columns, [[1, 4096, 64], [1, 64, 64]]);
    }

    /// A permuted tensor is read without a copy if that keeps the order of the results.
    #[test]
    fn dense_tensors_are_read_in_memory_order() {
        let transposed = layout(&[4, 6]).transpose(0, 1).unwrap();
        let rows = in_memory_order(&transposed, &[0]).unwrap();
        assert_eq!(rows, [run(4, false), run(6, true)]);
        let columns = in_memory_order(&transposed, &[1]).unwrap();
        assert_eq!(columns, [run(4, true), run(6, false)]);

        let transposed = layout(&[4, 6, 5]).transpose(0, 1).unwrap();
        assert_eq!(in_memory_order(&transposed, &[2]), None);
        let gaps = layout(&[4, 6]).slice(1, 0..3).unwrap();
        assert_eq!(in_memory_order(&gaps, &[0]), None);
        let repeated = layout(&[1, 6]).broadcast_to(&[4, 6]).unwrap();
        assert_eq!(in_memory_order(&repeated, &[0]), None);
    }
}
