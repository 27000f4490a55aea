//! Embedding and loss.

use meshgrad::prelude::*;
use meshgrad::runtime::op_cases::{embedding, losses};
use serde_json::json;

use super::{Amount, Group, Job};
use crate::bench::shapes::{self, Shapes};

pub(super) fn groups(shapes: &Shapes) -> Vec<Group> {
    let mut groups = Vec::new();
    for dtype in shapes.floats() {
        let ends = shapes.vocabulary.iter();
        groups.extend(ends.flat_map(|it| ends_of_model(it, dtype)));
    }
    groups
}

fn ends_of_model(shape: &shapes::Vocabulary, dtype: DType) -> [Group; 2] {
    let shapes::Vocabulary { tokens, hidden, vocabulary, what } = shape.clone();
    let extents = json!({"tokens": tokens, "hidden": hidden, "vocabulary": vocabulary});
    let job = |name, cases, amount| Job::new(name, cases, dtype, amount, &extents);

    let rows = dtype.bytes(tokens * hidden) as f64;
    // The gradient of the whole table is f32 and written once, zeros included.
    let sums = 4.0 * (vocabulary * hidden) as f64;
    let table = Group {
        title: format!("{tokens} of {vocabulary} rows of {hidden}: {what}"),
        jobs: vec![
            job("embedding", &["embedding"], Amount::Bytes(2.0 * rows)),
            job("embedding_grad", &["embedding_grad_into"], Amount::Bytes(rows + sums)),
        ],
        bytes: dtype.bytes((2 * tokens + vocabulary) * hidden),
        family: Box::new(move |source| embedding(source, [vocabulary, hidden], &[tokens])),
    };

    let product = 2.0 * (tokens * hidden * vocabulary) as f64;
    let loss = Group {
        title: format!("{tokens} tokens, {hidden} to {vocabulary}: {what}"),
        jobs: vec![
            job("linear_cross_entropy", &["linear_cross_entropy"], Amount::Flops(product)),
            // Only the necessary products are counted; meshgrad also recomputes the logits.
            job(
                "linear_cross_entropy_grads",
                &["linear_cross_entropy_grad_both_into"],
                Amount::Flops(2.0 * product),
            ),
        ],
        bytes: dtype.bytes((tokens + vocabulary) * hidden),
        family: Box::new(move |source| losses(source, [tokens, hidden, vocabulary])),
    };
    [table, loss]
}
