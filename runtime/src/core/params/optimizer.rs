//! Operands and constants of AdamW.

use crate::{RegionKey, Tensor};

/// The constants of AdamW.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// How much of the gradient's running mean stays, each step.
    pub beta1: f64,
    /// How much of the running mean of the gradient's square stays, each step.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// What a parameter loses each step, as a share of itself and of the learning rate.
    pub weight_decay: f64,
}

/// What changes from step to step, each an f32 without dims.
#[derive(Clone, Copy, Debug)]
pub struct StepScalars<'a> {
    /// The learning rate.
    pub learning_rate: &'a Tensor,
    /// Which step this is, from 1.
    pub step: &'a Tensor,
    /// What gradients are multiplied by first, as [`clip_scale`](crate::ops::clip_scale) returns it.
    pub scale: &'a Tensor,
}

/// A parameter with what a step of AdamW reads and writes beside it.
#[derive(Clone, Copy, Debug)]
pub struct AdamWOperands<'a> {
    /// The parameter.
    pub param: &'a Tensor,
    /// Its gradient.
    pub gradient: &'a Tensor,
    /// The running mean of its gradient; zeros before the first step.
    pub exp_avg: &'a Tensor,
    /// The running mean of its gradient's square; zeros before the first step.
    pub exp_avg_sq: &'a Tensor,
    /// Its constants: not every parameter decays.
    pub constants: AdamW,
    /// Rounds a bf16 parameter at random, up or down so that the mean is what was rounded: by the
    /// word that this key, with the step folded in, has for an element. To nearest without.
    pub rounding: Option<&'a RegionKey>,
}
