//! A model whose parameters have homes trains as on one rank.

mod cases;
mod classes;
mod frozen;
mod overlap;
pub(crate) mod paced;
mod resources;
mod rounding;
mod second_mesh;
pub(crate) mod step;
mod tied;
mod torch;

use meshgrad_comm::conformance::Fault;

use cases::{CASES, Case};
use step::{Outcome, on_one_rank, on_ranks};

use crate::small::{distance, norm};

/// Checks that each tensor is near that of one rank. In bf16, it is as near to f32 as that of one
/// rank, up to a factor.
fn compare(case: &Case, actual: &Outcome) -> Result<(), String> {
    let one_rank = on_one_rank(case);
    let exact = match case.bf16 {
        true => on_one_rank(&Case { bf16: false, ..*case }),
        false => one_rank.clone(),
    };
    assert!(one_rank.keys().eq(actual.keys()));
    let mut problems = Vec::new();
    for (name, actual) in actual {
        let (exact, one_rank) = (&exact[name], &one_rank[name]);
        let (size, own) = (norm(exact), distance(one_rank, exact));
        let allowed = match case.bf16 {
            true => 3.0 * own + 0.02 * size,
            false => 5e-5 * size + 1e-6,
        };
        let difference = distance(actual, exact);
        if difference.is_nan() || difference > allowed {
            problems.push(format!(
                "{name}: differs by {difference:.1e}, and one rank by {own:.1e}, of {size:.1e}"
            ));
        }
    }
    match problems.is_empty() {
        true => Ok(()),
        false => Err(problems.join("; ")),
    }
}

#[test]
fn any_home_has_the_losses_gradients_and_weights_of_one_rank() {
    let problem = |case: &Case| {
        let outcome = on_ranks(case, Fault::None);
        let problem = outcome.and_then(|outcome| compare(case, &outcome)).err()?;
        Some(format!("{case}: {problem}"))
    };
    let problems: Vec<String> = CASES.iter().filter_map(problem).collect();
    assert!(problems.is_empty(), "{}", problems.join("\n\n"));
}

/// The second rank of each group contributes zeros or twice its values, or two ranks change places.
#[test]
fn planted_faults_are_found() {
    let three = |case: &&Case| case.mesh.iter().any(|(_, ranks)| *ranks > 2);
    for case in CASES.iter().filter(three) {
        for fault in Fault::ALL {
            // A sum does not depend on which rank contributes what.
            if fault == Fault::Swapped && !case.divides() {
                continue;
            }
            let outcome = on_ranks(case, fault);
            let checked = outcome.and_then(|outcome| compare(case, &outcome));
            assert!(checked.is_err(), "{case}: {fault:?}");
        }
    }
}
