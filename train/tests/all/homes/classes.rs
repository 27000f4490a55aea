//! Gradients that are partial sums over the axis of tensor parallelism too, such as those of norms
//! under sequence parallelism, are summed together.

use meshgrad_comm::Collective;

use crate::homes::cases::{Case, DP_TP, Trained, fsdp};
use crate::homes::resources::{STEPS, planned};
use crate::small::{DENSE, EXPERTS};

/// The reductions over `tp` of gradients in a step.
fn reductions(case: &Case) -> usize {
    let (_, log) = planned(case, 0);
    let calls = log.calls().map(|call| &call.request);
    let of_gradients = calls.filter(|request| {
        let is_sum = request.fingerprint.collective == Collective::AllReduce;
        is_sum && request.caller.to_string().contains("gradients.rs")
    });
    of_gradients.count() / STEPS
}

/// The parameters around the layers have a partial gradient only with sequence parallelism, and if
/// norms and biases are trained.
#[test]
fn a_unit_has_one_more_reduction() {
    let expected = [
        (Trained::All, true, 4),
        (Trained::All, false, 3),
        (Trained::Adapters, true, 3),
        (Trained::Adapters, false, 3),
    ];
    for model in [DENSE, EXPERTS] {
        for (trained, sequence, units) in expected {
            let case = Case::new("fsdp", model, DP_TP, fsdp).trained(trained);
            let case = match sequence {
                true => case,
                false => case.whole_sequences(),
            };
            assert_eq!(reductions(&case), units, "{trained:?}, {sequence}, {model}");
        }
    }
}

/// In the order of the model, parameters of other classes lie between them: those of the norms of
/// blocks between those of the norms of heads, if all layers are one unit.
#[test]
fn parameters_of_a_class_lie_together() {
    let sorted =
        Case { units: "model.layers", ..Case::new("fsdp", DENSE, DP_TP, fsdp).whole_sequences() };
    let unsorted = Case { learns_classes: false, ..sorted };
    assert!(reductions(&unsorted) > reductions(&sorted));
}
