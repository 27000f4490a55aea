//! The step of the optimizer.

use meshgrad::prelude::*;
use meshgrad::runtime::Key;
use meshgrad::runtime::op_cases::adamw;
use serde_json::json;

use super::{Amount, Group, Job};
use crate::bench::shapes::{self, Shapes};

pub(super) fn groups(shapes: &Shapes) -> Vec<Group> {
    shapes.adamw.iter().flat_map(step).collect()
}

fn step(shape: &shapes::AdamW) -> [Group; 2] {
    let shapes::AdamW { tensors, elements, what } = shape.clone();
    let extents = json!({"tensors": tensors, "elements": elements});
    let all = tensors * elements;
    // Parameter and moments are read and written, the gradient is read. All are f32, except a bf16
    // parameter.
    let bytes = |parameter: usize| Amount::Bytes((all * (2 * parameter + 20)) as f64);
    let job = |name, dtype: DType| {
        Job::new(name, &["adamw_step"], dtype, bytes(dtype.bytes(1)), &extents)
    };
    let exact = job("adamw", DType::F32);
    let stochastic = job("adamw, rounding at random", DType::BF16).without_peer();
    [(exact, None), (stochastic, Some(Key::new(1)))].map(|(job, rounding)| Group {
        title: format!("{tensors} tensors of {elements}: {what}"),
        bytes: all * (job.dtype.bytes(1) + 12),
        jobs: vec![job],
        family: Box::new(move |source| {
            let rounding = rounding.map(Into::into);
            Ok(vec![adamw(source, tensors, &[elements], rounding)?])
        }),
    })
}
