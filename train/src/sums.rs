//! The sums of losses: added over microbatches, reduced over ranks once, and read as one tensor.

use std::collections::BTreeMap;

use meshgrad_collectives::full_concat;
use meshgrad_error::{ensure, error};
use meshgrad_models::Loss;
use meshgrad_runtime::{AsyncRead, DType, Device, Shape, Tensor, ops};

use crate::{Error, Result};

/// The sums of some microbatches and stages. On several ranks, of the tokens of this rank.
#[derive(Default)]
pub(crate) struct StepSums {
    /// The loss and its weight, if the last stage is among the stages.
    loss: Option<[Tensor; 2]>,
    /// By stage.
    statistics: BTreeMap<usize, Vec<Tensor>>,
}

/// Sums over all ranks.
pub(crate) struct ReducedSums {
    /// The loss, its weight, and the statistics of all stages, f32 [n].
    flat: Tensor,
    /// Of the statistics, by stage.
    shapes: Vec<Vec<Shape>>,
    /// The stages of this rank in `shapes`.
    own: Vec<usize>,
}

/// Sums that are on their way to the host.
pub(crate) struct PendingSums {
    flat: AsyncRead<f32>,
    /// Of the statistics, by stage.
    shapes: Vec<Vec<Shape>>,
    own: Vec<usize>,
}

/// The values of sums.
pub(crate) struct Sums {
    pub(crate) loss: f32,
    pub(crate) weight: f32,
    /// The statistics of each stage.
    stages: Vec<Vec<Vec<f32>>>,
    own: Vec<usize>,
}

impl Sums {
    /// The statistics of all stages.
    pub(crate) fn statistics(&self) -> Vec<Vec<f32>> {
        self.stages.concat()
    }

    /// Those of this rank's stages.
    pub(crate) fn own_statistics(&self) -> Vec<Vec<f32>> {
        let own = self.stages.iter().enumerate().filter(|(stage, _)| self.own.contains(stage));
        own.flat_map(|(_, statistics)| statistics.clone()).collect()
    }
}

impl StepSums {
    pub(crate) fn of(stage: usize, loss: Loss) -> StepSums {
        let Loss { sum, weight, statistics, .. } = loss;
        let sums = StepSums::without_loss(stage, statistics);
        StepSums { loss: Some([sum, weight]), ..sums }
    }

    /// Those of a stage that is not the last.
    pub(crate) fn without_loss(stage: usize, statistics: Vec<Tensor>) -> StepSums {
        StepSums { loss: None, statistics: BTreeMap::from([(stage, statistics)]) }
    }

    pub(crate) fn add(&mut self, other: StepSums) -> Result<()> {
        self.loss = match (self.loss.take(), other.loss) {
            (Some([a, b]), Some([c, d])) => Some([ops::add(&a, &c)?, ops::add(&b, &d)?]),
            (a, b) => a.or(b),
        };
        for (stage, values) in other.statistics {
            let sums = match self.statistics.remove(&stage) {
                Some(earlier) => added(&earlier, &values)?,
                None => values,
            };
            self.statistics.insert(stage, sums);
        }
        Ok(())
    }

    /// The sums over the ranks of this stage's mesh, which make this call: the loss and its weight,
    /// which are zero without the last stage, and the statistics by stage, f32 [n].
    pub(crate) fn reduced(&self, device: &Device) -> Result<ReducedSums> {
        let loss = match &self.loss {
            Some(loss) => loss.to_vec(),
            None => vec![ops::full(device, &[], DType::F32, 0.0)?; 2],
        };
        let values = loss.iter().chain(self.statistics.values().flatten());
        let shapes = |values: &Vec<Tensor>| values.iter().map(Tensor::global_shape).collect();
        Ok(ReducedSums {
            flat: full_concat(&values.collect::<Vec<_>>())?,
            shapes: self.statistics.values().map(shapes).collect(),
            own: (0..self.statistics.len()).collect(),
        })
    }
}

/// The sums of pairs.
fn added(sums: &[Tensor], values: &[Tensor]) -> Result<Vec<Tensor>> {
    let (count, others) = (sums.len(), values.len());
    ensure!(
        count == others,
        Invalid,
        "a loss has {others} statistics, but that of an earlier microbatch {count}: a model returns the \
         same ones for each batch"
    );
    let pairs = sums.iter().zip(values);
    pairs.map(|(a, b)| ops::add(a, b)).collect()
}

impl ReducedSums {
    /// Values of the shapes of `like`.
    pub(crate) fn with(flat: Tensor, like: ReducedSums) -> ReducedSums {
        ReducedSums { flat, ..like }
    }

