//! The sums of losses: added over microbatches, reduced over ranks once, and read as one tensor.

use meshgrad_collectives::full_concat;
use meshgrad_error::{ensure, error};
use meshgrad_models::Loss;
use meshgrad_runtime::{AsyncRead, Shape, Tensor, ops};

use crate::{Error, Result};

/// The sums of some microbatches. On several ranks, of the tokens of this rank.
pub(crate) struct StepSums {
    /// The loss, its weight, and the statistics.
    values: Vec<Tensor>,
}

/// Sums over all ranks.
pub(crate) struct ReducedSums {
    /// All values, f32 [n].
    flat: Tensor,
    shapes: Vec<Shape>,
}

/// Sums that are on their way to the host.
pub(crate) struct PendingSums {
    flat: AsyncRead<f32>,
    shapes: Vec<Shape>,
}

impl StepSums {
    pub(crate) fn of(loss: Loss) -> StepSums {
        let Loss { sum, weight, statistics, .. } = loss;
        StepSums { values: [sum, weight].into_iter().chain(statistics).collect() }
    }

    pub(crate) fn added(&self, other: &StepSums) -> Result<StepSums> {
        let (count, others) = (self.values.len() - 2, other.values.len() - 2);
        ensure!(
            count == others,
            Invalid,
            "a loss has {others} statistics, but that of an earlier microbatch {count}: a model returns \
             the same ones for each batch"
        );
        let pairs = self.values.iter().zip(&other.values);
        Ok(StepSums { values: pairs.map(|(a, b)| ops::add(a, b)).collect::<Result<_>>()? })
    }

    /// The sums over all ranks, which make this call.
    pub(crate) fn reduced(&self) -> Result<ReducedSums> {
        let shapes = self.values.iter().map(Tensor::global_shape).collect();
        Ok(ReducedSums { flat: full_concat(&self.values.iter().collect::<Vec<_>>())?, shapes })
    }
}

impl ReducedSums {
    /// Values of the shapes of `like`.
    pub(crate) fn with(flat: Tensor, like: ReducedSums) -> ReducedSums {
        ReducedSums { flat, shapes: like.shapes }
    }

    /// All values, f32 [n].
    pub(crate) fn flat(&self) -> &Tensor {
        &self.flat
    }

    /// What the loss is divided by, a scalar.
    pub(crate) fn weight(&self) -> Result<Tensor> {
        ops::reshape(&self.flat.slice(0, 1..2)?, &[])
    }

    /// The statistics.
    pub(crate) fn statistics(&self) -> Result<Vec<Tensor>> {
        let mut start = 2;
        let view = |shape: &Shape| {
            let range = start..start + shape.elements();
            start = range.end;
            ops::reshape(&self.flat.slice(0, range)?, shape)
        };
        self.shapes[2..].iter().map(view).collect()
    }

    /// Starts to read them.
    pub(crate) fn read_async(self) -> Result<PendingSums> {
        Ok(PendingSums { flat: self.flat.read_async()?, shapes: self.shapes })
    }
}

impl PendingSums {
    /// The loss, its weight, and the statistics.
    pub(crate) fn wait(self) -> Result<(f32, f32, Vec<Vec<f32>>)> {
        let mut values = self.flat.wait()?.into_iter();
        let mut take = |shape: &Shape| values.by_ref().take(shape.elements()).collect();
        let mut all: Vec<Vec<f32>> = self.shapes.iter().map(&mut take).collect();
        let statistics = all.split_off(2);
        let sum = |values: &Vec<f32>| values.iter().sum();
        Ok((sum(&all[0]), sum(&all[1]), statistics))
    }
}

/// The error of a step without sequences.
pub(crate) fn no_batch() -> Error {
    error!(Invalid, "a step needs at least one sequence: raise train.batch_size")
}

#[cfg(test)]
mod tests {
    use meshgrad_runtime::Device;

    use super::*;

    /// Sums keep the shapes of their values.
    #[test]
    fn values_are_read_in_their_order() {
        let device = Device::cpu();
        let of =
            |shape: &[usize], values: &[f32]| Tensor::from_slice(&device, shape, values).unwrap();
        let values =
            vec![of(&[], &[6.0]), of(&[], &[4.0]), of(&[2, 1], &[1.0, 2.0]), of(&[0], &[])];
        let sums = StepSums { values };
        let reduced = sums.added(&sums).unwrap().reduced().unwrap();
        assert_eq!(reduced.weight().unwrap().item::<f32>().unwrap(), 8.0);
        let statistics = reduced.statistics().unwrap();
        assert_eq!(statistics[0].shape()[..], [2, 1]);
        let read = reduced.read_async().unwrap().wait().unwrap();
        assert_eq!(read, (12.0, 8.0, vec![vec![2.0, 4.0], vec![]]));
    }
}
