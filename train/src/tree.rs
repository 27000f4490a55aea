//! Sums in one fixed order, for the same bits on any number of data-parallel ranks.
//!
//! `train.reduction = "tree"` computes the gradient of one sequence per rank and pass, and sums the
//! sequences of a step in a fixed binary tree over their numbers: a range of n is split after the
//! largest power of two below n. Collectives sum the ranks of a pass in the same tree
//! ([`meshgrad_comm`]), so the lowest levels are theirs if the number of ranks is a power of two.

use std::collections::{BTreeMap, HashMap};

use meshgrad_autograd::Param;
use meshgrad_runtime::{DType, Device, Kind, Tensor, ops};

use crate::Result;
use crate::pipeline::ParamsOfStages;
use crate::sums::{ReducedSums, no_batch};

/// A running sum of numbered lists of tensors in the order of the tree. If they are added in ascending
/// order, it holds one list for each one in the binary number of what was added.
#[derive(Default)]
pub(crate) struct TreeSum {
    /// Sums of 2^level consecutive lists, and their level, by the number of the first list.
    ranges: BTreeMap<usize, (u32, Vec<Tensor>)>,
}

impl TreeSum {
    /// Adds list `number`, and does not keep its tensors. Each number is added once.
    pub(crate) fn add(&mut self, number: usize, values: &[Tensor]) -> Result<()> {
        let (mut start, mut level, mut sum) = (number, 0, None);
        while let Some(other) = self.take(start ^ (1 << level), level) {
            let own = sum.as_deref().unwrap_or(values);
            sum = Some(match start >> level & 1 {
                0 => added(own, &other)?,
                _ => added(&other, own)?,
            });
            start &= !(1 << level);
            level += 1;
        }
        self.ranges.insert(start, (level, kept(sum, values)?));
        Ok(())
    }

    /// The sum of 2^level lists from `start` on, if it is complete.
    fn take(&mut self, start: usize, level: u32) -> Option<Vec<Tensor>> {
        let (of, _) = self.ranges.get(&start)?;
        if *of != level {
            return None;
        }
        self.ranges.remove(&start).map(|(_, sum)| sum)
    }

    /// The sum; `None` if nothing was added.
    pub(crate) fn finish(self) -> Result<Option<Vec<Tensor>>> {
        let mut sum: Option<Vec<Tensor>> = None;
        for (_, earlier) in self.ranges.into_values().rev() {
            sum = Some(match sum {
                None => earlier,
                Some(later) => added(&earlier, &later)?,
            });
        }
        Ok(sum)
    }
}

/// The sums and gradients of a stage.
#[derive(Default)]
pub(crate) struct StageTree {
    sums: TreeSum,
    gradients: TreeSum,
    last: Option<ReducedSums>,
}

impl StageTree {
    /// Adds those of microbatch `number`.
    pub(crate) fn add(
        &mut self,
        number: usize,
        sums: ReducedSums,
        gradients: &[Tensor],
    ) -> Result<()> {
        self.sums.add(number, std::slice::from_ref(sums.flat()))?;
        self.gradients.add(number, gradients)?;
        self.last = Some(sums);
        Ok(())
    }

    /// The sums and the gradients of all microbatches.
    pub(crate) fn finish(self) -> Result<(ReducedSums, Vec<Tensor>)> {
        let sum = self.sums.finish()?.into_iter().flatten().next();
        let (sum, last) = sum.zip(self.last).ok_or_else(no_batch)?;
        Ok((ReducedSums::with(sum, last), self.gradients.finish()?.unwrap_or_default()))
    }
}

/// A sum, or a copy of the only list.
fn kept(sum: Option<Vec<Tensor>>, values: &[Tensor]) -> Result<Vec<Tensor>> {
    match sum {
        Some(sum) => Ok(sum),
        None => Ok(values.iter().map(ops::copy).collect::<Result<_, _>>()?),
    }
}

