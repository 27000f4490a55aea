//! Stochastic gradient descent with momentum.

use meshgrad_runtime::ops::StepScalars;
use meshgrad_runtime::{Function, Number, Signature, Tensor};

use super::assign::assign;
use super::slots::{Slot, Slots, zeros};
use super::{Granularity, Groups, OptimizerPart, OptimizerState, SgdConfig, UpdateRule};
use crate::Result;

const NAME: &str = "sgd";

static MOMENTUM: Signature = Signature::new(
    "sgd_momentum",
    "param: F[~], gradient: F[~], buffer: F[~], step: F[~], scale: F[~] -> buffer: F[~]",
    6,
);
static STEP: Signature = Signature::new(
    "sgd_step",
    "param: F[~], gradient: F[~], learning_rate: F[~], scale: F[~] -> param: F[~]",
    5,
);
static MOMENTUM_STEP: Signature = Signature::new(
    "sgd_momentum_step",
    "param: F[~], buffer: F[~], learning_rate: F[~], scale: F[~] -> param: F[~]",
    2,
);
static NESTEROV_STEP: Signature = Signature::new(
    "sgd_nesterov_step",
    "param: F[~], gradient: F[~], buffer: F[~], learning_rate: F[~], scale: F[~] -> param: F[~]",
    7,
);

/// SGD in the order of `torch.optim.SGD` (momentum as in Sutskever et al. 2013):
///
/// ```text
/// g      = scale * gradient + weight_decay * param
/// buffer = g                                          at step 1
///          momentum * buffer + (1 - dampening) * g    later
/// param  = param - learning_rate * d
/// ```
///
/// where d is the buffer; with Nesterov, g + momentum * buffer; without momentum, g.
///
/// The state is `momentum_buffer`, f32 (f64 for f64), if there is momentum. A bf16 parameter is
/// rounded to nearest.
///
/// If step 1 is skipped, step 2 is dampened; torch never dampens the first step that runs.
pub struct Sgd {
    config: SgdConfig,
    slots: Slots<Option<Tensor>>,
}

impl Sgd {
    /// SGD of `parts` with zero state.
    ///
    /// # Errors
    /// For a constant outside of its range; when memory runs out.
    pub fn new(parts: &[OptimizerPart], config: SgdConfig, groups: &Groups) -> Result<Sgd> {
        config.ranges().check(NAME)?;
        let slots = Slots::new(parts, groups, config.weight_decay, |_, value| {
            let buffer = || zeros(value, value.dtype().accumulator());
            (config.momentum > 0.0).then(buffer).transpose()
        })?;
        Ok(Sgd { config, slots })
    }

    fn update(
        &self,
        slot: &Slot<Option<Tensor>>,
        [param, gradient]: [&Tensor; 2],
        StepScalars { learning_rate, step, scale }: StepScalars<'_>,
    ) -> Result<()> {
        let decay = Decay(slot.settings.weight_decay);
        let Some(buffer) = &slot.state else {
            let inputs = [param, gradient, learning_rate, scale];
            return assign(&STEP, &Step { decay }, inputs, param);
        };
        let SgdConfig { momentum, dampening, nesterov, .. } = self.config;
        let accumulate = Momentum { decay, momentum, dampening };
        let inputs = [param, gradient, buffer, step, scale];
        assign(&MOMENTUM, &accumulate, inputs, buffer)?;
        if nesterov {
            let ahead = NesterovStep { decay, momentum };
            let inputs = [param, gradient, buffer, learning_rate, scale];
            return assign(&NESTEROV_STEP, &ahead, inputs, param);
        }
        let inputs = [param, buffer, learning_rate, scale];
        assign(&MOMENTUM_STEP, &MomentumStep, inputs, param)
    }
}

impl UpdateRule for Sgd {
    fn name(&self) -> &str {
        NAME
    }

    fn granularity(&self) -> Granularity {
        Granularity::Element
    }

    fn state(&self) -> Vec<OptimizerState> {
        let buffers = self.slots.state("momentum_buffer", Option::as_ref);
        Vec::from_iter((self.config.momentum > 0.0).then_some(buffers))
    }

    fn step(&mut self, gradients: &[Tensor], scalars: StepScalars<'_>) -> Result<()> {
        self.slots.each(gradients, scalars, |slot, tensors, now| self.update(slot, tensors, now))
    }
}

/// The gradient with the L2 penalty.
#[derive(Clone, Copy)]
struct Decay(f64);

impl Decay {
    #[inline(always)]
    fn of<W: Number>(self, [param, gradient, scale]: [W; 3]) -> W {
        scale * gradient + W::constant(self.0) * param
    }
}

struct Momentum {
    decay: Decay,
    momentum: f64,
    dampening: f64,
}

impl Function<5> for Momentum {
    #[inline(always)]
    fn value<W: Number>(&self, [param, gradient, buffer, step, scale]: [W; 5]) -> W {
        let g = self.decay.of([param, gradient, scale]);
        let kept = W::constant(self.momentum) * buffer;
        let later = kept + W::constant(1.0 - self.dampening) * g;
        scale.if_finite(step.if_le(W::ONE, g, later), buffer)
    }
}

struct Step {
    decay: Decay,
}

impl Function<4> for Step {
    #[inline(always)]
    fn value<W: Number>(&self, [param, gradient, learning_rate, scale]: [W; 4]) -> W {
        let g = self.decay.of([param, gradient, scale]);
        scale.if_finite(param - learning_rate * g, param)
    }
}

struct MomentumStep;

impl Function<4> for MomentumStep {
    #[inline(always)]
    fn value<W: Number>(&self, [param, buffer, learning_rate, scale]: [W; 4]) -> W {
        scale.if_finite(param - learning_rate * buffer, param)
    }
}

struct NesterovStep {
    decay: Decay,
    momentum: f64,
}

impl Function<5> for NesterovStep {
    #[inline(always)]
    fn value<W: Number>(&self, [param, gradient, buffer, learning_rate, scale]: [W; 5]) -> W {
        let g = self.decay.of([param, gradient, scale]);
        let ahead = g + W::constant(self.momentum) * buffer;
        scale.if_finite(param - learning_rate * ahead, param)
    }
}
