//! Linear layers fused with cross entropy.

use super::op_case::{CaseOperands, OpCase, Results, Source, accumulated, adding_to_last, case};
use crate::Result;
use crate::ops::{self, Targets};

const IGNORED: i64 = -100;

/// The loss of x [rows, features] with logits of `classes`, and its gradients.
pub fn losses(source: &dyn Source, [rows, features, classes]: [usize; 3]) -> Result<Vec<OpCase>> {
    let x = source.numbers("x", &[rows, features])?;
    let w = source.numbers("w", &[classes, features])?;
    let labels = source.indices("labels", &[rows], classes)?;
    let whole = Targets::new(&labels, IGNORED, &w);
    let (max, sum, logit) = ops::linear_cross_entropy(&x, &w, whole)?;
    let lse = ops::add(&max, &ops::ln(&sum)?)?;
    let dloss = accumulated(&source.positive("dloss", &[rows])?)?;

    let forward = vec![x, w, labels.clone()];
    let backward = [&forward[..], &[lse.clone(), dloss]].concat();
    let with_sum = [&backward[..], &[source.sums("dw", &[classes, features])?]].concat();
    Ok(vec![
        OpCase::new("linear_cross_entropy", forward, move |of| {
            let ([x, w], to) = (of.first(), targets(of, classes));
            Ok(ops::linear_cross_entropy(x, w, to)?.list())
        }),
        OpCase::new("linear_cross_entropy_grad_input", backward, move |of| {
            let ([x, w, _, lse, dloss], to) = (of.first(), targets(of, classes));
            Ok(ops::linear_cross_entropy_grad_input(x, w, to, lse, dloss)?.list())
        }),
        adding_to_last("linear_cross_entropy_grad_weight_into", with_sum.clone(), move |of, dw| {
            let ([x, w, _, lse, dloss], to) = (of.first(), targets(of, classes));
            ops::linear_cross_entropy_grad_weight_into(x, w, to, lse, dloss, dw)
        }),
        adding_to_last("linear_cross_entropy_grad_both_into", with_sum, move |of, dw| {
            let ([x, w, _, lse, dloss], to) = (of.first(), targets(of, classes));
            ops::linear_cross_entropy_grad_both_into(x, w, to, lse, dloss, dw)
        }),
        case("cross_entropy_sum", [&lse, &logit, &labels], |[lse, logit, labels]| {
            ops::cross_entropy_sum(lse, logit, labels, IGNORED)
        }),
    ])
}

/// The labels. Without a sharding, the rows of `w` are the classes from their start on.
fn targets(of: &CaseOperands, classes: usize) -> Targets<'_> {
    Targets {
        labels: &of.tensors[2],
        ignore_index: IGNORED,
        vocab_start: of.starts[1][0],
        vocab_total: classes,
    }
}
