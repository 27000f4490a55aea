//! Sums in one fixed order, for the same bits on any number of data-parallel ranks.
//!
//! `train.reduction = "tree"` computes the gradient of one sequence per rank and pass, and sums the
//! sequences of a step in a fixed binary tree over their numbers: a range of n is split after the
//! largest power of two below n. Collectives sum the ranks of a pass in the same tree
//! ([`meshgrad_comm`]), so the lowest levels are theirs if the number of ranks is a power of two.

use meshgrad_autograd::{KeptRows, Param};
use meshgrad_runtime::{DType, Kind, Tensor, ops};

use crate::Result;
use crate::sums::no_batch;

/// A running sum of lists of tensors in the order of the tree. Holds one list for each one in the
/// binary number of what was added.
#[derive(Default)]
pub(crate) struct TreeSum {
    /// Sums of 1, 2, 4, ... consecutive lists; the later ones have fewer.
    levels: Vec<Option<Vec<Tensor>>>,
}

impl TreeSum {
    /// Adds a list, and does not keep its tensors.
    pub(crate) fn add(&mut self, values: &[Tensor]) -> Result<()> {
        let mut sum: Option<Vec<Tensor>> = None;
        for level in &mut self.levels {
            let Some(earlier) = level.take() else {
                *level = Some(kept(sum, values)?);
                return Ok(());
            };
            sum = Some(added(&earlier, sum.as_deref().unwrap_or(values))?);
        }
        self.levels.push(Some(kept(sum, values)?));
        Ok(())
    }

    /// The sum; `None` if nothing was added.
    pub(crate) fn finish(self) -> Result<Option<Vec<Tensor>>> {
        let mut sum: Option<Vec<Tensor>> = None;
        for earlier in self.levels.into_iter().flatten() {
            sum = Some(match sum {
                None => earlier,
                Some(later) => added(&earlier, &later)?,
            });
        }
        Ok(sum)
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
/// all parameters, in order. A parameter with a home has the rows of this rank; all ranks call this.
/// An f32 scalar without a sharding.
///
/// # Errors
/// Errors of the ops and of the communication.
pub(crate) fn norm(gradients: &[(Param, Tensor)]) -> Result<Tensor> {
    let (_, first) = gradients.first().ok_or_else(no_batch)?;
    let kept: Vec<KeptRows> = gradients.iter().map(|(param, _)| param.kept()).collect();
    let shape = [kept.iter().map(KeptRows::count_of_all).sum()];
    let squares = Tensor::zeros(first.device(), &shape, first.dtype(), Kind::Gradient)?;

    let mut before = 0;
    for (kept, (_, gradient)) in kept.iter().zip(gradients) {
        let rows = kept.rows();
        if kept.is_first_copy() && !rows.is_empty() {
            let gradient = ops::reshape(&gradient.local(), &kept.by_row())?;
            let of_rows = ops::sum(&ops::mul(&gradient, &gradient)?, &[1])?;
            let place = squares.slice(0, before + rows.start..before + rows.end)?;
            ops::copy_into(&of_rows, &place)?;
        }
        before += kept.count_of_all();
    }
    let unit = gradients.iter().find_map(|(param, _)| Some(param.home()?.unit()));
    // Each row is on one rank, and zero on the others.
    let squares = match unit {
        Some(unit) => unit.sum(&squares)?,
        None => squares,
    };
    let norm = ops::sqrt(&ops::sum(&squares, &[0])?)?;
    ops::cast(&norm, DType::F32)
}

#[cfg(test)]
mod tests {
    use meshgrad_runtime::Device;

    use super::*;

    /// Sums of lists and of host values have the order of the tree, whatever the count.
    #[test]
    fn any_count_is_summed_in_the_order_of_the_tree() {
        let device = Device::cpu();
        let value = |at: usize| 1.0 / (at * at + 1) as f32 + 1e5 * (at % 3) as f32;
        let tree = |range: &[f32]| sum_of_values(range);
        assert_eq!(tree(&[1e8, 1.0, -1e8]), (1e8 + 1.0) - 1e8);
        for count in 1..40 {
            let values: Vec<f32> = (0..count).map(value).collect();
            let mut sum = TreeSum::default();
            for value in &values {
                let value = Tensor::scalar(&device, *value).unwrap();
                sum.add(&[value]).unwrap();
            }
            let sum = sum.finish().unwrap().unwrap();
            assert_eq!(sum[0].item::<f32>().unwrap(), tree(&values), "{count}");
        }
        assert!(TreeSum::default().finish().unwrap().is_none());
    }
}
