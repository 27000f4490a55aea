//! Steps of an optimizer.

use crate::ops::{AdamW, AdamWOperands, StepScalars};
use crate::{DType, Device, Draw, Key, Kind, Result, Tensor, ops};

pub(super) fn optimizer(device: &Device, dtype: DType) -> Result<()> {
    let zeros = |dtype, kind| Tensor::zeros(device, &[100], dtype, kind);
    let param = zeros(dtype, Kind::Parameter)?;
    let gradient = zeros(DType::F32, Kind::Gradient)?;
    let (mean, square) = (
        zeros(DType::F32, Kind::OptimizerState)?,
        zeros(DType::F32, Kind::OptimizerState)?,
    );
    let one = Tensor::scalar(device, 1.0f32)?;
    let scalars = StepScalars {
        learning_rate: &one,
        step: &one,
        scale: &one,
    };
    let draw = Draw::from(Key::new(1));
    for rounding in [None, Some(&draw)] {
        let operands = AdamWOperands {
            param: &param,
            gradient: &gradient,
            mean: &mean,
            square: &square,
            constants: AdamW {
                beta1: 0.9,
                beta2: 0.95,
                eps: 1e-8,
                weight_decay: 0.1,
            },
            rounding,
        };
        ops::adamw_step_many(&[operands], scalars)?;
    }
    Ok(())
}