    /// As the sums of `stage`, the only one of them.
    pub(crate) fn of_stage(self, stage: usize) -> Result<StepSums> {
        let [sum, weight] = [self.loss()?, self.weight()?];
        let statistics = BTreeMap::from([(stage, self.statistics()?)]);
        Ok(StepSums { loss: Some([sum, weight]), statistics })
    }

    /// The sums of a pipeline whose stages have statistics of `shapes`. This rank has the stages
    /// `own`, whose sums `self` are. `add` adds the values of all ranks of the pipeline.
    pub(crate) fn over_stages(
        self,
        shapes: &[Vec<Shape>],
        own: Vec<usize>,
        add: impl FnOnce(&Tensor) -> Result<Tensor>,
    ) -> Result<ReducedSums> {
        let (mut start, flat) = (2, self.flat.local());
        let mut pieces = vec![flat.slice(0, 0..2)?];
        for (stage, shapes) in shapes.iter().enumerate() {
            let elements: usize = shapes.iter().map(|shape| shape.elements()).sum();
            pieces.push(match own.contains(&stage) {
                true => {
                    start += elements;
                    flat.slice(0, start - elements..start)?
                }
                false => ops::full(flat.device(), &[elements], flat.dtype(), 0.0)?.local(),
            });
        }
        let all = ops::concat(&pieces.iter().collect::<Vec<_>>(), 0)?;
        Ok(ReducedSums { flat: add(&all)?.as_replicated()?, shapes: shapes.to_vec(), own })
    }

    /// All values, f32 [n].
    pub(crate) fn flat(&self) -> &Tensor {
        &self.flat
    }

    /// The loss, a scalar.
    pub(crate) fn loss(&self) -> Result<Tensor> {
        ops::reshape(&self.flat.slice(0, 0..1)?, &[])
    }

    /// What the loss is divided by, a scalar.
    pub(crate) fn weight(&self) -> Result<Tensor> {
        ops::reshape(&self.flat.slice(0, 1..2)?, &[])
    }

    /// The statistics of this rank's stages.
    pub(crate) fn statistics(&self) -> Result<Vec<Tensor>> {
        self.statistics_of(|stage| self.own.contains(&stage))
    }

    /// The statistics of some stages.
    pub(crate) fn statistics_of(&self, includes: impl Fn(usize) -> bool) -> Result<Vec<Tensor>> {
        let (mut start, mut found) = (2, Vec::new());
        for (stage, shapes) in self.shapes.iter().enumerate() {
            for shape in shapes {
                let range = start..start + shape.elements();
                start = range.end;
                if includes(stage) {
                    found.push(ops::reshape(&self.flat.slice(0, range)?, shape)?);
                }
            }
        }
        Ok(found)
    }

    /// Starts to read them.
    pub(crate) fn read_async(self) -> Result<PendingSums> {
        Ok(PendingSums { flat: self.flat.read_async()?, shapes: self.shapes, own: self.own })
    }
}

impl PendingSums {
    pub(crate) fn wait(self) -> Result<Sums> {
        let mut values = self.flat.wait()?.into_iter();
        let mut take = |elements| values.by_ref().take(elements).collect::<Vec<f32>>();
        let (loss, weight) = (take(1).into_iter().sum(), take(1).into_iter().sum());
        let mut of_stage = |shapes: &Vec<Shape>| -> Vec<Vec<f32>> {
            shapes.iter().map(|shape| take(shape.elements())).collect()
        };
        let stages = self.shapes.iter().map(&mut of_stage).collect();
        Ok(Sums { loss, weight, stages, own: self.own })
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
        let sums = || StepSums {
            loss: Some([of(&[], &[6.0]), of(&[], &[4.0])]),
            statistics: BTreeMap::from([(0, vec![of(&[2, 1], &[1.0, 2.0]), of(&[0], &[])])]),
        };
        let mut twice = sums();
        twice.add(sums()).unwrap();
        let reduced = twice.reduced(&device).unwrap();
        assert_eq!(reduced.weight().unwrap().item::<f32>().unwrap(), 8.0);
        let statistics = reduced.statistics().unwrap();
        assert_eq!(statistics[0].shape()[..], [2, 1]);
        let read = reduced.read_async().unwrap().wait().unwrap();
        assert_eq!((read.loss, read.weight), (12.0, 8.0));
        assert_eq!(read.statistics(), [vec![2.0, 4.0], vec![]]);
        assert_eq!(read.own_statistics(), read.statistics());
    }
}
