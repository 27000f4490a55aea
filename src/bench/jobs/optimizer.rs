//! The step of the optimizer.

use meshgrad::prelude::*;
use meshgrad::runtime::ops;
use meshgrad::runtime::ops::{AdamW, AdamWOperands, StepScalars};
use meshgrad::runtime::{Key, RegionKey, Result};
use serde_json::json;

use super::{Amount, Group, Job, Source};
use crate::bench::shapes::{self, Shapes};

pub(super) fn groups(shapes: &Shapes) -> Vec<Group> {
    shapes.adamw.iter().flat_map(step).collect()
}

/// Tensors per parameter in a set: parameter, gradient and two moments. Three scalars follow at the
/// end.
const OF_PARAMETER: usize = 4;

fn step(shape: &shapes::AdamW) -> [Group; 2] {
    let shapes::AdamW {
        tensors,
        elements,
        what,
    } = shape.clone();
    let extents = json!({"tensors": tensors, "elements": elements});
    let all = tensors * elements;
    // Parameter and moments are read and written, the gradient is read. All are f32, except a bf16
    // parameter.
    let bytes = |parameter: usize| Amount::Bytes((all * (2 * parameter + 20)) as f64);
    let exact = Job::new("adamw", DType::F32, bytes(4), &extents, |of| {
        adamw(of, None)
    });
    let stochastic = Job::new(
        "adamw, rounding at random",
        DType::BF16,
        bytes(2),
        &extents,
        |of| adamw(of, Some(&Key::new(1).into())),
    );
    [
        (exact, DType::F32),
        (stochastic.without_peer(), DType::BF16),
    ]
    .map(|(job, dtype)| Group {
        title: format!("{tensors} tensors of {elements}: {what}"),
        jobs: vec![job],
        bytes: all * (dtype.bytes(1) + 12),
        operands: Box::new(move |source| operands(source, tensors, elements, dtype)),
    })
}

fn operands(
    source: &Source<'_>,
    tensors: usize,
    elements: usize,
    parameter: DType,
) -> Result<Vec<Tensor>> {
    let mut all = Vec::new();
    for tensor in 0..tensors {
        for (name, kind, dtype) in [
            ("param", Kind::Parameter, parameter),
            ("gradient", Kind::Gradient, DType::F32),
            ("exp_avg", Kind::OptimizerState, DType::F32),
            ("exp_avg_sq", Kind::OptimizerState, DType::F32),
        ] {
            let key = Key::new(source.set as u64).fold_name(&format!("{name} {tensor}"));
            let to = Tensor::zeros(source.device, &[elements], dtype, kind)?;
            ops::uniform_into(&to, key, 0.0, 1.0)?;
            all.push(to);
        }
    }
    for value in [1e-4, 10.0, 1.0] {
        all.push(ops::full(source.device, &[], DType::F32, value)?);
    }
    Ok(all)
}

fn adamw(of: &[Tensor], rounding: Option<&RegionKey>) -> Result<Vec<Tensor>> {
    let (parameters, scalars) = of.split_at(of.len() - 3);
    let operands = parameters
        .chunks_exact(OF_PARAMETER)
        .map(|of| AdamWOperands {
            param: &of[0],
            gradient: &of[1],
            exp_avg: &of[2],
            exp_avg_sq: &of[3],
            constants: AdamW {
                beta1: 0.9,
                beta2: 0.95,
                eps: 1e-8,
                weight_decay: 0.1,
            },
            rounding,
        });
    let scalars = StepScalars {
        learning_rate: &scalars[0],
        step: &scalars[1],
        scale: &scalars[2],
    };
    ops::adamw_step_many(&operands.collect::<Vec<_>>(), scalars)?;
    Ok(Vec::new())
}
