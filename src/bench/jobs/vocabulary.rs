//! Embedding and loss.

use meshgrad::prelude::*;
use meshgrad::runtime::Accumulator;
use meshgrad::runtime::ops;
use meshgrad::runtime::ops::Targets;
use serde_json::json;

use super::{Amount, Group, Job};
use crate::bench::shapes::{self, Shapes};

pub(super) fn groups(shapes: &Shapes) -> Vec<Group> {
    let mut groups = Vec::new();
    for dtype in shapes.floats() {
        let ends = shapes.vocabulary.iter();
        groups.extend(ends.flat_map(|it| [table(it, dtype), loss(it, dtype)]));
    }
    groups
}

fn table(shape: &shapes::Vocabulary, dtype: DType) -> Group {
    let shapes::Vocabulary {
        tokens,
        hidden,
        vocabulary,
        what,
    } = shape.clone();
    let extents = json!({"tokens": tokens, "hidden": hidden, "vocabulary": vocabulary});
    let rows = dtype.bytes(tokens * hidden) as f64;
    // The gradient of the whole table is f32 and written once, zeros included.
    let sums = 4.0 * (vocabulary * hidden) as f64;
    let jobs = vec![
        Job::new(
            "embedding",
            dtype,
            Amount::Bytes(2.0 * rows),
            &extents,
            |of| Ok(vec![ops::embedding(&of[0], &of[1])?]),
        ),
        Job::new(
            "embedding_grad",
            dtype,
            Amount::Bytes(rows + sums),
            &extents,
            |of| {
                let [table, ids, dy] = [0, 1, 2].map(|at| &of[at]);
                let mut dtable = Accumulator::new(table.device(), *table.shape(), DType::F32)?;
                ops::embedding_grad_into(dy, ids, &mut dtable)?;
                Ok(vec![dtable.buffer().clone()])
            },
        ),
    ];
    Group {
        title: format!("{tokens} of {vocabulary} rows of {hidden}: {what}"),
        jobs,
        bytes: dtype.bytes((2 * tokens + vocabulary) * hidden),
        operands: Box::new(move |source| {
            let table = source.random("table", &[vocabulary, hidden], dtype)?;
            let ids = source.tokens(tokens, vocabulary)?;
            let dy = source.random("dy", &[tokens, hidden], dtype)?;
            Ok(vec![table, ids, dy])
        }),
    }
}

fn loss(shape: &shapes::Vocabulary, dtype: DType) -> Group {
    let shapes::Vocabulary {
        tokens,
        hidden,
        vocabulary,
        what,
    } = shape.clone();
    let extents = json!({"tokens": tokens, "hidden": hidden, "vocabulary": vocabulary});
    let product = 2.0 * (tokens * hidden * vocabulary) as f64;
    let amount = |products: f64| Amount::Flops(products * product);
    let jobs = vec![
        Job::new("linear_cross_entropy", dtype, amount(1.0), &extents, |of| {
            let targets = targets(&of[1], &of[2]);
            let (max, sum, logit) = ops::linear_cross_entropy(&of[0], &of[1], targets)?;
            Ok(vec![max, sum, logit])
        }),
        // Only the necessary products are counted; meshgrad also recomputes the logits.
        Job::new(
            "linear_cross_entropy_grads",
            dtype,
            amount(2.0),
            &extents,
            |of| {
                let [x, w, lse, dloss] = [0, 1, 3, 4].map(|at| &of[at]);
                let mut dw = Accumulator::new(x.device(), *w.shape(), DType::F32)?;
                let dx = ops::linear_cross_entropy_grad_both_into(
                    x,
                    w,
                    targets(w, &of[2]),
                    lse,
                    dloss,
                    &mut dw,
                )?;
                Ok(vec![dx, dw.buffer().clone()])
            },
        ),
    ];
    Group {
        title: format!("{tokens} tokens, {hidden} to {vocabulary}: {what}"),
        jobs,
        bytes: dtype.bytes((tokens + vocabulary) * hidden),
        operands: Box::new(move |source| {
            let x = source.random("x", &[tokens, hidden], dtype)?;
            let w = source.random("w", &[vocabulary, hidden], dtype)?;
            let labels = source.tokens(tokens, vocabulary)?;
            let (max, sum, _) = ops::linear_cross_entropy(&x, &w, targets(&w, &labels))?;
            let lse = ops::add(&max, &ops::ln(&sum)?)?;
            let dloss = ops::full(source.device, &[tokens], DType::F32, 1.0)?;
            Ok(vec![x, w, labels, lse, dloss])
        }),
    }
}

fn targets<'a>(w: &Tensor, labels: &'a Tensor) -> Targets<'a> {
    Targets {
        labels,
        ignore_index: -100,
        vocab_start: 0,
        vocab_total: w.shape()[0],
    }
}
