//! Experts that ranks divide have the results and gradients of torch's, which sends rows by
//! `all_to_all_single`. `scripts/prove/experts-golden` describes and writes the fixtures.

use meshgrad_autograd::{Module, Result};
use meshgrad_comm::{LocalRank, Rank};
use meshgrad_models::moe::{Dispatch, Moe};
use meshgrad_runtime::{Tensor, ops};

use super::fixture::Fixture;
use super::{Broadcasting, Fault, Parts, TWELVE, on_ranks_with, together};
use crate::small::config;

/// The largest difference of a result or gradient from torch's, relative to the norm of torch's.
const TOLERANCE: f64 = 2e-6;

fn fixtures() -> [Fixture; 2] {
    ["experts/ranks-3", "experts/skewed"].map(Fixture::open)
}

impl Fixture {
    /// The tokens of each rank.
    fn tokens(&self) -> Vec<usize> {
        let tokens = self.options["tokens"].as_array().unwrap().iter();
        tokens.map(|count| count.as_u64().unwrap() as usize).collect()
    }

    fn qwen_block(&self) -> Moe {
        let mut config = config(TWELVE);
        config.hidden_size = self.size("hidden_size");
        config.moe_intermediate_size = self.size("moe_intermediate_size");
        config.num_experts = self.size("num_experts");
        config.num_experts_per_tok = self.size("num_experts_per_tok");
        config.moe(&"mlp".into())
    }

    /// Gives a rank its experts and the gate. Returns the tokens of all ranks.
    fn fill_rank(&self, moe: &Moe, rank: &LocalRank) -> Result<Tensor> {
        moe.materialize(rank.device(), 1)?;
        for param in moe.params() {
            let whole = self.tensor(rank.device(), &[param.name().to_owned()], param.shape());
            let own = param.value()?.local();
            let (rows, is_gate) = (own.shape()[0], param.name() == moe.router.gate.name());
            let first = if is_gate { 0 } else { rank.rank() * rows };
            ops::copy_into(&whole.slice(0, first..first + rows)?, &own)?;
        }
        self.x(rank.device()).as_replicated()
    }

    /// The parts of all ranks together, each with a block that `change` has changed.
    fn on_ranks(&self, change: impl Fn(&mut Moe) + Sync) -> Parts {
        let moe = || {
            let mut moe = self.qwen_block();
            change(&mut moe);
            moe
        };
        let ranks = on_ranks_with(&self.tokens(), &moe, &|moe, rank| self.fill_rank(moe, rank));
        let names = ranks[0].iter().map(|(name, _)| name.clone());
        names.map(|name| (name.clone(), together(&name, &ranks))).collect()
    }

    /// Exchanges the down projections of the first and the last expert.
    fn exchange_experts(&mut self) {
        let experts = self.size("num_experts");
        let (_, values) = self.tensors.get_mut("mlp.experts.down_proj").unwrap();
        let size = values.len() / experts;
        let (first, rest) = values.split_at_mut(size);
        first.swap_with_slice(&mut rest[(experts - 2) * size..]);
    }
}

#[test]
fn results_and_gradients_match_torch() {
    // A rank has no tokens.
    assert!(fixtures().iter().any(|fixture| fixture.tokens().contains(&0)));
    for fixture in fixtures() {
        for dispatch in [Dispatch::AllToAll, Dispatch::AllGather] {
            let parts = fixture.on_ranks(|moe| moe.dispatch_by(dispatch));
            let differing = fixture.differing(&parts, TOLERANCE);
            assert_eq!(differing, [""; 0], "{dispatch:?}, {}", fixture.options);
        }
    }
}

#[test]
fn planted_faults_differ_from_torch() {
    for fixture in fixtures() {
        let differing = |parts: &Parts| fixture.differing(parts, TOLERANCE);
        let with = |fault| fixture.on_ranks(move |moe| moe.dispatch_with(Broadcasting(fault)));
        assert_eq!(differing(&with(Fault::Nothing)), [""; 0]);

        let mut exchanged = fixture.clone();
        exchanged.exchange_experts();
        for (fault, parts, seen_in) in [
            ("a dropped row", with(Fault::DroppedRow), "y"),
            ("swapped experts of ranks", with(Fault::SwappedExperts), "y"),
            ("a gradient divided by the ranks", with(Fault::ScaledGradient), "dx"),
            ("own tokens only", with(Fault::OwnTokensOnly), "mlp.experts.down_proj"),
            ("exchanged weights", exchanged.on_ranks(|_| {}), "y"),
        ] {
            let differing = differing(&parts);
            let is_seen = differing.iter().any(|name| name == seen_in);
            assert!(is_seen, "{fault} is not seen in {seen_in}: {differing:?}");
        }
    }
}
