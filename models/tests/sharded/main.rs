//! Qwen3 on the ranks of a mesh has the loss and the gradients of one rank.

mod cases;
mod run;

use meshgrad_comm::conformance::Fault;

use cases::{CASES, Case};
use run::{Outcome, compare, on_one_rank, on_ranks};

/// Runs a case on its mesh and on one rank.
fn check(case: &Case, fault: Fault) -> Result<(), String> {
    let mesh = case.mesh();
    let expected = on_one_rank(case).map_err(|error| format!("one rank: {error}"))?;
    let outcomes = on_ranks(case, &mesh, fault, |plan| plan)?;
    let compare = |actual: &Outcome| compare(actual, &expected, case.tolerance());
    outcomes.iter().try_for_each(compare)
}

#[test]
fn any_mesh_has_the_loss_and_gradients_of_one_rank() {
    let failures: Vec<String> = CASES
        .iter()
        .filter_map(|case| {
            let problem = check(case, Fault::None).err()?;
            Some(format!("{case:?}: {problem}"))
        })
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}
