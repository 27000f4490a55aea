//! The optimizer that `[optimizer]` configures.

use meshgrad_runtime::{DType, Key};

use crate::Result;
use crate::config::{AdamWKeys, Algorithm, ComputeDType, MuonKeys, OptimizerConfig, RoundingName};
use crate::optim::{
    AdamW, AdamWConfig, Group, Groups, Lion, Muon, MuonConfig, Optimizer, Part, Rounding, Sgd,
};

/// The optimizer of `config` for `parts` of a model whose parameters are named `names`.
///
/// # Errors
/// [`OptimError`](crate::optim::OptimError); when memory runs out.
pub fn optimizer(
    config: &OptimizerConfig,
    parts: &[Part],
    names: &[&str],
) -> Result<Box<dyn Optimizer>> {
    let groups: Vec<Group> = config.groups.clone();
    let groups = &Groups::new(groups, names)?;
    Ok(match &config.algorithm {
        Algorithm::AdamW(keys) => Box::new(AdamW::new(parts, adamw(keys), groups)?),
        Algorithm::Sgd(keys) => Box::new(Sgd::new(parts, *keys, groups)?),
        Algorithm::Lion(keys) => Box::new(Lion::new(parts, *keys, groups)?),
        Algorithm::Muon(keys) => Box::new(Muon::new(parts, muon(keys), groups)?),
    })
}

fn adamw(keys: &AdamWKeys) -> AdamWConfig {
    AdamWConfig {
        beta1: keys.beta1,
        beta2: keys.beta2,
        eps: keys.eps,
        weight_decay: keys.weight_decay,
        state_dtype: dtype(keys.state_dtype),
        rounding: match keys.rounding {
            RoundingName::Nearest => Rounding::Nearest,
            // The numbers differ by parameter, step and element, so one key serves all runs.
            RoundingName::Stochastic => Rounding::Stochastic(Key::new(0)),
        },
    }
}

fn muon(keys: &MuonKeys) -> MuonConfig {
    MuonConfig {
        momentum: keys.momentum,
        nesterov: keys.nesterov,
        weight_decay: keys.weight_decay,
        iterations: keys.iterations,
        coefficients: keys.coefficients,
        eps: keys.eps,
        product_dtype: dtype(keys.product_dtype),
        adjust_learning_rate: keys.adjust_learning_rate,
        adamw_names: keys.adamw_names.clone(),
        adamw: adamw(&keys.adamw),
    }
}

/// The dtype that a configuration names.
pub fn dtype(choice: ComputeDType) -> DType {
    match choice {
        ComputeDType::F32 => DType::F32,
        ComputeDType::Bf16 => DType::BF16,
    }
}
