//! Operands and constants of AdamW.

use crate::{RegionKey, Tensor};

/// The constants of AdamW.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWConstants {
    /// Decay of `exp_avg` per step.
    pub beta1: f64,
    /// Decay of `exp_avg_sq` per step.
    pub beta2: f64,
    /// Added to the denominator.
    pub eps: f64,
    /// Decoupled weight decay, relative to the learning rate.
    pub weight_decay: f64,
}

/// Values that change from step to step, each a scalar f32 tensor.
#[derive(Clone, Copy, Debug)]
pub struct StepScalars<'a> {
    /// The learning rate.
    pub learning_rate: &'a Tensor,
    /// The step number, from 1.
    pub step: &'a Tensor,
    /// Multiplies the gradients; from [`clip_scale`](crate::ops::clip_scale).
    pub scale: &'a Tensor,
}

/// A parameter and the other operands of an AdamW step.
#[derive(Clone, Debug)]
pub struct AdamWOperands<'a> {
    /// The parameter.
    pub param: Tensor,
    /// Its gradient.
    pub gradient: Tensor,
    /// The exponential moving average of its gradient; zeros before the first step.
    pub exp_avg: Tensor,
    /// The exponential moving average of its squared gradient; zeros before the first step.
    pub exp_avg_sq: Tensor,
    /// Its constants. They are per parameter because some parameters have no weight decay.
    pub constants: AdamWConstants,
    /// Key for the stochastic rounding of a bf16 parameter; the op folds in the step. `None` rounds
    /// to nearest.
    pub rounding: Option<&'a RegionKey>,
}