/// The elementwise sums of two lists of tensors.
fn added(a: &[Tensor], b: &[Tensor]) -> Result<Vec<Tensor>> {
    let pairs = a.iter().zip(b);
    pairs.map(|(a, b)| ops::add(a, b)).collect()
}

/// The sum of host values in the order of the tree, in f32.
pub(crate) fn sum_of_values(values: &[f32]) -> f32 {
    match values {
        [] => 0.0,
        [one] => *one,
        _ => {
            let (first, rest) = values.split_at(values.len().next_power_of_two() / 2);
            sum_of_values(first) + sum_of_values(rest)
        }
    }
}

/// The L2 norm of gradients: the squares of each row of a parameter are summed first, then the rows of
/// all parameters, in order; on a rank of a pipeline, of those of `stages`. A parameter with a home has
/// the rows of this rank; all ranks call this. An f32 scalar without a sharding.
///
/// # Errors
/// Errors of the ops and of the communication.
pub(crate) fn norm(
    gradients: &[(Param, Tensor)],
    stages: Option<&ParamsOfStages>,
    device: &Device,
) -> Result<Tensor> {
    let (mut starts, mut end) = (HashMap::new(), 0);
    let own = gradients.iter().map(|(param, _)| (param.name(), param.kept().count_of_all()));
    let rows = stages.map_or_else(|| own.collect(), ParamsOfStages::rows);
    for (name, count) in rows {
        starts.insert(name, end);
        end += count;
    }
    let dtype = gradients.first().map(|(_, gradient)| gradient.dtype());
    let dtype = stages.map_or(dtype, |stages| Some(stages.dtype())).ok_or_else(no_batch)?;
    let squares = Tensor::zeros(device, &[end], dtype, Kind::Gradient)?;
    for (param, gradient) in gradients {
        let (kept, start) = (param.kept(), starts.get(param.name()).copied());
        let (start, rows) = (start.ok_or_else(no_batch)?, kept.rows());
        if kept.is_first_copy() && !rows.is_empty() {
            let gradient = ops::reshape(&gradient.local(), &kept.by_row())?;
            let of_rows = ops::sum(&ops::mul(&gradient, &gradient)?, &[1])?;
            let place = squares.slice(0, start + rows.start..start + rows.end)?;
            ops::copy_into(&of_rows, &place)?;
        }
    }
    let unit = gradients.iter().find_map(|(param, _)| Some(param.home()?.unit()));
    // Each row is on one rank, and zero on the others.
    let squares = match (stages, unit) {
        (Some(stages), _) => stages.sum(&squares)?,
        (None, Some(unit)) => unit.sum(&squares)?,
        (None, None) => squares,
    };
    let norm = ops::sqrt(&ops::sum(&squares, &[0])?)?;
    ops::cast(&norm, DType::F32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums of lists and of host values have the order of the tree, whatever the count and the order of
    /// what is added.
    #[test]
    fn any_count_is_summed_in_the_order_of_the_tree() {
        let device = Device::cpu();
        let value = |at: usize| 1.0 / (at * at + 1) as f32 + 1e5 * (at % 3) as f32;
        let tree = |range: &[f32]| sum_of_values(range);
        assert_eq!(tree(&[1e8, 1.0, -1e8]), (1e8 + 1.0) - 1e8);
        for count in 1..40 {
            let values: Vec<f32> = (0..count).map(value).collect();
            let ascending: Vec<usize> = (0..count).collect();
            let others = ascending.iter().map(|at| if *at ^ 1 < count { at ^ 1 } else { *at });
            let orders = [others.collect(), ascending.iter().rev().copied().collect(), ascending];
            for order in orders {
                let mut sum = TreeSum::default();
                for at in &order {
                    let value = Tensor::scalar(&device, values[*at]).unwrap();
                    sum.add(*at, &[value]).unwrap();
                }
                let sum = sum.finish().unwrap().unwrap();
                assert_eq!(sum[0].item::<f32>().unwrap(), tree(&values), "{order:?}");
            }
        }
        assert!(TreeSum::default().finish().unwrap().is_none());
    }
}
