//! The step of the optimizer, and the norm of gradients.

use super::op_case::{CaseOperands, OpCase, Results, Source, accumulated, case, writable};
use crate::ops::{self, AdamWConstants, AdamWOperands, StepScalars};
use crate::{RegionKey, Result, Tensor};

const CONSTANTS: AdamWConstants =
    AdamWConstants { beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.1 };

/// One step of `count` parameters of `shape`, rounded at random if `rounding` is a key.
pub fn adamw(
    source: &dyn Source,
    count: usize,
    shape: &[usize],
    rounding: Option<RegionKey>,
) -> Result<OpCase> {
    let mut operands = Vec::new();
    for at in 0..count {
        let numbers = |name: &str| source.numbers(&format!("{name} {at}"), shape);
        let exp_avg_sq = source.positive(&format!("exp_avg_sq {at}"), shape)?;
        operands.push(writable(&numbers("param")?)?);
        operands.push(accumulated(&numbers("gradient")?)?);
        operands.push(writable(&accumulated(&numbers("exp_avg")?)?)?);
        operands.push(writable(&accumulated(&exp_avg_sq)?)?);
    }
    for scalar in [0.5f32, 2.0, 0.25] {
        operands.push(Tensor::scalar(source.device(), scalar)?);
    }
    let call = move |of: &CaseOperands| step(of, count, rounding.as_ref());
    Ok(OpCase::new("adamw_step", operands, call).writing())
}

fn step(of: &CaseOperands, count: usize, rounding: Option<&RegionKey>) -> Result<Vec<Tensor>> {
    let changed = |at: usize| -> Result<[Tensor; 3]> {
        Ok([of.changed(4 * at)?, of.changed(4 * at + 2)?, of.changed(4 * at + 3)?])
    };
    let changed: Vec<[Tensor; 3]> = (0..count).map(changed).collect::<Result<_>>()?;
    let parameters = changed.iter().enumerate().map(|(at, changed)| AdamWOperands {
        param: changed[0].clone(),
        gradient: of.tensors[4 * at + 1].clone(),
        exp_avg: changed[1].clone(),
        exp_avg_sq: changed[2].clone(),
        constants: CONSTANTS,
        rounding,
    });
    let scalars = &of.tensors[4 * count..];
    let scalars = StepScalars { learning_rate: &scalars[0], step: &scalars[1], scale: &scalars[2] };
    ops::adamw_step_many(&parameters.collect::<Vec<_>>(), scalars)?;
    Ok(changed.into_iter().flatten().collect())
}

/// The norm of gradients of these numbers of elements, and the scale that clips it.
pub fn gradient_norm(source: &dyn Source, elements: &[usize]) -> Result<Vec<OpCase>> {
    let gradients = elements.iter().map(|count| source.numbers("gradient", &[*count]));
    let gradients: Vec<Tensor> = gradients.collect::<Result<_>>()?;
    let [norm, weight] = [3.0f32, 1.5].map(|value| Tensor::scalar(source.device(), value));
    let (norm, weight) = (norm?, weight?);
    Ok(vec![
        OpCase::new("global_norm", gradients, |of| {
            Ok(ops::global_norm(&of.tensors.iter().collect::<Vec<_>>())?.list())
        }),
        case("clip_scale", [&norm, &weight], |[norm, weight]| ops::clip_scale(norm, weight, 1.0)),
        case("clip_scale", [&norm, &weight], |[norm, weight]| ops::clip_scale(norm, weight, 0.0))
            .named("clip_scale, no limit"),
    ])
}
