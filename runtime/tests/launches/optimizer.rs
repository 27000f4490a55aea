//! AdamW steps.

use super::tensor;
use crate::ops::{AdamW, AdamWOperands, StepScalars};
use crate::{DType, Device, Key, Kind, Region, RegionKey, Result, Tensor, ops};

/// Covers whole parameters and shards of larger ones, with more elements than one CTA handles. Some
/// rows are multiples of four elements, which a thread accesses together; others are not.
pub(super) fn optimizer(device: &Device, dtype: DType) -> Result<()> {
    for (columns, first) in [(687, 3), (688, 4)] {
        let part = Region::whole(&[3, 700])?.slice(1, first..first + columns)?;
        let key = Key::new(1);
        for draw in [None, Some(RegionKey::from(key)), Some(key.within(&part))] {
            step(device, dtype, [3, columns], draw.as_ref())?;
        }
    }
    Ok(())
}

fn step(
    device: &Device,
    dtype: DType,
    shape: [usize; 2],
    rounding: Option<&RegionKey>,
) -> Result<()> {
    let values = |dtype, kind| -> Result<Tensor> {
        let values = Tensor::zeros(device, &shape, dtype, kind)?;
        ops::copy_into(&tensor(device, &shape, dtype)?, &values)?;
        Ok(values)
    };
    let scalar = |value: f32| Tensor::scalar(device, value);
    let operands = AdamWOperands {
        param: &values(dtype, Kind::Parameter)?,
        gradient: &values(DType::F32, Kind::Gradient)?,
        exp_avg: &values(DType::F32, Kind::OptimizerState)?,
        exp_avg_sq: &Tensor::zeros(device, &shape, DType::F32, Kind::OptimizerState)?,
        constants: AdamW {
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            weight_decay: 0.1,
        },
        rounding,
    };
    let scalars = StepScalars {
        learning_rate: &scalar(0.1)?,
        step: &scalar(3.0)?,
        scale: &scalar(0.5)?,
    };
    ops::adamw_step_many(&[operands], scalars)
}
