//! Qwen3 on the ranks of a mesh has the loss and the gradients of one rank.

mod bits;
mod cases;
mod decoding;
mod flips;
mod gpus;
mod megatron;
mod memory;
mod overlap;
mod parts;
mod plans;
mod recomputed;
mod run;
mod torch;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use meshgrad_comm::conformance::Fault;
use meshgrad_models::{Model, ModelPlan};

use cases::{CASES, Case};
use run::{Expected, model, on_ranks};

/// Compares a case on its mesh, with the plan changed by `change`, with one rank.
fn check(
    case: &Case,
    fault: Fault,
    change: impl Fn(ModelPlan) -> ModelPlan + Sync,
) -> Result<(), String> {
    let outcomes = on_ranks(case, fault, change)?;
    let expected = Expected::of(case).map_err(|error| format!("one rank: {error}"))?;
    outcomes.iter().try_for_each(|outcome| expected.compare(outcome))
}

fn unchanged(plan: ModelPlan) -> ModelPlan {
    plan
}

#[test]
fn any_mesh_has_the_loss_and_gradients_of_one_rank() {
    let problem = |case: &Case| {
        let problem = check(case, Fault::None, unchanged).err()?;
        Some(format!("{case}: {problem}"))
    };
    let problems: Vec<String> = CASES.iter().filter_map(problem).collect();
    assert!(problems.is_empty(), "{}", problems.join("\n\n"));
}

/// The second rank of each group contributes zeros or twice its values, or two ranks change places.
#[test]
fn planted_faults_are_found() {
    let mut found = 0;
    for case in CASES.iter().filter(|case| case.has_three_ranks()) {
        // Gathered keys that are sorted by document may come in any order.
        let is_sorted = case.ranks_of_documents().is_some() && !case.ring;
        for fault in Fault::ALL.into_iter().filter(|it| !(is_sorted && *it == Fault::Swapped)) {
            let checked = check(case, fault, unchanged);
            assert!(checked.is_err(), "{case}: {fault:?}");
            found += 1;
        }
    }
    assert!(found >= 15);
}

/// A model without one of its seams fails, or computes the same; never anything else. Each seam is
/// necessary somewhere.
#[test]
fn a_deleted_seam_is_an_error_or_changes_nothing() {
    let mut effects: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for case in CASES.iter().filter(|case| !case.bf16 && case.apart.is_none()) {
        let plan = model(case).unwrap().plan(&case.parallelism(&case.mesh())).unwrap();
        let seams = ["input", "output", "queries", "keys", "attended"];
        let is_seam = |names: &&str| seams.iter().any(|it| names.ends_with(it));
        let deleted: Vec<String> = plan.names().filter(is_seam).map(str::to_owned).collect();
        for names in deleted {
            let outcomes = on_ranks(case, Fault::None, |plan| plan.without(&names));
            let effect = match outcomes {
                Err(_) => "error",
                Ok(outcomes) => {
                    let expected = Expected::of(case).unwrap();
                    for outcome in &outcomes {
                        let same = expected.compare(outcome);
                        assert!(same.is_ok(), "{case} without {names}: {same:?}");
                    }
                    "equal"
                }
            };
            let effects = effects.entry(names).or_default();
            effects.push(format!("{effect}: {case}"));
        }
    }
    let mut table = String::new();
    for (seam, effects) in effects {
        assert!(effects.iter().any(|it| it.starts_with("error")), "{seam} is never necessary");
        let _ = writeln!(table, "{seam}");
        for effect in effects {
            let _ = writeln!(table, "    {effect}");
        }
    }
    insta::assert_snapshot!(table);
}
