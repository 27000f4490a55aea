//! Lion: the sign of an interpolated momentum.

use meshgrad_runtime::ops::StepScalars;
use meshgrad_runtime::{Function, Number, Signature, Tensor};

use super::assign::assign;
use super::slots::{Slot, Slots, zeros};
use super::{Granularity, Groups, LionConfig, OptimizerPart, OptimizerState, UpdateRule};
use crate::Result;

const NAME: &str = "lion";

static STEP: Signature = Signature::new(
    "lion_step",
    "param: F[~], gradient: F[~], exp_avg: F[~], learning_rate: F[~], scale: F[~] -> param: F[~]",
    9,
);
static AVERAGE: Signature = Signature::new(
    "lion_average",
    "exp_avg: F[~], gradient: F[~], scale: F[~] -> exp_avg: F[~]",
    4,
);

/// Lion (Chen et al. 2023, algorithm 2):
///
/// ```text
/// g       = scale * gradient
/// update  = sign(beta1 * exp_avg + (1 - beta1) * g)
/// param   = param - learning_rate * (update + weight_decay * param)
/// exp_avg = beta2 * exp_avg + (1 - beta2) * g
/// ```
///
/// The state is `exp_avg`, f32 (f64 for f64). A bf16 parameter is rounded to nearest.
///
/// Each step moves an element by the whole learning rate, so use one 3 to 10 times smaller than for
/// AdamW.
pub struct Lion {
    config: LionConfig,
    slots: Slots<Tensor>,
}

impl Lion {
    /// Lion of `parts` with zero state.
    ///
    /// # Errors
    /// For a constant outside of its range; when memory runs out.
    pub fn new(parts: &[OptimizerPart], config: LionConfig, groups: &Groups) -> Result<Lion> {
        config.ranges().check(NAME)?;
        let slots = Slots::new(parts, groups, config.weight_decay, |_, value| {
            zeros(value, value.dtype().accumulator())
        })?;
        Ok(Lion { config, slots })
    }

    fn update(
        &self,
        slot: &Slot<Tensor>,
        [param, gradient]: [&Tensor; 2],
        StepScalars { learning_rate, scale, .. }: StepScalars<'_>,
    ) -> Result<()> {
        let LionConfig { beta1, beta2, .. } = self.config;
        let exp_avg = &slot.state;

        let step = Step { beta1, weight_decay: slot.settings.weight_decay };
        let inputs = [param, gradient, exp_avg, learning_rate, scale];
        assign(&STEP, &step, inputs, param)?;
        let inputs = [exp_avg, gradient, scale];
        assign(&AVERAGE, &Average { beta2 }, inputs, exp_avg)
    }
}

impl UpdateRule for Lion {
    fn name(&self) -> &str {
        NAME
    }

    fn granularity(&self) -> Granularity {
        Granularity::Element
    }

    fn state(&self) -> Vec<OptimizerState> {
        vec![self.slots.state("exp_avg", Some)]
    }

    fn step(&mut self, gradients: &[Tensor], scalars: StepScalars<'_>) -> Result<()> {
        self.slots.each(gradients, scalars, |slot, tensors, now| self.update(slot, tensors, now))
    }
}

/// beta * average + (1 - beta) * x.
#[inline(always)]
fn interpolate<W: Number>(beta: f64, average: W, x: W) -> W {
    W::constant(beta) * average + W::constant(1.0 - beta) * x
}

/// -1, 0 or 1.
#[inline(always)]
fn sign<W: Number>(x: W) -> W {
    let negative_or_zero = x.if_lt(W::ZERO, -W::ONE, W::ZERO);
    W::ZERO.if_lt(x, W::ONE, negative_or_zero)
}

struct Step {
    beta1: f64,
    weight_decay: f64,
}

impl Function<5> for Step {
    #[inline(always)]
    fn value<W: Number>(&self, inputs: [W; 5]) -> W {
        let [param, gradient, exp_avg, learning_rate, scale] = inputs;
        let update = sign(interpolate(self.beta1, exp_avg, scale * gradient));
        let decayed = update + W::constant(self.weight_decay) * param;
        scale.if_finite(param - learning_rate * decayed, param)
    }
}

struct Average {
    beta2: f64,
}

impl Function<3> for Average {
    #[inline(always)]
    fn value<W: Number>(&self, [exp_avg, gradient, scale]: [W; 3]) -> W {
        scale.if_finite(interpolate(self.beta2, exp_avg, scale * gradient), exp_avg)
    }
}
