//! The norm of the gradients of all stages.

use std::sync::Arc;

use meshgrad_autograd::Param;
use meshgrad_collectives::{Collectives, Communicator, Reduction};
use meshgrad_error::error;
use meshgrad_runtime::{DType, Device, Kind, Tensor, ops};

use crate::Result;

/// The trained parameters of all stages of a pipeline.
pub(crate) struct ParamsOfStages {
    /// All ranks of all stages.
    ranks: Arc<dyn Communicator>,
    /// Their names and numbers of rows, in the order of the whole model.
    rows: Vec<(String, usize)>,
    /// Of their gradients.
    dtype: DType,
}

impl ParamsOfStages {
    pub(super) fn new(
        ranks: Arc<dyn Communicator>,
        rows: Vec<(String, usize)>,
        dtype: DType,
    ) -> ParamsOfStages {
        ParamsOfStages { ranks, rows, dtype }
    }

    pub(crate) fn rows(&self) -> Vec<(&str, usize)> {
        self.rows.iter().map(|(name, rows)| (name.as_str(), *rows)).collect()
    }

    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    /// The sum over all ranks of all stages.
    pub(crate) fn sum(&self, x: &Tensor) -> Result<Tensor> {
        self.ranks.all_reduce(&x.local(), Reduction::Sum)?.wait()
    }

    /// The L2 norm: the squares of each parameter are summed first, then those of all, in the order of
    /// the whole model. `gradients` are those of this rank; all ranks call this. An f32 scalar without
    /// a sharding.
    ///
    /// # Errors
    /// Errors of the ops and of the communication.
    pub(crate) fn norm(&self, gradients: &[(Param, Tensor)], device: &Device) -> Result<Tensor> {
        let nothing = Tensor::zeros(device, &[0], self.dtype, Kind::Gradient)?;
        let dtype = ops::sum_of_squares(&[&nothing])?.dtype(); // of this device
        let squares = Tensor::zeros(device, &[self.rows.len()], dtype, Kind::Gradient)?;
        for (param, gradient) in gradients.iter().filter(|(param, _)| param.kept().is_first_copy())
        {
            let at = self.rows.iter().position(|(name, _)| name == param.name());
            let at = at.ok_or_else(|| error!(Invalid, "no stage uses `{}`", param.name()))?;
            let own = ops::sum_of_squares(&[&gradient.local()])?;
            ops::copy_into(&ops::reshape(&own, &[1])?, &squares.slice(0, at..at + 1)?)?;
        }
        let squares = ops::sum(&self.sum(&squares)?, &[0])?;
        ops::cast(&ops::sqrt(&squares)?, DType::F32)
    }
}
