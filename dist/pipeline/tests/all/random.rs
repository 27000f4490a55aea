//! Random shapes and costs.

use meshgrad_pipeline::{Costs, Shape};
use proptest::prelude::*;

fn list(stages: usize, range: std::ops::Range<f64>) -> impl Strategy<Value = Vec<f64>> {
    proptest::collection::vec(range, stages)
}

fn costs(stages: usize) -> impl Strategy<Value = Costs> {
    let durations = || list(stages, 0.1..3.0);
    let computes = (durations(), durations(), durations(), durations());
    // Some runs have free communication, which makes many events simultaneous.
    let short = || prop_oneof![Just(vec![0.0; stages]), list(stages, 0.0..2.0)];
    let communication = (short(), short(), short());
    let memory = (list(stages, 0.1..2.0), list(stages, 0.0..2.0));
    let all = (computes, communication, memory, 0.0..=1.0f64);
    all.prop_map(|(computes, communication, memory, overlap)| Costs {
        forward: computes.0,
        backward: computes.1,
        input: computes.2,
        weight: computes.3,
        send: communication.0,
        gather: communication.1,
        reduce: communication.2,
        overlap,
        activation: memory.0,
        pending: memory.1,
    })
}

/// A shape of up to 5 ranks, 3 stages per rank and 12 microbatches, with costs.
pub(crate) fn shape_and_costs() -> impl Strategy<Value = (Shape, Costs)> {
    let numbers = (1..=5usize, 1..=3usize, 1..=12usize);
    numbers.prop_flat_map(|(ranks, per_rank, microbatches)| {
        let shape = Shape::new(ranks, ranks * per_rank, microbatches).unwrap();
        (Just(shape), costs(shape.stages()))
    })
}
