//! Rounding changes which experts a router chooses only where scores are nearly equal.

use meshgrad_autograd::Result;
use meshgrad_collectives::full_tensor;
use meshgrad_comm::{Local, Rank, Redistributor};
use meshgrad_models::moe::Routing;

use crate::sharded::cases::{CASES, Case};
use crate::sharded::run::{Choices, choices, replaying, sharded};

/// For each choice that the routers of ranks would change, by how much its score is less than that of
/// another expert. The experts in all layers are `replayed`, so that a change has no consequences.
fn flips(case: &Case, replayed: &Choices) -> Vec<f32> {
    let mesh = case.mesh();
    let ranks = Local::new(mesh.len()).launch(|rank| {
        Redistributor::new(rank).run_on(&mesh, || {
            let model = sharded(case, rank, |plan| plan)?;
            let batch = replaying(case, replayed, rank.device())?;
            let routings = model.route(&batch, case.compute())?;
            let logits = |routing: &Routing| full_tensor(routing.logits_ne.value())?.to_vec();
            routings.iter().map(logits).collect::<Result<Vec<Vec<f32>>>>()
        })
    });
    let (experts, k) = (case.config().num_experts, case.config().num_experts_per_tok);
    let mut found = Vec::new();
    for (of_layer, logits) in replayed.iter().zip(&ranks.unwrap()[0]) {
        for (chosen, logits) in of_layer.chunks(k).zip(logits.chunks(experts)) {
            let has = |expert: &usize| chosen.contains(&(*expert as i32));
            let score = |expert: usize| logits[expert];
            let (others, own): (Vec<usize>, Vec<usize>) = (0..experts).partition(|e| !has(e));
            let best = others.into_iter().map(score).fold(f32::NEG_INFINITY, f32::max);
            let replaced = own.into_iter().map(score).filter(|score| *score < best);
            found.extend(replaced.map(|score| best - score));
        }
    }
    found
}

/// The largest margin that rounding explains, of logits of about 1: ten units of bf16, or 80 of f32.
fn rounding(case: &Case) -> f32 {
    if case.bf16 { 10.0 / 256.0 } else { 1e-5 }
}

#[test]
fn rounding_changes_only_close_choices() {
    let has_choice = |case: &&Case| case.config().num_experts > case.config().num_experts_per_tok;
    let mut counted = [0; 2];
    for case in CASES.iter().filter(has_choice) {
        // Enough tokens that some have nearly equal scores, at the places that they have on one rank.
        let rows = if case.bf16 { 60 } else { case.rows };
        let case = &Case { rows, documents: false, ..*case };
        let chosen = choices(case).unwrap();
        let flips = flips(case, &chosen);
        assert!(flips.iter().all(|margin| *margin <= rounding(case)), "{case}: {flips:?}");
        println!("{case}: {} of {} flip", flips.len(), chosen.concat().len());
        counted[usize::from(case.bf16)] += flips.len();
    }
    assert!(counted[0] == 0 && counted[1] > 0, "{counted:?} flips in f32 and bf16");
}

/// Choices of another token are not explained by rounding.
#[test]
fn wrong_choices_are_found() {
    for case in CASES.iter().filter(|case| case.bf16 && case.config().num_experts == 24) {
        let mut chosen = choices(case).unwrap();
        chosen.iter_mut().for_each(|of_layer| of_layer.rotate_right(3));
        let margins = flips(case, &chosen);
        let wrong = margins.iter().filter(|margin| **margin > rounding(case)).count();
        assert!(wrong > chosen.concat().len() / 2, "{case}: {margins:?}");
    }
}
