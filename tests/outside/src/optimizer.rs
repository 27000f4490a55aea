//! An optimizer that meshgrad does not have.

use meshgrad::prelude::*;
use meshgrad::runtime::ops::StepScalars;
use meshgrad::runtime::{Function, Kind, Number, Signature};
use meshgrad::train;
use meshgrad::train::optim::{Granularity, OptimizerPart, OptimizerState, UpdateRule, assign};

static SUM: Signature =
    Signature::new("adagrad_sum", "sum: F[~], gradient: F[~], scale: F[~] -> sum: F[~]", 4);
static STEP: Signature = Signature::new(
    "adagrad_step",
    "param: F[~], gradient: F[~], sum: F[~], learning_rate: F[~], scale: F[~] -> param: F[~]",
    6,
);

/// Adagrad (Duchi et al. 2011), of f32 parameters:
///
/// ```text
/// g     = scale * gradient
/// sum   = sum + g^2
/// param = param - learning_rate * g / (sqrt(sum) + 1e-8)
/// ```
pub struct Adagrad {
    /// With the sum of squared gradients of each.
    parts: Vec<(OptimizerPart, Tensor)>,
}

impl Adagrad {
    /// Adagrad of `parts` with zero state.
    pub fn new(parts: &[OptimizerPart]) -> train::Result<Adagrad> {
        let sum = |part: &OptimizerPart| {
            let value = part.value()?;
            let (device, shape) = (value.device(), value.shape());
            Ok((part.clone(), Tensor::zeros(device, shape, DType::F32, Kind::OptimizerState)?))
        };
        Ok(Adagrad { parts: parts.iter().map(sum).collect::<train::Result<_>>()? })
    }
}

impl UpdateRule for Adagrad {
    fn name(&self) -> &str {
        "adagrad"
    }

    fn granularity(&self) -> Granularity {
        Granularity::Element
    }

    fn state(&self) -> Vec<OptimizerState> {
        let named = self.parts.iter().map(|(part, sum)| (part.name().to_owned(), sum.clone()));
        vec![OptimizerState { name: "sum", tensors: named.collect() }]
    }

    fn step(&mut self, gradients: &[Tensor], scalars: StepScalars<'_>) -> train::Result<()> {
        for ((part, sum), gradient) in self.parts.iter().zip(gradients) {
            let (param, scale) = (&part.value()?, scalars.scale);
            assign(&SUM, &Sum, [sum, gradient, scale], sum)?;
            let inputs = [param, gradient, sum, scalars.learning_rate, scale];
            assign(&STEP, &Step, inputs, param)?;
        }
        Ok(())
    }
}

struct Sum;

impl Function<3> for Sum {
    fn value<W: Number>(&self, [sum, gradient, scale]: [W; 3]) -> W {
        let g = scale * gradient;
        scale.if_finite(sum + g * g, sum)
    }
}

struct Step;

impl Function<5> for Step {
    fn value<W: Number>(&self, [param, gradient, sum, learning_rate, scale]: [W; 5]) -> W {
        let g = scale * gradient;
        let new = param - learning_rate * g / (sum.sqrt() + W::constant(1e-8));
        scale.if_finite(new, param)
    }
}
